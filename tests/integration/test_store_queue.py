"""The queue in the store: leases, crashes, bad rows, and one transaction with everything else."""

from __future__ import annotations

import logging
import signal
import threading

import pytest

from ontologia import Event, Field, Session, on_event
from ontologia.errors import (
    ConsumerBusyError,
    EventLoopLimitError,
    IntegrityError,
    InvalidValueError,
    LeaseExpiredError,
    LockContentionError,
    SessionClosedError,
    UnknownReceiptError,
)
from ontologia.queues import DomainEvent, EventWorker, StoreEventQueue
from ontologia.queues.current import delivered
from ontologia.runtime.commits import WriteRequest
from ontologia.runtime.session import core_of
from ontologia_conformance.queue_world import (
    DEAD,
    PATIENCE,
    Env,
    event,
    fill,
    numbers,
    somebody_waits,
    take,
)
from tests.integration.processes import Process
from tests.integration.running import statuses, until
from tests.shop import Customer

pytestmark = pytest.mark.each_database

GROUP = "worker:default"


class CratePacked(Event):
    number: Field[int]


@pytest.fixture
def queue(session):
    return StoreEventQueue(session)


@pytest.fixture
def other(open_session):
    return StoreEventQueue(open_session())


def claim_of(session, given: DomainEvent, group: str = GROUP) -> dict:
    claims = session.event_store.inspect_event(given.event_id)["claims"]
    return next((each for each in claims if each["handler_id"] == group), {})


def let_leases_end(clock, *queues: StoreEventQueue) -> None:
    """As if the processes of these queues had stood still for longer than a lease."""
    for queue in queues:
        if queue._source._maintenance is not None:
            queue._source._maintenance.stop()
    clock.advance(seconds=31)


# -- leases ---------------------------------------------------------------------------------------


@pytest.mark.req("C-158", "EDE-046", "EDE-050")
def test_what_a_worker_held_too_long_is_anothers_as_the_next_attempt(session, clock, queue, other):
    fill(queue, 1)
    take(queue)
    let_leases_end(clock, queue)

    [second] = take(other)

    assert (numbers([second]), second.attempt_number) == ([1], 2)
    other.ack(second.receipt_handle)
    other.settle()


@pytest.mark.req("EDE-048")
def test_a_delivery_whose_lease_ran_out_cannot_be_ended(session, clock, queue):
    fill(queue, 1, 2, 3, 4)
    batch = take(queue)
    let_leases_end(clock, queue)

    with pytest.raises(UnknownReceiptError, match="its lease ran out"):
        queue.nack(batch[0].receipt_handle, retry_after_seconds=0)
    with pytest.raises(UnknownReceiptError):
        queue.dead_letter(batch[1].receipt_handle, reason="late")
    with pytest.raises(UnknownReceiptError):
        queue.claim_of(batch[2].receipt_handle)
    with pytest.raises(UnknownReceiptError, match="its lease ran out"):
        queue.ack(batch[3].receipt_handle)

    assert session.event_store.list_dead_letters("default") == []
    for number in (1, 2, 3, 4):
        [again] = take(queue)
        assert (numbers([again]), again.attempt_number) == ([number], 2)
        queue.ack(again.receipt_handle)


def test_what_waits_in_a_batch_keeps_its_lease_and_what_is_handled_does_not(clock, queue):
    fill(queue, 1, 2, 3)
    batch = take(queue)
    claims = [queue.claim_of(delivery.receipt_handle) for delivery in batch]

    for _ in range(4):
        before = claims[2].lease_until
        clock.advance(seconds=10)
        until(lambda before=before: claims[2].lease_until > before)

    with pytest.raises(UnknownReceiptError):
        queue.nack(batch[0].receipt_handle, retry_after_seconds=0)
    queue.nack(batch[1].receipt_handle, retry_after_seconds=0)
    queue.nack(batch[2].receipt_handle, retry_after_seconds=0)


def test_two_batches_have_two_that_are_handled(clock, queue):
    fill(queue, 1, 2, 3, 4)
    first, second = take(queue, 2), take(queue, 2)

    idle = {claim.event.id for claim in queue._inbox.renewable()}

    assert idle == {first[1].event.event_id, second[1].event.event_id}


def test_acknowledgements_are_written_soon_without_another_word(session, queue):
    [given] = fill(queue, 1)
    queue.ack(take(queue)[0].receipt_handle)

    until(lambda: claim_of(session, given)["ack_at"])


def test_a_commit_is_fenced_by_the_delivery_it_belongs_to(session, clock, queue):
    fill(queue, 1)
    claim = queue.claim_of(take(queue)[0].receipt_handle)
    let_leases_end(clock, queue)

    unit = WriteRequest(announcements=[queue.announcement(event(2))], claim=claim)
    with pytest.raises(LeaseExpiredError):
        core_of(session).commits.write(unit)


@pytest.mark.req("EDE-046")
@pytest.mark.parametrize("kept", [True, False])
def test_what_was_acked_is_written_when_a_program_ends_without_closing(session, uri, queue, kept):
    [given] = fill(queue, 1)
    program = """
        from ontologia.queues import StoreEventQueue
        from ontologia.engine.maintenance import Maintenance

        Maintenance.nudge = lambda self: None  # as if the program ended before its next turn

        def work():
            queue = StoreEventQueue(Session(sys.argv[1]))
            [delivery] = queue.dequeue(1, 60)
            queue._source._maintenance.stop()
            queue.ack(delivery.receipt_handle)
            return queue

        kept = work() if sys.argv[2] == "True" else [work(), None][1]
        report("done")
    """
    with Process(program, uri, kept) as process:
        assert process.report() == "done"
        assert process.popen.wait(PATIENCE) == 0

    assert claim_of(session, given)["ack_at"] is not None


# -- crashes --------------------------------------------------------------------------------------


def test_what_was_tried_before_comes_alone(queue):
    fill(queue, *range(6))
    for delivery in take(queue, 3):
        queue.nack(delivery.receipt_handle, retry_after_seconds=0)

    batches = [take(queue) for _ in range(4)]

    assert [numbers(batch) for batch in batches] == [[0], [1], [2], [3, 4, 5]]


def test_what_was_tried_before_comes_alone_between_others(queue):
    fill(queue, *range(6))
    for delivery in take(queue):
        if delivery.event.payload["number"] in (0, 2):
            queue.nack(delivery.receipt_handle, retry_after_seconds=0)
        else:
            queue.abandon(delivery.receipt_handle)

    batches = [take(queue) for _ in range(4)]

    assert [numbers(batch) for batch in batches] == [[0], [1], [2], [3, 4, 5]]


def test_what_was_there_when_a_process_died_is_the_only_one_in_flight(clock, queue, other):
    fill(queue, 1, 2)
    take(queue)
    let_leases_end(clock, queue)
    fill(other, 3)

    [first] = take(other)
    assert take(other) == []
    other.ack(first.receipt_handle)
    [second] = take(other)
    assert take(other) == []
    other.ack(second.receipt_handle)

    assert numbers([first, second, *take(other)]) == [1, 2, 3]


def test_what_must_be_alone_is_waited_for(clock, queue, other):
    fill(queue, 1, 2)
    take(queue)
    let_leases_end(clock, queue)
    [first] = take(other)

    with somebody_waits(other) as waiting:
        other.ack(first.receipt_handle)
        assert numbers(waiting.result(PATIENCE)) == [2]


def test_one_that_is_taken_at_a_time_is_claimed_at_a_time(session, queue):
    given = fill(queue, 1, 2)

    take(queue, 1)

    assert claim_of(session, given[0])
    assert not claim_of(session, given[1])


def test_what_was_claimed_and_delivered_to_nobody_is_released_untried(queue, other):
    fill(queue, *range(6))
    [first] = take(queue, 1)
    queue.nack(first.receipt_handle, retry_after_seconds=0)
    assert numbers(take(queue)) == [0]  # alone, since it was tried before; the others wait

    queue.settle()

    rest = take(other)
    assert [(numbers([each]), each.attempt_number) for each in rest] == [
        ([number], 1) for number in range(1, 6)
    ]


@pytest.mark.req("EDE-061")
def test_a_worker_that_stops_holds_nothing_back(queue, other):
    fill(queue, *range(100))

    def handle(given, env) -> None:
        if given.payload["number"] == 35:
            worker.stop()

    worker = EventWorker(Env(queue, {"parcel.posted": [handle]}))
    worker.run_forever()

    rest = take(other)
    assert (numbers(rest)[0], rest[0].attempt_number) == (36, 1)
    assert queue._inbox.renewable() == []


# -- rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", ["[1]", "{broken", "7"])
def test_a_row_that_cannot_be_read_is_buried_and_the_others_come(session, queue, direct, payload):
    bad, good = fill(queue, 1, 2)
    direct("UPDATE events SET payload = ? WHERE id = ?", (payload, bad.event_id))

    [delivery] = take(queue)

    assert delivery.event.event_id == good.event_id
    [letter] = session.event_store.list_dead_letters("default")
    assert (letter["event_id"], letter["attempts"]) == (bad.event_id, 1)
    assert "InvalidValueError" in letter["last_error"]


def test_an_event_is_enqueued_once(queue):
    given = event(1)
    queue.enqueue(given)

    with pytest.raises(IntegrityError, match=given.event_id):
        queue.enqueue(given)

    assert len(take(queue)) == 1


def test_a_payload_has_a_limit(open_session):
    queue = StoreEventQueue(open_session(settings={"max_payload_bytes": 30}))

    with pytest.raises(InvalidValueError, match="max_payload_bytes is 30"):
        queue.enqueue(DomainEvent.build(name="a", payload={"text": "x" * 30}))


def test_a_chain_has_an_end(queue):
    long = DomainEvent("a", {}, "id", event().occurred_at, root_event_id="root", chain_depth=21)

    with pytest.raises(EventLoopLimitError, match="hop 21"):
        queue.enqueue(long)


@pytest.mark.parametrize("field", ["name", "event_id", "tenant_id", "root_event_id"])
def test_what_a_store_cannot_keep_is_refused(queue, field):
    values = {"name": "a", "payload": {}, "event_id": "1", "occurred_at": event().occurred_at}

    with pytest.raises(InvalidValueError):
        queue.enqueue(DomainEvent(**(values | {field: "nul\0"})))


@pytest.mark.req("EDE-082")
def test_an_event_is_stored_with_the_unit_of_work_or_not_at_all(session, queue):
    intents = core_of(session).new_intents()
    intents.ensure(Customer(id="c1", name="Ada"))
    batch = intents.snapshot()
    units = [
        WriteRequest(batch, announcements=[queue.announcement(event(n))], expected_head=head)
        for n, head in ((1, 99), (2, 0))
    ]

    with pytest.raises(Exception, match="expected head 99"):
        core_of(session).commits.write(units[0])
    core_of(session).commits.write(units[1])
    session.discard()

    [delivery] = take(queue)
    assert numbers([delivery]) == [2]
    row = session.event_store.inspect_event(delivery.event.event_id)
    assert (row["source"], row["correlation_id"]) == ("commit:1", None)


def test_what_a_handler_announces_says_who_did(session, queue):
    fill(queue, 1)

    def answer(given, env):
        queue.enqueue(event(2, name="parcel.answered"))
        worker.stop()

    worker = EventWorker(Env(queue, {"parcel.posted": [answer]}))
    worker.run_forever()

    [delivery] = take(queue)
    assert session.event_store.inspect_event(delivery.event.event_id)["source"] == GROUP


def test_an_attempt_remembers_the_commit_it_began_with(session, queue):
    given = fill(queue, 1, 2)
    seen = []

    def commit(each, env):
        seen.append(delivered.get().claim.read_commit)
        session.ensure(Customer(id=f"c{len(seen)}", name="Ada"))
        session.commit()
        if len(seen) == 2:
            worker.stop()

    worker = EventWorker(Env(queue, {"parcel.posted": [commit]}))
    worker.run_forever()

    assert seen == [0, 1]
    assert [claim_of(session, each)["read_commit"] for each in given] == [0, 1]


# -- beside everything else -----------------------------------------------------------------------


def test_a_group_is_given_what_sessions_commit_beside_typed_handlers(session, queue):
    handled = []

    @on_event(CratePacked, name="pack")
    def pack(ctx) -> None:
        handled.append(ctx.event.number)

    session.commit(event=CratePacked(number=7))
    session.run([pack], max_iterations=1)

    [delivery] = take(queue)

    assert handled == [7]
    assert (delivery.event.name, delivery.event.payload) == ("crate.packed", {"number": 7})


def test_each_group_is_given_every_event_also_those_from_before_it_was_there(open_session, queue):
    fill(queue, 1, 2)
    mail = StoreEventQueue(open_session(), group="mail")

    assert numbers(take(queue)) == [1, 2]
    assert numbers(take(mail)) == [1, 2]


def test_namespaces_are_kept_apart(open_session, queue):
    fill(queue, 1)

    assert take(StoreEventQueue(open_session(namespace="elsewhere"))) == []


def test_a_deferred_event_comes_when_it_is_due(session, clock, queue):
    session.defer(CratePacked(number=1), delay=60)
    assert take(queue) == []

    clock.advance(seconds=60)

    assert numbers(take(queue)) == [1]


def test_a_dead_letter_is_announced(session, queue):
    [given] = fill(queue, 1)

    queue.dead_letter(take(queue)[0].receipt_handle, reason="no van")

    [told] = queue.dequeue(10, 0)
    assert told.event.name == DEAD
    assert told.event.payload["event_id"] == given.event_id
    assert (told.event.causation_id, told.event.root_event_id) == (given.event_id,) * 2


def test_the_reason_of_a_failed_attempt_is_kept(session, queue):
    [given] = fill(queue, 1)

    queue.nack(take(queue)[0].receipt_handle, retry_after_seconds=60, reason="OSError: no van")

    claim = claim_of(session, given)
    assert (claim["attempts"], claim["last_error"]) == (1, "OSError: no van")


def test_a_paused_group_is_given_nothing(session, queue):
    assert take(queue) == []
    session.event_store.pause("default", GROUP)
    fill(queue, 1)

    assert take(queue) == []
    session.event_store.resume("default", GROUP)
    assert numbers(take(queue)) == [1]


def test_a_group_that_somebody_forgot_goes_on(session, queue, other):
    assert take(queue) == []
    with pytest.raises(ConsumerBusyError):
        other._session.event_store.forget("default", GROUP)
    core_of(session).end_session()
    other._session.event_store.forget("default", GROUP)
    fill(other, 1)

    assert numbers(take(queue)) == [1]


def test_a_group_that_somebody_forgot_while_it_waited_goes_on(session, queue, other):
    with somebody_waits(queue) as given:
        core_of(session).end_session()
        other._session.event_store.forget("default", GROUP)
        fill(other, 1)

        assert numbers(given.result(PATIENCE)) == [1]


# -- the end --------------------------------------------------------------------------------------


@pytest.mark.req("EDE-061")
def test_closing_the_session_closes_the_queue_and_hands_back(open_session, other):
    session = open_session()
    queue = StoreEventQueue(session)
    done, *_ = fill(queue, 1, 2, 3)
    first, *_ = take(queue)
    queue.ack(first.receipt_handle)

    session.close()

    with pytest.raises(SessionClosedError, match="the queue is closed"):
        take(queue)
    rest = take(other)
    assert (numbers(rest), [d.attempt_number for d in rest]) == ([2, 3], [1, 1])
    assert claim_of(other._session, done)["ack_at"]


@pytest.fixture
def working(queue):
    """A worker that runs in a thread, what it has seen, and what ended it."""
    seen, ended = [], []
    worker = EventWorker(Env(queue, {"parcel.posted": [lambda e, _: seen.append(numbers_of(e))]}))

    def run() -> None:
        try:
            worker.run_forever()
        except BaseException as error:  # noqa: BLE001 - the tests look at it
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    fill(queue, 1)
    until(lambda: seen)
    yield worker, thread, seen, ended
    worker.stop()
    thread.join(PATIENCE)


def numbers_of(given: DomainEvent) -> int:
    return given.payload["number"]


@pytest.mark.parametrize("closed", ["session", "queue"])
def test_closing_ends_an_idle_worker_and_says_why(session, queue, working, caplog, closed):
    _, thread, seen, ended = working
    until(lambda: statuses(session) == ["acked"])  # then it waits

    (session if closed == "session" else queue).close()
    thread.join(PATIENCE)

    assert [type(each) for each in ended] == [SessionClosedError]
    assert seen == [1]
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


def test_of_two_workers_the_first_that_ends_leaves_the_group_to_the_other(session, queue, working):
    another = EventWorker(Env(queue, {}))
    another.run_until_empty()

    with pytest.raises(ConsumerBusyError):
        session.event_store.forget("default", GROUP)


def test_a_database_that_is_busy_at_the_start_is_waited_for(session, queue, monkeypatch):
    fill(queue, 1)
    events = core_of(session).store.events
    register, calls = events.register_session, []

    def busy(*args):
        calls.append(args)
        if len(calls) == 1:
            raise LockContentionError("another", 1)
        register(*args)

    monkeypatch.setattr(events, "register_session", busy)
    seen = []

    EventWorker(Env(queue, {"parcel.posted": [lambda e, _: seen.append(e)]})).run_until_empty()

    assert len(seen) == 1


def test_an_event_that_could_not_be_released_at_once_is_released_later(session, queue, monkeypatch):
    fill(queue, 1)
    claims = core_of(session).store.events.claims
    abandon, calls = claims.abandon, []

    def away(released):
        calls.append(released)
        if len(calls) == 1:
            raise LockContentionError("another", 1)
        return abandon(released)

    def interrupted(given, env) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(claims, "abandon", away)
    with pytest.raises(KeyboardInterrupt):
        EventWorker(Env(queue, {"parcel.posted": [interrupted]})).run_forever()

    [delivery] = take(queue)
    assert (numbers([delivery]), delivery.attempt_number) == ([1], 1)


def test_a_worker_that_a_signal_has_stopped_runs_no_more(queue):
    fill(queue, 1, 2, 3)
    seen = []

    def handle(given, env) -> None:
        seen.append(given.payload["number"])
        signal.raise_signal(signal.SIGTERM)

    worker = EventWorker(Env(queue, {"parcel.posted": [handle]}))
    worker.run_until_empty()
    worker.run_until_empty()

    assert seen == [1]


def test_a_queue_that_is_closed_leaves_the_session_open(session, queue):
    take(queue)
    queue.close()

    assert session.head == 0
    assert core_of(session).on_close == []
    assert session.event_store.forget("default", GROUP)


def test_a_queue_does_not_tell_secrets(queue, uri):
    assert "default" in queue.describe()
    assert Session.__repr__(queue._session).split()[1] in queue.describe()


def test_a_queue_that_only_takes_in_registers_nobody(session, queue):
    fill(queue, 1)

    assert session.event_store.list_consumers("default") == []


def test_a_worker_says_on_what_it_works(queue, caplog):
    worker = EventWorker(Env(queue, {}))
    worker.stop()

    with caplog.at_level(logging.INFO):
        worker.run_forever()

    assert queue.describe() in caplog.text
