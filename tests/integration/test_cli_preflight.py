"""`ontologia preflight`: exit codes, tables, JSON, and stores that cannot be opened as they are."""

from __future__ import annotations

import json
import sys
from itertools import count

import pytest

from ontologia import Entity, Event, Field, Session
from ontologia.store.sqlite.layout import LAYOUT
from tests.integration.commands import at_a_terminal, invoke

names = count(1)
HANDLERS = """
from ontologia import Event, Field, on_event


class FlightBooked(Event):
    seat: Field[str]
    meal: Field[str]{default}


@on_event(FlightBooked, name="book")
def book(ctx):
    pass
"""
FITS, FITS_NOT = HANDLERS.format(default=' = "none"'), HANDLERS.format(default="")
MODELS = """
from ontologia import Entity, Event, Field, Schedule


class Plane(Entity):
    id: Field[str]


class Departed(Event):
    pass


hourly = Schedule(event=Departed(), cron="0 * * * *")
"""


class FlightBooked(Event):
    seat: Field[str]


class Plane(Entity):
    id: Field[str]


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module; its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text):
        name = f"preflight_{next(names)}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


@pytest.fixture
def airport(uri):
    """Events wait there for the handler `book`."""
    with Session(uri) as session:
        session.event_store.consumers.register("default", "book", ["flight.booked"])
        session.commit(event=[FlightBooked(seat=f"{row}A") for row in range(1, 231)])
    return uri


@pytest.mark.req("NEW-160")
def test_the_exit_code_says_whether_something_would_break(airport, module):
    fits, fits_not = module(FITS), module(FITS_NOT)

    fine = invoke("preflight", fits, "--datastore-uri", airport)
    broken = invoke("preflight", fits_not, "--datastore-uri", airport)
    elsewhere = invoke("preflight", fits_not, "--datastore-uri", airport, "--namespace", "quiet")

    assert fine.exit_code == elsewhere.exit_code == 0, fine.stderr
    assert broken.exit_code == 3
    assert fine.stdout.splitlines() == [
        "Effect\tAbout\tWhat\tWhat helps",
        f"informs\tlayout\tlayout {LAYOUT}, which is that of this version of Ontologia\t-",
        "Read 200 payloads of 1 type, a sample: --all reads all.",
        "Nothing breaks.",
    ]
    *_, read, total = broken.stdout.splitlines()
    [row] = [line for line in broken.stdout.splitlines() if line.startswith("breaks")]
    assert "200 of 200 waiting payloads of flight.booked cannot be read as FlightBooked" in row
    assert "meal is missing" in row
    assert read == "Read 200 payloads of 1 type, a sample: --all reads all."
    assert total == "1 finding would break the deployment."


@pytest.mark.req("NEW-160", "NEW-163")
def test_programs_get_everything_in_one_value(airport, module):
    program = (module(FITS_NOT), module(MODELS))

    done = invoke("preflight", *program, "--all", "--json", "--datastore-uri", airport)

    found = json.loads(done.stdout)
    assert done.exit_code == 3
    assert found["breaks"] is True
    assert found["namespace"] == "default"
    assert found["layout"]["found"] == found["layout"]["known"] == LAYOUT
    [unreadable] = found["payloads"]
    assert (unreadable["effect"], unreadable["count"]) == ("breaks", 230)
    assert found["read"] == [
        {"type": "flight.booked", "state": "waiting", "read": 230, "unreadable": 230}
        | {"complete": True}
    ]
    assert [each["change"] for each in found["schedules"]] == ["new"]  # of the second module
    assert found["types"] == found["sessions"] == []
    assert found["longest_attempt"] is None


@pytest.mark.req("NEW-160")
def test_a_module_may_show_what_another_has(airport, module):
    name = module(FITS)

    done = invoke("preflight", name, module(f"from {name} import *"), "--datastore-uri", airport)

    assert done.exit_code == 0


@pytest.mark.req("NEW-161")
def test_upgraders_may_be_in_a_module_of_their_own(uri, module, monkeypatch):
    from ontologia.schema import upgraders

    monkeypatch.setattr(upgraders, "_registered", {})
    with Session(uri) as session:
        session.ensure(Plane(id="p1"))
    after = module(
        MODELS.replace("    id: Field[str]\n", "    id: Field[str]\n    seats: Field[int]\n")
    )
    step = module(
        "from ontologia import upgrader\n\n"
        "@upgrader('Plane', from_version=1)\n"
        "def seated(fields):\n    return fields | {'seats': 1}\n"
    )

    without = invoke("preflight", after, "--datastore-uri", uri)
    with_it = invoke("preflight", after, "--upgraders", step, "--datastore-uri", uri)

    assert without.exit_code == 3
    assert '@upgrader("Plane", from_version=1)' in without.stdout
    assert with_it.exit_code == 0
    assert with_it.stdout.splitlines()[-1] == "Nothing breaks; 1 warning."


@pytest.mark.req("NEW-166")
@pytest.mark.parametrize("change", [-1, 1])
def test_a_store_of_another_layout_is_not_touched(airport, module, ask_store, change):
    ask_store(airport, f"UPDATE ontologia_layout SET version = version + {change}")

    done = invoke("preflight", module(FITS), "--json", "--datastore-uri", airport)

    found = json.loads(done.stdout)
    assert done.exit_code == 3
    assert found["breaks"] is True
    assert (found["layout"]["found"], found["layout"]["known"]) == (LAYOUT + change, LAYOUT)
    words = "brings to" if change < 0 else f"knows layouts up to {LAYOUT}"
    assert words in found["layout"]["what"]
    stored = ask_store(airport, "SELECT version FROM ontologia_layout")
    assert [row[0] for row in stored] == [LAYOUT + change]


@pytest.mark.req("NEW-166")
def test_a_store_that_is_not_there_or_does_not_answer_is_an_error(place, module, tmp_path):
    program = module(FITS)

    missing = invoke("preflight", program, "--datastore-uri", place("sqlite"))
    server = "postgresql://nobody@127.0.0.1:1/none?connect_timeout=1"
    unreachable = invoke("preflight", program, "--datastore-uri", server)

    assert missing.exit_code == 4
    assert "there is no store at" in missing.stderr
    assert "hint: ontologia init makes one" in missing.stderr
    assert not list(tmp_path.glob("*.db"))
    assert unreachable.exit_code == 5


@pytest.mark.thorough
@pytest.mark.req("NEW-160")
def test_a_terminal_has_a_table(airport, module, tmp_path):
    program = module(FITS_NOT)

    code, shown = at_a_terminal("preflight", program, "--datastore-uri", airport, cwd=tmp_path)

    assert code == 3
    assert "What helps" in shown
    assert "1 finding would break the deployment." in shown
    assert sys.modules.get(program) is None  # it was another process
