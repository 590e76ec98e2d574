"""The page with the results of a run, and the picture beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench import machine
from bench.beside.contenders import everyone
from bench.beside.picture import drawn
from bench.beside.results import Figure
from bench.beside.table import COLUMNS, NAMES, absent_rows, rows, title

_WHY = {
    "enqueue-one": "An event is checked against its class and written with its lineage to the log "
    "and to what waits to be handed out; a mere queue writes one row that nobody looks at.",
    "drain-state": "A change of state here is a numbered commit with who made it and from which "
    "event, a version and the current object in a form that can be filtered; the others write "
    "two plain rows.",
    "latency": "The word that there is something to do follows the commit, and is no part of it: that "
    "would make commits wait for each other. The worker claims under a lease, and for one handler of "
    "several, each with its own claims. The slowest are outliers of single rounds.",
    "group-by": "Both walk an index; here the question is compiled each time, and the answer is given "
    "the types of the fields.",
    "memory": "The worker has the schema, the settings (pydantic), and the loop in memory; a mere queue is "
    "one module over its driver.",
    "processes-busy": "A process claims a batch of events; the tail of a short backlog can wait in "
    "one process while the others have nothing to do.",
}
_WHY["enqueue-many"] = _WHY["enqueue-one"]
_WHY["latency-loaded"] = _WHY["latency"]


def write_results(
    path: Path,
    figures: Sequence[Figure],
    absent: Mapping[str, str],
    *,
    size: str,
    rounds: int,
    server: str | None,
) -> None:
    """Write the page, in place of an earlier one, and the picture of the same name."""
    picture = path.with_suffix(".svg")
    picture.write_text(drawn(figures), encoding="utf-8")
    packages = sorted({package for each in everyone() for package in each.needs.values()})
    known = machine.versions(packages) | ({} if server is None else {"PostgreSQL": server})
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    about = (
        f"Written by `python -m bench.beside`, {now}, size `{size}`, {rounds} rounds, interleaved: "
        "medians, and the lowest and highest round. OF BARE is how many times the time, or "
        "memory, of the bare loop is needed. Figures mean something only beside the others of "
        "their run."
    )
    parts = (
        "# What was measured",
        about,
        f"- {machine.described()}\n- {machine.in_words(known)}",
        f"![A bar for each contender, the longer the better]({picture.name})",
        _table(figures, dict(absent)),
        "## Where somebody is ahead",
        _behind(figures),
        "## Who takes part, and what each promises",
        "\n".join(f"- **{each.name}** ({each.database}): {each.notes}" for each in everyone()),
    )
    text = "\n\n".join(parts)
    path.write_text(f"{text}\n", encoding="utf-8")


def _table(figures: Sequence[Figure], absent: dict[str, str]) -> str:
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    for row in (*rows(figures), *absent_rows(absent)):
        cells = [str(row[name]).replace("|", "\\|").replace("\n", " ") for name in NAMES]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _behind(figures: Sequence[Figure]) -> str:
    lines = [
        f"- {title(figure)}, {figure.database}: {figure.best_rival} is {1 / figure.margin:.2f} x "
        f"as good. {_WHY.get(figure.scenario, '')}".rstrip()
        for figure in figures
        if figure.margin is not None and figure.margin < 1
    ]
    return "\n".join(lines) or "Nobody, in any scenario of this run."
