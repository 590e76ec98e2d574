"""The causal graph: nothing overlaps, nothing is lost without a word, nothing is markup."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontologia.runtime.views.graph import Graph, Node
from ontologia.web.console.graph_svg import COLUMN, HEIGHT, ROW, WIDTH, Item, draw, layout
from ontologia.web.console.rendering import visible
from ontologia_conformance.tiers import examples

pytestmark = pytest.mark.req("NEW-243")
KINDS = ("event", "handler", "attempt", "commit")
HOSTILE = (
    '"><img src=x onerror=alert(1)>',
    "</script><script>alert(1)</script>",
    "</title></svg><script>alert(1)</script>",
    "' onload='alert(1)",
    "javascript:alert(1)",
    "\u202eabc\u2066",
    "&lt;b&gt; {{ 7 * 7 }} {0} %s",
    "\x1b[31m\x00",
)


def link(node: Node) -> str:
    return f"/{node.kind}?id={node.id}"


trees = st.recursive(
    st.builds(Node, kind=st.sampled_from(KINDS), id=st.just("n"), label=st.just("n")),
    lambda below: st.builds(
        Node,
        kind=st.sampled_from(KINDS),
        id=st.just("n"),
        label=st.just("n"),
        children=st.lists(below, max_size=6),
    ),
    max_leaves=40,
)


def below(items: list[Item]) -> Iterator[Item]:
    for item in items:
        yield item
        yield from below(item.children)


def nodes(roots: tuple[Node, ...]) -> list[Node]:
    return list(Graph("root", roots, ()))


@examples(200)
@given(forest=st.lists(trees, max_size=4))
def test_no_two_nodes_overlap_and_a_parent_is_in_the_middle_of_its_children(
    forest: list[Node],
) -> None:
    roots = layout(forest)
    items = list(below(roots))

    assert sorted(map(id, nodes(tuple(forest)))) == sorted(id(each.node) for each in items)
    columns: dict[int, list[float]] = {}
    for item in items:
        columns.setdefault(item.depth, []).append(item.row)
        for child in item.children:
            assert child.depth == item.depth + 1
        rows = [child.row for child in item.children]
        assert rows == sorted(rows)
        if rows:
            assert item.row == (rows[0] + rows[-1]) / 2
    for rows in columns.values():
        rows.sort()
        assert all(after - before >= 1 for before, after in pairwise(rows))
    assert (ROW > HEIGHT, COLUMN > WIDTH) == (True, True)


@examples(100)
@given(forest=st.lists(trees, min_size=1, max_size=4), most=st.integers(1, 30), data=st.data())
def test_what_is_not_drawn_is_counted_and_what_was_asked_for_is_drawn(
    forest: list[Node], most: int, data: st.DataObject
) -> None:
    everything = nodes(tuple(forest))
    asked = data.draw(st.sampled_from(everything))
    asked.asked = True

    items = list(below(layout(forest, most=most)))

    drawn = [each.node for each in items if each.node is not None]
    hidden = [node for each in items for node in nodes(each.hidden)]
    assert sorted(map(id, drawn + hidden)) == sorted(map(id, everything))
    assert any(node is asked for node in drawn)
    asked.asked = False


def fan(number: int) -> Node:
    commit = Node("commit", "7", "handler fan", event_id="e")
    commit.children = [
        Node("event", f"x{n}", "paid", children=[Node("handler", "a", "a", state="acked")])
        for n in range(number)
    ]
    return Node("event", "e", "placed", children=[commit])


def test_siblings_collapse_above_the_bound() -> None:
    assert len(list(below(layout([fan(249)])))) == 500
    items = list(below(layout([fan(2_000)])))

    [more] = [each for each in items if each.node is None]
    assert (len(items), len(more.hidden)) == (203, 1_900)
    drawing = str(draw(Graph("e", (fan(2_000),), ()), link))
    assert "1,900 more" in drawing
    assert "1,900 event" in drawing


def test_a_long_chain_is_cut_and_needs_no_recursion() -> None:
    first = node = Node("event", "0", "n")
    for number in range(1, 5_000):
        node.children = [Node("event", str(number), "n")]
        node = node.children[0]

    items = layout([first], most=500)

    assert 500 <= sum(1 for _ in _flat(items)) <= 502


def _flat(items: list[Item]) -> Iterator[Item]:
    while items:
        yield from items
        items = [child for each in items for child in each.children]


class Page(HTMLParser):
    """What a browser makes of it: tags, the values of attributes, and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.mark.parametrize("text", HOSTILE)
def test_stored_text_is_text(text: str) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    children = [
        Node(kind, text, text, state=text, at=at, event_id=text, handler=text) for kind in KINDS
    ]
    root = Node("event", text, text, at=at, repeats=text, children=children, archived=text)

    page = Page(str(draw(Graph(text, (root,), ()), link)))

    assert set(page.tags) <= {
        *("div", "svg", "path", "g", "a", "rect", "text", "title", "details", "summary"),
        *("ul", "li", "bdi"),
    }
    names = {name for name, _ in page.attributes}
    assert "style" not in names
    assert not [name for name in names if name.startswith("on")]
    assert all(str(value).startswith("/") for name, value in page.attributes if name == "href")
    assert any(str(visible(text)) in each for each in page.texts)


def test_each_node_leads_to_its_page_and_a_replay_to_what_it_repeats() -> None:
    waiting = Node("handler", "ship", "ship", state="unclaimed")
    root = Node("event", "e2", "placed", repeats="e1", children=[waiting], asked=True)

    page = Page(drawing := str(draw(Graph("e2", (root,), ()), link)))

    found = [value for name, value in page.attributes if name == "href"]
    assert sorted(map(str, found)) == sorted(
        2 * ["/event?id=e2", "/event?id=e1", "/handler?id=ship"]
    )
    assert "↺ repeats e1" in page.texts
    assert re.search(r'class="edge waits"', drawing)
    assert re.search(r'class="node handler wait waits"', drawing)
    assert re.search(r'id="asked" class="node event  asked"', drawing)
    assert str(draw(Graph("e2", (root,), ()), lambda _: None)).count("<a ") == 0
