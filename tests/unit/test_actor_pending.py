"""Requests of clients: whose they are, how they end, and that nobody gets another's."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ontologia.actors import ActorLoop, Message
from ontologia.actors.lanes import Lanes
from ontologia.actors.pending import Client, Entry, Peer, PendingTable, Program
from ontologia.actors.router import Router, RoutingTable
from ontologia.errors import InvalidValueError
from tests.unit.actor_world import MEMORY, Desk, are_empty, calm, ear, get, of, run, set_, until


def _numbered(id, type="Do.It", **data):
    return Message.from_data(
        {
            "kind": "command",
            "type": type,
            "data": data,
            "metadata": {"id": id, "timestamp": 1, "correlation": "corr-1"},
        }
    )


class Held:
    """An actor that answers when it is told to, in the order of its messages."""

    def __init__(self, type="Do.It", id="doer"):
        self.waiting: asyncio.Queue = asyncio.Queue()
        self.capability = of(self._handle, type=type, id=id)

    async def _handle(self, actor, message):
        go = asyncio.Event()
        self.waiting.put_nowait(go)
        await go.wait()
        actor.reply(message, message.data)

    async def answer(self):
        (await self.waiting.get()).set()


def _story(story, *capabilities, desks=None):
    desks = desks or [Desk()]

    async def told():
        async with ActorLoop(capabilities, adapters=desks) as loop:
            return await story(loop, *desks)

    return run(told())


@pytest.mark.req("CQR-079", "CQR-080")
def test_a_request_is_entered_before_it_is_dispatched_with_whose_it_is():
    router = Router(RoutingTable([MEMORY]), Lanes())

    router.receive(_numbered("1"), Client(Desk(), "c7"))
    router.receive(Message.event("Do.It"), Client(Desk(), "c7"))

    [entry] = router.pending.entries()
    assert (entry.request_id, entry.request_type) == ("1", "Do.It")
    assert (entry.adapter_id, entry.connection_id) == ("desk", "c7")
    assert (entry.correlation, entry.timeout_timer_id) == ("corr-1", None)


@pytest.mark.req("CQR-081")
@pytest.mark.parametrize("connection", ["c1", "c2"])
def test_a_duplicate_id_is_refused_on_its_own_connection_and_the_first_is_answered(connection):
    held = Held()

    async def story(loop, desk):
        desk.send(_numbered("1", n=1), "c1")
        refused = await desk.ask(_numbered("1", n=2), connection)
        await held.answer()
        await desk.wait_for(2 if connection == "c1" else 1, "c1")
        await calm(loop)
        return refused, desk.got["c1"][-1], loop.metrics()

    refused, answer, metrics = _story(story, held.capability)
    assert (refused.kind, refused.data["code"]) == ("error", 409)
    assert refused.metadata.causation == "1"
    assert answer.data == {"n": 1}
    assert metrics["signals"] == {}


@pytest.mark.req("CQR-075", "CQR-082")
def test_each_client_gets_its_own_answers():
    async def story(loop, one, two):
        await one.ask(set_("a", 1), "c1")
        requests = [(desk, c, get("a")) for desk in (one, two) for c in ("c1", "c2") for _ in "123"]
        for desk, connection, request in requests:
            desk.send(request, connection)
        await asyncio.gather(
            *[
                desk.wait_for(4 if (desk, c) == (one, "c1") else 3, c)
                for desk in (one, two)
                for c in ("c1", "c2")
            ]
        )
        return requests, loop.metrics()["pending"]["adapters"]

    one, two = Desk("one"), Desk("two")
    requests, left = _story(story, MEMORY, desks=[one, two])
    for desk in (one, two):
        for connection in ("c1", "c2"):
            mine = [r.metadata.id for d, c, r in requests if d is desk and c == connection]
            got = [each.metadata.causation for each in desk.got[connection]]
            assert got[-3:] == mine
    assert left == 0


@pytest.mark.req("CQR-085", "CQR-083")
def test_what_a_vanished_client_asked_for_is_forgotten_and_others_are_served():
    held = Held()
    listener, listening = ear("Sys.OrphanOutcome")

    async def story(loop, desk):
        desk.send(_numbered("1"), "gone")
        desk.send(_numbered("2"), "stays")
        await asyncio.sleep(0)
        desk.close("gone")
        desk.close("never came")
        left = loop.metrics()["pending"]["adapters"]
        await held.answer()
        await held.answer()
        await desk.wait_for(1, "stays")
        await listener.wait_for()
        return left, desk

    left, desk = _story(story, held.capability, listening)
    assert left == 1
    assert list(desk.got) == ["stays"]
    assert listener.heard[0].data["answers"] == "1"


@pytest.mark.req("CQR-085")
@pytest.mark.parametrize("before_dispatch", [True, False])
def test_an_id_used_again_does_not_get_the_outcome_of_the_first(before_dispatch):
    held = Held()

    async def story(loop, desk):
        desk.send(_numbered("1", n=1), "gone")
        if not before_dispatch:
            await calm_lanes(loop)
        desk.close("gone")
        desk.send(_numbered("1", n=2), "new")
        await held.answer()
        await held.answer()
        await desk.wait_for(1, "new")
        await calm(loop)
        return desk.got, loop.metrics()

    async def calm_lanes(loop):
        await until(lambda: are_empty(loop))

    got, metrics = _story(story, held.capability)
    assert [each.data for each in got["new"]] == [{"n": 2}]
    assert metrics["signals"] == {"Sys.OrphanOutcome": 1}


# -- timeouts -------------------------------------------------------------------------------------


@pytest.mark.req("CQR-065", "CQR-067", "CQR-068", "CQR-069", "CQR-070", "CQR-072", "CQR-084")
def test_a_request_without_an_outcome_in_time_gets_error_504_and_a_late_one_is_an_orphan():
    held = Held()
    listener, listening = ear("Sys.OrphanOutcome", "Sys.ActorFault", "Sys.TimerFired")

    async def story(loop, desk):
        answer = await desk.ask(_numbered("1"))
        left = loop.metrics()["pending"]["adapters"]
        await held.answer()
        await listener.wait_for(2)
        await calm(loop)
        again = desk.send(_numbered("2")) or await held.answer() or await desk.wait_for(2)
        return answer, left, again[-1]

    answer, left, again = _story(story, held.capability, listening, desks=[Desk(timeout=0.001)])
    assert (answer.kind, answer.type) == ("error", "Do.It")
    assert answer.data == {"code": 504, "message": "Request timed out", "capability": "doer"}
    assert (answer.metadata.causation, answer.metadata.correlation) == ("1", "corr-1")
    assert answer.metadata.id != "1"
    assert left == 0
    assert listener.types[:2] == ["Sys.TimerFired", "Sys.OrphanOutcome"]
    assert "Sys.ActorFault" not in listener.types
    assert again.metadata.causation == "2"


@pytest.mark.req("CQR-070", "CQR-071", "CQR-082", "CQR-085", "CQR-086")
@pytest.mark.parametrize("end", ["answered", "disconnected"])
def test_the_timer_of_a_request_is_set_and_cancelled_when_it_ends(end):
    held = Held()
    listener, listening = ear("Sys.TimerSet", "Sys.TimerCancelled", "Sys.OrphanOutcome")

    async def story(loop, desk):
        desk.send(_numbered("1"))
        await listener.wait_for(1)
        await until(lambda: loop.metrics()["pending"]["loop"] == 0)
        assert loop.metrics()["timers"] == 1
        if end == "answered":
            await held.answer()
        else:
            desk.close()
        await listener.wait_for(2)
        await until(lambda: loop.metrics()["pending"]["loop"] == 0)
        metrics = loop.metrics()
        if end == "disconnected":
            await held.answer()
        return metrics

    metrics = _story(story, held.capability, listening, desks=[Desk(timeout=3600)])
    assert metrics["timers"] == 0
    assert metrics["pending"] == {"adapters": 0, "actors": 0, "loop": 0}
    made, cancelled = listener.heard[:2]
    assert [made.type, cancelled.type] == ["Sys.TimerSet", "Sys.TimerCancelled"]
    assert made.data["timerId"] == cancelled.data["timerId"]


@pytest.mark.req("CQR-070")
def test_only_a_request_that_is_not_answered_at_once_has_a_timer():
    held = Held()
    listener, listening = ear("Sys.TimerSet", "Sys.TimerCancelled")

    async def story(loop, desk):
        for _ in range(10):
            await desk.ask(set_())
        desk.send(_numbered("slow"))
        await listener.wait_for()
        await until(lambda: loop.metrics()["pending"]["loop"] == 0)
        timers = loop.metrics()["timers"]
        await held.answer()
        await listener.wait_for(2)
        return timers

    timers = _story(story, held.capability, MEMORY, listening, desks=[Desk(timeout=3600)])
    assert timers == 1
    assert listener.types == ["Sys.TimerSet", "Sys.TimerCancelled"]
    assert listener.heard[0].metadata.correlation == "corr-1"


@pytest.mark.req("CQR-067", "CQR-070")
@pytest.mark.parametrize(("moment", "patience"), [(3600, 0.0), (3600, 0.001), (0.01, 0.02)])
def test_a_short_timeout_is_kept_beside_a_long_one(monkeypatch, moment, patience):
    monkeypatch.setattr("ontologia.actors.pending.TIMER_DELAY", moment)
    held = Held()

    async def story(loop, patient, hasty):
        patient.send(_numbered("1"))
        answer = await hasty.ask(_numbered("2"))
        return answer, dict(patient.got)

    desks = [Desk("patient", timeout=36_000), Desk("hasty", timeout=patience)]
    answer, others = _story(story, held.capability, desks=desks)
    assert (answer.data["code"], answer.metadata.causation) == (504, "2")
    assert others == {}


@pytest.mark.req("CQR-066", "CQR-067", "CQR-084")
def test_an_id_used_again_after_its_time_gets_neither_the_late_outcome_nor_the_late_timeout():
    held = Held()
    listener, listening = ear("Sys.OrphanOutcome")

    async def story(loop, desk):
        desk.send(_numbered("1", n=1))
        first = (await desk.wait_for(1))[0]
        desk.timeout = None
        desk.send(_numbered("1", n=2))
        late = Message.command("Sys.RequestTimeout", {"requestId": "1", "number": 0})
        loop.enqueue(late)
        await calm_lanes(loop)
        await held.answer()
        await listener.wait_for()
        between = list(desk.got["c1"])
        await held.answer()
        return first, between, (await desk.wait_for(2))[1]

    async def calm_lanes(loop):
        await until(lambda: are_empty(loop))

    first, between, second = _story(story, held.capability, listening, desks=[Desk(timeout=0.001)])
    assert first.data["code"] == 504
    assert between == [first]
    assert (second.kind, second.data) == ("reply", {"n": 2})


@pytest.mark.req("CQR-066")
def test_a_stale_timeout_is_ignored_without_a_word(caplog):
    async def story(loop, desk):
        loop.enqueue(Message.command("Sys.RequestTimeout", {"requestId": "nobody"}))
        loop.enqueue(Message.command("Sys.RequestTimeout", {"requestId": 5}))
        loop.enqueue(Message.command("Sys.RequestTimeout", []))
        await calm(loop)
        return loop.metrics()

    metrics = _story(story, MEMORY)
    assert metrics["signals"] == {}
    assert metrics["pending"]["loop"] == 0
    assert caplog.text == ""


@pytest.mark.req("CQR-065", "CQR-067")
def test_a_client_may_give_up_on_its_own_requests_alone_and_is_not_answered_for_it():
    held = Held()

    async def story(loop, desk):
        desk.send(_numbered("1"), "mine")
        desk.send(_numbered("g1", "Sys.RequestTimeout", requestId="1"), "other")
        await asyncio.sleep(0)
        await until(lambda: are_empty(loop))
        untouched = dict(desk.got)
        desk.send(_numbered("g2", "Sys.RequestTimeout", requestId="1"), "mine")
        await desk.wait_for(1, "mine")
        await held.answer()
        await calm(loop)
        return untouched, desk.got

    untouched, got = _story(story, held.capability)
    assert untouched == {}
    assert {name: [each.data["code"] for each in them] for name, them in got.items()} == {
        "mine": [504]
    }


@pytest.mark.req("CQR-037", "CQR-082")
@pytest.mark.parametrize("outcome", ["reply", "error"])
def test_a_client_cannot_give_the_outcome_of_a_request(outcome):
    held = Held()

    async def story(loop, desk):
        request = _numbered("1", n=1)
        desk.send(request, "asks")
        forged = request.reply({"n": 2}) if outcome == "reply" else request.error(500, "no")
        with pytest.raises(InvalidValueError, match=f"a {outcome} is for actors to give"):
            desk.send(forged, "other")
        await held.answer()
        await desk.wait_for(1, "asks")
        await calm(loop)
        return desk.got, loop.metrics()["signals"]

    got, signals = _story(story, held.capability)
    assert {name: [each.data for each in them] for name, them in got.items()} == {
        "asks": [{"n": 1}]
    }
    assert signals == {}


# -- the table against a model --------------------------------------------------------------------

_IDS = st.sampled_from(["1", "2", "3"])
_CONNECTIONS = st.sampled_from(["a", "b"])


class TableModel(RuleBasedStateMachine):
    """Dicts that say who waits for what; actors answer in order, so what they owe is a list."""

    def __init__(self):
        super().__init__()
        self.table, self.desk = PendingTable(), Desk()
        self.waits: dict[str, Entry] = {}
        self.owed: dict[str, list[Entry]] = {}

    @rule(id=_IDS, connection=_CONNECTIONS | st.just(None))
    def ask(self, id, connection):
        owner = Program() if connection is None else Client(self.desk, connection)
        entry = Entry(id, "Do.It", owner)

        assert self.table.add(entry) == (id not in self.waits)

        if self.waits.setdefault(id, entry) is entry:
            self.table.dispatched(entry, "doer")
            self.owed.setdefault(id, []).append(entry)

    @rule(id=_IDS)
    def answer(self, id):
        owed = self.owed.get(id)
        first = owed.pop(0) if owed else None
        wanted = first if first is not None and self.waits.get(id) is first else None

        assert self.table.resolve(id, "doer") is wanted

        if wanted is not None:
            del self.waits[id]

    @rule(id=_IDS)
    def time_out(self, id):
        assert self.table.abandon(id) is self.waits.pop(id, None)

    @rule(connection=_CONNECTIONS)
    def disconnect(self, connection):
        mine = [e for e in self.waits.values() if e.connection_id == connection]

        assert self.table.disconnect("desk", connection) == mine

        for entry in mine:
            del self.waits[entry.request_id]

    @invariant()
    def holds_what_waits(self):
        assert self.table.entries() == list(self.waits.values())
        assert len(self.table) == len(self.waits)
        asking = {("desk", e.connection_id) for e in self.waits.values() if e.connection_id}
        assert set(self.table._of_connection) == asking


TestTableModel = TableModel.TestCase
TestTableModel.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def test_what_was_abandoned_and_never_answered_does_not_pile_up(monkeypatch):
    monkeypatch.setattr("ontologia.actors.pending._MOST_ABANDONED", 10)
    table = PendingTable()

    def ask(n):
        entry = Entry(str(n), "Do.It", Peer("x"))
        table.add(entry)
        table.dispatched(entry, "doer")
        return entry

    for n in range(100):
        ask(n)
        table.abandon(str(n))

    again = {n: ask(n) for n in (89, 90, 99)}
    assert {n: table.resolve(str(n), "doer") for n in again} == {89: again[89], 90: None, 99: None}
