"""A handler that was renamed goes on where it was: nothing runs again, and nothing is lost."""

from __future__ import annotations

import threading

import pytest

from ontologia import Event, Field, on_event
from ontologia.errors import HandlerError, IntegrityError
from ontologia.runtime.session import core_of
from ontologia.store.events.store import EventStore
from tests.integration.running import running, until


class SongPlayed(Event):
    number: Field[int] = 0


def play(session, *numbers: int) -> list[str]:
    events = [SongPlayed(number=number) for number in numbers]
    for event in events:
        session.commit(event=event)
    return [event.id for event in events]


def chart(seen: list, name: str, *formerly: str, fails: tuple[int, ...] = ()):
    @on_event(SongPlayed, name=name, formerly=formerly, max_attempts=2)
    def count(ctx):
        seen.append((name, ctx.event.number, ctx.attempt))
        if ctx.event.number in fails:
            raise ValueError("no chart")

    return count


@pytest.mark.req("NEW-030")
@pytest.mark.parametrize("start", ["retained", "now"])
def test_a_renamed_handler_runs_what_was_not_finished_and_nothing_else(session, clock, start):
    seen: list = []
    play(session, 1, 2)
    session.run([chart(seen, "charts:old", fails=(2,))], max_iterations=1)
    play(session, 3)
    clock.advance(seconds=60)
    new = chart(seen, "charts:new", "charts:older", "charts:old", fails=(2,))

    session.run([new], max_iterations=1, start=start)

    assert seen == [
        ("charts:old", 1, 1),
        ("charts:old", 2, 1),
        ("charts:new", 2, 2),
        ("charts:new", 3, 1),
    ]
    assert [each["name"] for each in session.event_store.list_consumers("default")] == [
        "charts:new"
    ]
    [letter] = core_of(session).store.events.listings.dead_letters("default", 9)
    assert letter["attempts"] == 2
    assert session.event_store.check() == []


@pytest.mark.req("NEW-030")
def test_a_handler_waits_while_a_live_session_runs_its_old_name(
    session, open_session, clock, caplog
):
    seen: list = []
    other = open_session()
    handlers = [chart(seen, "charts:new", "charts:old"), chart(seen, "charts:more")]

    def names() -> list[str]:
        return [each["name"] for each in session.event_store.list_consumers("default")]

    with running(session, [chart(seen, "charts:old")]) as first:
        until(lambda: names() == ["charts:old"])
        with running(other, handlers):
            until(lambda: names() == ["charts:more", "charts:old"])
            play(other, 1)
            until(lambda: len(seen) == 2)
            clock.advance(seconds=5)  # it looks again, and says nothing
            play(other, 2)
            until(lambda: len(seen) == 4)
            session.stop()
            first.join(60)
            play(other, 3)
            until(lambda: len(seen) >= 5)  # 6 if its last look came after the first had stopped
            clock.advance(seconds=5)
            until(lambda: len(seen) == 6)

    assert names() == ["charts:more", "charts:new"]
    assert sorted(seen) == [
        *(("charts:more", number, 1) for number in (1, 2, 3)),
        ("charts:new", 3, 1),
        *(("charts:old", number, 1) for number in (1, 2)),
    ]
    told = [each.message for each in caplog.records if "waits" in each.message]
    waits = "charts:new waits: live sessions still run it by its former name charts:old"
    assert told == [f"{waits}: {session.session_id}"]
    assert session.event_store.check() == []


@pytest.mark.req("NEW-030")
def test_several_sessions_that_start_at_once_adopt_once(session, open_session):
    seen: list = []
    play(session, 1, 2)
    session.run([chart(seen, "charts:old", fails=(2,))], max_iterations=1)
    play(session, *range(3, 20))
    others = [open_session() for _ in range(4)]
    ready = threading.Barrier(len(others))

    def run(each) -> None:
        ready.wait(60)
        each.run([chart(seen, "charts:new", "charts:old")], max_iterations=1)

    threads = [threading.Thread(target=run, args=[each]) for each in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sorted(number for name, number, _ in seen if name == "charts:new") == list(range(3, 20))
    assert session.event_store.check() == []


@pytest.mark.req("NEW-030")
def test_an_adoption_that_fails_leaves_everything_as_it_was(session, refuse, sql):
    seen: list = []
    play(session, 1, 2)
    session.run([chart(seen, "charts:old", fails=(2,))], max_iterations=1)
    play(session, 3)
    events: EventStore = core_of(session).store.events

    def rows() -> list[list]:
        tables = ("consumers", "event_claims", "attempts", "ready", "subscriptions")
        return [sorted(map(str, sql(f"SELECT * FROM {table}"))) for table in tables]

    before = rows()
    allow = refuse("subscriptions", "type = 'song.played'")  # the last step of an adoption
    with pytest.raises(IntegrityError):
        events.consumers.register("default", "charts:new", ["song.played"], formerly=["charts:old"])

    assert rows() == before
    allow()
    session.run([chart(seen, "charts:new", "charts:old")], max_iterations=1)
    assert seen[2:] == [("charts:new", 3, 1)]
    assert session.event_store.check() == []


def test_two_handlers_of_a_run_cannot_both_have_had_a_name(session):
    old, new = chart([], "charts:old"), chart([], "charts:new", "charts:old")
    newer = chart([], "charts:newer", "charts:old")

    for both in ([old, new], [new, old], [new, newer]):
        with pytest.raises(HandlerError, match="formerly charts:old"):
            session.run(both, max_iterations=1)
    assert session.event_store.list_consumers("default") == []


@pytest.mark.parametrize("wrong", ["charts:old", [""], [7], 7, None])
def test_former_names_are_a_list_of_text(wrong):
    with pytest.raises(TypeError, match="formerly is a list of names"):
        on_event(SongPlayed, formerly=wrong)


def test_a_handler_is_not_formerly_what_it_is_now():
    with pytest.raises(ValueError, match="charts:new is called so now"):
        chart([], "charts:new", "charts:new")
