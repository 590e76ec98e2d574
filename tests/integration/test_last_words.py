"""What a handler says at its end: whatever the text is, the event is settled and the run goes on."""

from __future__ import annotations

import pytest

from ontologia import Discard, Event, EventDeadLetter, Field, Retry, on_event

LONG = 2_000_000


class Job(Event):
    number: Field[int] = 0


def announce(session, *numbers: int) -> list[str]:
    events = [Job(number=number) for number in numbers]
    for event in events:
        session.commit(event=event)
    return [event.id for event in events]


def shown(session, event_id: str) -> dict:
    return session.event_store.inspect_event(event_id)


def what_ends(session, handlers) -> str | None:
    """The error that ends a run, in letters that every terminal has."""
    try:
        session.run(handlers, max_iterations=1)
    except Exception as error:  # noqa: BLE001 - whatever it is, it should not be
        return ascii(error)[:300]
    return None


WORDS = {
    "U+0000": ("a bad \0 byte", "a bad \\0 byte"),
    "a lone surrogate": ("a bad \udcff name", "a bad \\udcff name"),
    "2 MB": ("x" * LONG, None),
}


@pytest.mark.req("NEW-024", "ONT-157", "NEW-064")
@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("kind", ["Discard", "Retry"])
def test_whatever_a_handler_says_at_its_end_the_run_goes_on(open_session, clock, kind, words):
    session = open_session(settings={"event_max_attempts": 2})
    said, kept = WORDS[words]
    seen = []

    @on_event(Job)
    def fail(ctx):
        seen.append(ctx.event.number)
        if ctx.event.number == 1 and ctx.attempt == 1:
            raise Discard(said) if kind == "Discard" else Retry(said, after=1)

    @on_event(EventDeadLetter)
    def mourn(ctx):
        seen.append(ctx.event.last_error)

    first, second = announce(session, 1, 2)
    assert what_ends(session, [fail, mourn]) is None

    told = shown(session, first)
    error = told["claims"][0]["last_error"]
    if kept is None:
        assert 1_000 < len(error) < 20_000
        assert error.endswith("x ...")
    else:
        assert error == kept
    assert told["attempts"][0]["error"] == error
    assert shown(session, second)["claims"][0]["ack_at"] is not None
    if kind == "Discard":
        assert seen == [1, 2, error]
        assert session.event_store.list_dead_letters("default")[0]["last_error"] == error
    else:
        assert seen == [1, 2]
        clock.advance(seconds=60)
        session.run([fail], max_iterations=1)
        assert shown(session, first)["claims"][0]["ack_at"] is not None
    assert session.event_store.check() == []


@pytest.mark.req("ONT-145", "NEW-065")
@pytest.mark.parametrize("limit", [1000, 40])
def test_a_limit_for_payloads_does_not_keep_a_long_error_from_being_told(
    open_session, clock, limit
):
    settings = {"max_payload_bytes": limit, "event_max_attempts": 1}
    session, told = open_session(settings=settings), []

    @on_event(Job)
    def fail(ctx):
        raise ValueError("x" * 5_000)

    @on_event(EventDeadLetter)
    def mourn(ctx):
        told.append((ctx.event.event_id, ctx.event.last_error))

    [event_id] = announce(session, 1)
    session.run([fail, mourn], max_iterations=1)

    assert told == [(event_id, "ValueError: " + "x" * 5_000)]
    assert session.event_store.check() == []
