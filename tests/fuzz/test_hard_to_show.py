"""Values that Python cannot write down: what is wrong with them is said all the same."""

from __future__ import annotations

import pytest

from ontologia import OntologiaConfig, Schedule, Session, codec
from ontologia.errors import OntologiaError, StoreOpenError, shown
from ontologia.testing import ManualClock
from tests.fuzz.world import Fuzzed, FuzzedEvent, filled, fuzzed

LONG = 10**5000  # Python writes no integer of so many digits


class Mute:
    def __repr__(self) -> str:
        raise RuntimeError("not a word")


@pytest.fixture
def session(tmp_path):
    config = OntologiaConfig(clock=ManualClock())
    with Session(str(tmp_path / "fuzz.db"), config=config) as opened:
        yield filled(opened)
        opened.discard()


TOLD = {
    "encode": lambda _, value: codec.encode({"a": [value]}),
    "a number": lambda _, value: fuzzed("1", number=value),
    "an instant": lambda _, value: fuzzed("1", at=value),
    "a choice": lambda _, value: fuzzed("1", hue=value),
    "a key": lambda _, value: fuzzed(value),
    "inside": lambda session, value: session.ensure(fuzzed("1", data={"a": value})),
    "a payload": lambda session, value: session.commit(
        event=FuzzedEvent(text="a", data={"a": value})
    ),
    "priority": lambda _, value: FuzzedEvent(text="a", priority=value),
    "limit": lambda session, value: session.query().entities(Fuzzed).limit(value),
    "as_of": lambda session, value: session.query().entities(Fuzzed).as_of(value),
    "==": lambda _, value: Fuzzed.number == value,
    "<": lambda _, value: Fuzzed.ratio < value,
    "in_": lambda _, value: Fuzzed.text.in_([value]),
    "== inside": lambda _, value: Fuzzed.data["a"] == value,
    "a step": lambda _, value: Fuzzed.data[value],
    "diff": lambda session, value: session.diff(0, value),
    "commit_at": lambda session, value: session.commit_at(value),
    "list_commits": lambda session, value: session.list_commits(limit=value),
    "list_events": lambda session, value: session.event_store.list_events("default", limit=value),
    "delay": lambda session, value: session.defer(FuzzedEvent(text="a"), delay=value),
    "namespace": lambda _, value: Session("sqlite://", namespace=value),
    "a setting": lambda _, value: OntologiaConfig(lock_timeout_ms=value),
    "cron": lambda _, value: Schedule(FuzzedEvent(text="a"), value),
}


@pytest.mark.parametrize("tell", TOLD.values(), ids=TOLD)
def test_a_number_too_long_to_show_is_refused_with_an_error_of_the_package(session, tell):
    with pytest.raises(OntologiaError):
        tell(session, LONG)


# Whether it is one of the choices pydantic asks of its repr.
@pytest.mark.parametrize("name", [name for name in TOLD if name != "a choice"])
def test_an_object_that_will_not_be_shown_is_refused_likewise(session, name):
    with pytest.raises(OntologiaError):
        TOLD[name](session, Mute())


def test_what_is_shown_instead_says_what_it_is():
    assert shown(LONG) == "<int that cannot be shown>"
    assert shown(Mute()) == "<Mute that cannot be shown>"
    assert shown("a") == "'a'"


@pytest.mark.parametrize(
    "uri", ["half \udcff.db", "sqlite:///half \udcff.db", "postgresql://\udcff/d"]
)
def test_a_place_whose_name_is_no_unicode_is_refused(uri, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(StoreOpenError, match=r"no UTF-8|cannot be read"):
        Session(uri)

    assert list(tmp_path.iterdir()) == []


def test_a_setting_past_a_hundred_years_is_refused():
    with pytest.raises(OntologiaError, match="less than or equal to"):
        OntologiaConfig(event_retention_ms=10**15)
