"""Tables at a terminal: whatever its width, ids and names can be copied out of them."""

from __future__ import annotations

import random
import re

import pytest
from rich.cells import cell_len

from ontologia import OntologiaConfig, Session
from ontologia.cli.output import _show_page
from ontologia.commands import Command, Env
from tests.integration.commands import at_a_terminal, invoke, two_hours_ago
from tests.integration.explained import fill
from tests.integration.freight import application

ID = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
TABLES = [
    ["commits"],
    ["events", "sessions"],
    ["events", "show"],
    ["events", "dead-letters"],
    ["query", "entities", "freight.shipment"],
]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with commits by hand, by handlers and by commands, and with a dead letter."""
    path = str(tmp_path_factory.mktemp("tables") / "shop.db")
    clock = two_hours_ago()
    with Session(path, config=OntologiaConfig(clock=clock)) as session:
        fill(session, clock)
        with Env(session, modules=[application()]) as env:
            record = env.models["freight.shipment"].create({"reference": "S"})
            env.dispatch(Command("shipment.confirm", {}, "freight.shipment", record.id))
    return path


@pytest.mark.parametrize("table", TABLES, ids=" ".join)
def test_no_id_is_broken_at_eighty_columns(shop: str, table: list[str]) -> None:
    where = ["--datastore-uri", shop]
    wanted = set(ID.findall(invoke(*table, *where).stdout))

    code, shown = at_a_terminal(*table, *where, columns=80)

    assert code == 0
    assert wanted
    assert {each for each in wanted if each not in shown} == set()


@pytest.mark.parametrize("columns", range(40, 160, 6))
def test_a_table_fits_its_terminal_and_breaks_no_word_that_could_be_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    chance, tables = random.Random(columns), 0
    for _ in range(60):
        names = [f"Column {number}" for number in range(chance.randint(1, 6))]
        page = [[_text(chance) for _ in names] for _ in range(chance.randint(1, 4))]

        _show_page(names, page)

        shown = capsys.readouterr().out
        whole = [word for row in page for text in row for word in text.split() if _is_whole(word)]
        assert [word for word in whole if word not in shown] == []
        if "─" in shown:  # and where it is no table, the terminal breaks its lines, not we
            tables += 1
            assert max(map(cell_len, shown.splitlines())) <= columns
    assert tables


def _text(chance: random.Random) -> str:
    id = f"{chance.getrandbits(32):08x}-a1e3-7374-88a9-{chance.getrandbits(48):012x}"
    return chance.choice(
        [
            *(id, f"command=order.place command_id={id}", f"{id} {id}", "-", "1,234"),
            *("2026-11-16 11:59:34", "shop.handlers.orders:charge_the_card", "漢字漢字 漢字"),
            *("OSError: words that go on for a while, as those of errors do", "x" * 100),
        ]
    )


def _is_whole(word: str) -> bool:
    return len(word) <= 40 or ID.search(word) is not None
