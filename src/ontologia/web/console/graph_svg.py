"""The causal graph as SVG: event, handler, commit or failed attempt, and the events from there.

A tidy tree: what follows stands to the right of its cause, leaves have a row each, and a parent
stands in the middle of its children. Of more nodes than can be looked at, brothers and sisters are
counted and not drawn.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from markupsafe import Markup

from ontologia.runtime.views.graph import Graph, Node
from ontologia.web.console.rendering import visible

Link: TypeAlias = Callable[[Node], str | None]
"""The address of a node's page; None if it has none."""
MOST = 500
"""Nodes that are drawn."""
WIDTH, HEIGHT = 196, 40
"""Of a node."""
ROW, COLUMN = HEIGHT + 20, WIDTH + 40
_EDGE = 12
_LONGEST = 200
_NAME, _TOLD, _ID = 23, 29, 14  # letters that there is room for
_SIBLINGS = (MOST, 100, 30, 10, 5, 3, 2, 1)
_TONES = {
    "acked": "good",
    "dead_lettered": "bad",
    "claimed": "busy",
    "backoff": "wait",
    "reclaimable": "wait",
    "unclaimed": "wait",
}


@dataclass(slots=True, eq=False)
class Item:
    """A node in its place, or what stands for nodes that are not drawn."""

    node: Node | None
    depth: int
    hidden: tuple[Node, ...] = ()
    """Those that are not drawn; there are more below them."""
    children: list[Item] = field(default_factory=list["Item"])
    row: float = 0.0


def draw(graph: Graph, link: Link, *, most: int = MOST) -> Markup:
    """The graph as HTML: the drawing, and the same as a nested list.

    The event that was asked for has the id `asked`. Costs the nodes of the graph.
    """
    roots = layout(graph.roots, most=most)
    items = list(_each(roots))
    width = COLUMN * (1 + max((each.depth for each in items), default=0)) - 40 + 2 * _EDGE
    height = ROW * round(1 + max((each.row for each in items), default=0)) + _EDGE
    edges = [_edge(parent, child) for parent in items for child in parent.children]
    svg = Markup(
        '<svg class="graph" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="group" '
        'aria-label="What came of the event">{2}{3}</svg>'
    ).format(
        width,
        height,
        Markup("").join(edges),
        Markup("").join(_box(each, link) for each in items),
    )
    return Markup(
        '<div class="graph-scroll" tabindex="0" role="region" aria-label="Causal graph">{}</div>'
        "<details><summary>As a list</summary>{}</details>"
    ).format(svg, _listed(roots, link))


# -- layout ----------------------------------------------------------------------------------------


def layout(roots: Iterable[Node], *, most: int = MOST) -> list[Item]:
    """The nodes that are drawn, each at its place; some `most` of them.

    So many children of each node as fit are drawn, and those on the way to the event that was asked
    for. A chain that is too long even so is cut.
    """
    forest = tuple(roots)
    kept = _way_to_asked(forest)
    drawn: list[Item] = []
    for siblings in _SIBLINGS:  # the most that fit
        drawn, number = _chosen(forest, kept, siblings, most)
        if number <= most:
            break
    row = 0
    for item in _after_children(drawn):
        if item.children:
            item.row = (item.children[0].row + item.children[-1].row) / 2
        else:
            item.row, row = row, row + 1
    return drawn


def _chosen(
    forest: tuple[Node, ...], kept: set[int], siblings: int, most: int
) -> tuple[list[Item], int]:
    """Each node with that many children, and how many there are; at the least they are cut."""
    top = Item(None, -1)
    waiting: deque[tuple[Item, tuple[Node, ...]]] = deque([(top, forest)])
    number = 0
    while waiting:
        parent, children = waiting.popleft()
        room = siblings
        if siblings == _SIBLINGS[-1] and number >= most:
            room = 0
        shown = [each for n, each in enumerate(children) if n < room or id(each) in kept]
        drawn = {id(each) for each in shown}
        hidden = tuple(each for each in children if id(each) not in drawn)
        for node in shown:
            item = Item(node, parent.depth + 1)
            parent.children.append(item)
            waiting.append((item, tuple(node.children)))
        if hidden:
            parent.children.append(Item(None, parent.depth + 1, hidden))
        number += len(parent.children)
    return top.children, number


def _way_to_asked(forest: tuple[Node, ...]) -> set[int]:
    """The event that was asked for, and what it came of."""
    above: dict[int, Node | None] = {id(each): None for each in forest}
    waiting = list(forest)
    while waiting:
        node = waiting.pop()
        if node.asked:
            way: set[int] = set()
            here: Node | None = node
            while here is not None:
                way.add(id(here))
                here = above[id(here)]
            return way
        for child in node.children:
            above[id(child)] = node
            waiting.append(child)
    return set()


def _each(roots: Iterable[Item]) -> Iterator[Item]:
    """Every item, each before those below it."""
    waiting = list(roots)[::-1]
    while waiting:
        item = waiting.pop()
        yield item
        waiting += reversed(item.children)


def _after_children(roots: Iterable[Item]) -> Iterator[Item]:
    """Every item, each after those below it; without recursion, since a chain may be long."""
    waiting = [(item, False) for item in list(roots)[::-1]]
    while waiting:
        item, seen = waiting.pop()
        if seen or not item.children:
            yield item
        else:
            waiting.append((item, True))
            waiting += ((child, False) for child in reversed(item.children))


# -- drawing ---------------------------------------------------------------------------------------


def _place(item: Item) -> tuple[int, float]:
    """The upper left corner."""
    return _EDGE + COLUMN * item.depth, _EDGE + ROW * item.row


def _edge(parent: Item, child: Item) -> Markup:
    (left, top), (right, end) = _place(parent), _place(child)
    start, middle, end = top + HEIGHT / 2, (left + WIDTH + right) / 2, end + HEIGHT / 2
    dashed = "edge waits" if child.node is not None and child.node.waits else "edge"
    return Markup('<path class="{}" d="M{} {}C{} {} {} {} {} {}"/>').format(
        dashed, left + WIDTH, start, middle, start, middle, end, right, end
    )


def _box(item: Item, link: Link) -> Markup:
    left, top = _place(item)
    node, marks = item.node, ["more"]
    if node is not None:
        marks = [node.kind, _tone(node)]
        marks += ["waits"] * node.waits + ["asked"] * node.asked
    kind = marks[0]
    name, told = _said(item)
    inner = Markup(
        '<title>{}</title><rect x="{}" y="{}" width="{}" height="{}" rx="{}"/>'
        '<svg x="{}" y="{}" width="{}" height="{}"><text x="10" y="16">{}</text>'
        '<text class="told" x="10" y="31">{}</text></svg>'
    ).format(
        *(_clipped(f"{kind} {name}: {told}", 2_000), left, top, WIDTH, HEIGHT),
        HEIGHT / 2 if kind == "handler" else 4,
        *(left, top, WIDTH - 8, HEIGHT),
        _clipped(name, _NAME) if kind != "handler" else _tail(name, _NAME),
        _clipped(told, _TOLD),
    )
    box = _linked(
        item,
        link,
        Markup('<g{} class="node {}">{}</g>').format(
            Markup(' id="asked"') if node is not None and node.asked else "", " ".join(marks), inner
        ),
    )
    again = _repeated(item.node, link)
    if again is None:
        return box
    return box + Markup('<g class="repeats">{}</g>').format(
        _anchor(again[1], Markup('<text x="{}" y="{}">{}</text>').format(left, top - 4, again[0]))
    )


def _listed(roots: list[Item], link: Link) -> Markup:
    """The same as a nested list."""
    parts: list[Markup] = []
    waiting: list[Item | Markup] = [Markup("</ul>"), *roots[::-1], Markup('<ul class="causes">')]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Markup):
            parts.append(item)
            continue
        name, told = _said(item)
        kind = "" if item.node is None else item.node.kind
        text = Markup("{} <bdi>{}</bdi>").format(kind, _clipped(name))
        shown = _linked(item, link, text)
        parts.append(Markup("<li>{}: <bdi>{}</bdi>").format(shown, visible(told)))
        again = _repeated(item.node, link)
        if again is not None:
            parts.append(Markup(" ({})").format(_anchor(again[1], again[0])))
        waiting.append(Markup("</li>"))
        if item.children:
            waiting += [Markup("</ul>"), *item.children[::-1], Markup("<ul>")]
    return Markup("").join(parts)


def _linked(item: Item, link: Link, shown: Markup) -> Markup:
    return shown if item.node is None else _anchor(link(item.node), shown)


def _anchor(address: str | None, shown: str) -> Markup:
    if address is None:
        return Markup("{}").format(shown)
    return Markup('<a href="{}">{}</a>').format(address, shown)


def _repeated(node: Node | None, link: Link) -> tuple[str, str | None] | None:
    """The event that an event repeats, which is not in its tree: a text and its address."""
    if node is None or node.repeats is None:
        return None
    first = Node("event", node.repeats, node.label, event_id=node.repeats)
    return f"↺ repeats {_clipped(node.repeats, _ID)}", link(first)


def _tone(node: Node) -> str:
    if node.kind == "attempt":
        return "wait" if node.state == "retry" else "bad"
    return _TONES.get(node.state or "", "")


def _said(item: Item) -> tuple[str, str]:
    """The name of a node, and what is told of it."""
    node = item.node
    if node is None:
        kinds = Counter(_word(each) for each in item.hidden)
        found = ", ".join(f"{number:,} {word}" for word, number in kinds.most_common(3))
        return f"{len(item.hidden):,} more", found
    at = None if node.at is None else f"{node.at:%H:%M:%S} UTC"
    took = None if node.seconds is None else _length(node.seconds)
    if node.kind == "commit":
        return f"commit {node.id}", ", ".join(filter(None, (at, node.label)))
    if node.kind == "attempt":
        return node.label, ", ".join(filter(None, (f"attempt {node.id}", node.state, took)))
    if node.kind == "event":
        archived = None if node.archived is None else "archived"
        return node.label, ", ".join(filter(None, (at, archived)))
    tried = f"{node.attempts} attempts" if node.attempts > 1 else None
    return node.label, ", ".join(filter(None, (_word(node), tried, took)))


def _word(node: Node) -> str:
    if node.kind != "handler":
        return node.kind
    return "waits" if node.waits else (node.state or "handler").replace("_", " ")


def _length(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def _clipped(text: str, most: int = _LONGEST) -> str:
    """The beginning of a text, as it can be seen."""
    text = visible(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _tail(text: str, most: int) -> str:
    """Its end, which says more of `module:function`."""
    text = visible(text)
    return text if len(text) <= most else f"…{text[1 - most :]}"
