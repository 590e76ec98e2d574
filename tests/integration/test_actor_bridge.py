"""A store for programs in any language: `State.*`, `Event.*`, `Command.Dispatch`, on real sockets."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import asynccontextmanager

import pytest

from ontologia import Session
from ontologia.actors import ActorLoop
from ontologia.actors.bridge import bridged
from ontologia.commands import Env
from ontologia.errors import ActorBootError
from tests.integration import actor_store
from tests.integration.actor_store import (
    BridgeBerth,
    BridgeMoors,
    BridgeSkipper,
    BridgeTideTurned,
)
from tests.integration.actor_world import connected, echoing, serving


@asynccontextmanager
async def store(uri, tmp_path, capabilities=(), *, typed=True):
    types = {"entity_types": [BridgeSkipper, BridgeBerth], "relation_types": [BridgeMoors]}
    with (
        Session(uri, **types if typed else {}) as session,
        Env(session, modules=[actor_store]) as env,
    ):
        path = tmp_path / "o.sock"
        known = bridged(env, list(capabilities))
        async with serving(path, known), connected(path) as client:
            yield client, session


@pytest.mark.req("CQR-087")
def test_what_is_wrong_with_ones_own_capability_is_said_by_its_name(tmp_path):
    _, echo = echoing()
    wrong = dataclasses.replace(echo, id="wrong", inbound=str)
    worse = dataclasses.replace(echo, id="worse", subscribes=None)

    with Session(str(tmp_path / "o.db")) as session, pytest.raises(ActorBootError) as raised:
        ActorLoop(bridged(session, [wrong, worse]))

    assert raised.value.problems == [
        "wrong: inbound: str is not a class derived from Message",
        "worse: subscribes must be a list of types, got None",
    ]


def command(type, data):
    return {"type": type, "data": data, "kind": "command"}


async def ensured(client, **data):
    answer = await client.ask(**command("State.Ensure", data))
    assert answer["kind"] == "reply", answer
    return answer["data"]


def skipper(key="s1", rank="mate", **more):
    return {"type": "BridgeSkipper", "fields": {"id": key, "rank": rank, **more}}


def mooring(fee=3):
    return {"type": "BridgeMoors", "left": "s1", "right": 7, "fields": {"season": 1, "fee": fee}}


BERTH = {"type": "BridgeBerth", "fields": {"number": 7}}
THAT = {"type": "BridgeMoors", "left": "s1", "right": 7, "instance": 1}


def test_what_is_ensured_can_be_asked_for(uri, tmp_path):
    async def main():
        async with store(uri, tmp_path) as (client, _):
            first = await ensured(client, objects=[skipper(), BERTH, mooring()])
            again = await ensured(client, objects=[skipper()])
            entity = await client.ask("State.Get", {"type": "BridgeSkipper", "key": "s1"})
            berth = await client.ask("State.Get", {"type": "BridgeBerth", "key": 7})
            relation = await client.ask("State.Get", THAT)
            return first, again, entity["data"], berth["data"], relation["data"]

    first, again, entity, berth, relation = asyncio.run(main())

    assert first == {"commitId": 1, "eventId": None}
    assert again == {"commitId": None, "eventId": None}
    fields = {"id": "s1", "rank": "mate", "voyages": 0}
    assert entity == {"type": "BridgeSkipper", "key": "s1", "commitId": 1, "fields": fields}
    assert berth["fields"] == {"number": 7}
    assert (relation["left"], relation["right"], relation["instance"]) == ("s1", "7", "1")
    assert relation["fields"] == {"season": 1, "fee": 3}


def test_a_query_filters_sorts_pages_and_looks_back(uri, tmp_path):
    async def main():
        async with store(uri, tmp_path) as (client, _):
            crew = [skipper(f"s{n}", "mate" if n % 2 else "captain", voyages=n) for n in range(6)]
            await ensured(client, objects=crew)
            await ensured(client, objects=[BERTH, mooring(), skipper("s1", "captain")])

            async def keys(**data):
                answer = await client.ask("State.Query", {"type": "BridgeSkipper", **data})
                return [each["key"] for each in answer["data"]["objects"]]

            captains = await keys(where=[["rank", "=", "captain"]], orderBy="voyages desc")
            before = await keys(where=[["rank", "=", "captain"]], asOf=1)
            either = await keys(where=["|", ["voyages", ">", 4], ["id", "in", ["s0"]]])
            page = await keys(orderBy="id", limit=2, offset=3)
            ends = await client.ask(
                "State.Query", {"type": "BridgeMoors", "where": [["left_key", "=", "s1"]]}
            )
            return captains, before, either, page, ends["data"]["objects"]

    captains, before, either, page, [end] = asyncio.run(main())

    assert captains == ["s4", "s2", "s0", "s1"]
    assert before == ["s0", "s2", "s4"]
    assert either == ["s0", "s5"]
    assert page == ["s3", "s4"]
    assert end["fields"]["fee"] == 3


def test_the_history_of_an_object_has_its_end(uri, tmp_path):
    async def main():
        async with store(uri, tmp_path) as (client, _):
            await ensured(client, objects=[skipper(), BERTH, mooring()])
            await ensured(client, objects=[skipper(rank="captain"), mooring(4)])
            gone = [{"type": "BridgeSkipper", "key": "s1"}, THAT]
            await ensured(client, delete=gone)
            one = await client.ask("State.History", {"type": "BridgeSkipper", "key": "s1"})
            since = await client.ask(
                "State.History", {"type": "BridgeSkipper", "key": "s1", "since": 1}
            )
            other = await client.ask("State.History", THAT)
            return [each["data"]["versions"] for each in (one, since, other)]

    one, since, other = asyncio.run(main())

    assert [(v["commitId"], v["fields"]["rank"], v.get("deleted", False)) for v in one] == [
        (1, "mate", False),
        (2, "captain", False),
        (3, "captain", True),
    ]
    assert [v["commitId"] for v in since] == [2, 3]
    assert [(v["fields"]["fee"], v.get("deleted", False)) for v in other] == [
        (3, False),
        (4, False),
        (4, True),
    ]


def test_a_change_and_the_event_that_announces_it_are_one(uri, tmp_path):
    async def main():
        async with store(uri, tmp_path) as (client, session):
            event = {"type": "skipper.hired", "payload": {"id": "s1"}}
            answer = await client.ask(
                **command("State.Ensure", {"objects": [skipper()], "event": event}),
                correlation="c-1",
            )
            refused = await client.ask(
                **command(
                    "State.Ensure",
                    {"objects": [skipper("s2")], "event": event, "expectedHead": 0},
                )
            )
            shown = await client.ask("Event.Inspect", {"eventId": answer["data"]["eventId"]})
            events = session.event_store.list_events(session.namespace)
            return answer["data"], refused["data"], shown["data"], events, session.head

    done, refused, shown, events, head = asyncio.run(main())

    assert done["commitId"] == 1
    assert refused["code"] == 409
    assert (shown["type"], shown["payload"]) == ("skipper.hired", {"id": "s1"})
    assert shown["correlationId"] == "c-1"
    assert (len(events), head) == (1, 1)


def test_types_are_known_from_the_store_alone(uri, tmp_path):
    with Session(uri, entity_types=[BridgeSkipper, BridgeBerth]) as session:
        session.ensure(BridgeSkipper(id="s1", rank="mate"))
        session.commit()

    async def main():
        async with store(uri, tmp_path, typed=False) as (client, _):
            await ensured(client, objects=[skipper(rank="captain", voyages=1)])
            return await client.ask("State.Get", {"type": "BridgeSkipper", "key": "s1"})

    assert asyncio.run(main())["data"]["fields"] == {"id": "s1", "rank": "captain", "voyages": 1}


@pytest.mark.req("CQR-051")
@pytest.mark.parametrize(
    ("type", "kind", "data", "code", "said"),
    [
        ("State.Get", "query", {"type": "BridgeSkipper", "key": "no"}, 404, "there is no"),
        ("State.Get", "query", {"type": "BridgeSkiper", "key": "s1"}, 404, "knows no type"),
        ("State.Get", "query", {"type": "BridgeSkipper"}, 400, "give the key"),
        ("State.Get", "query", {"type": "BridgeSkipper", "left": "a", "right": "b"}, 422, "entity"),
        ("State.Get", "query", {"type": "BridgeMoors", "left": "a", "right": 1}, 422, "season"),
        ("State.Get", "query", {"type": "BridgeBerth", "key": "x"}, 422, "number"),
        ("State.Get", "query", {"type": "BridgeSkipper", "key": "a", "x": 1}, 400, "x"),
        ("State.History", "query", {"type": "BridgeSkipper", "key": "no"}, 404, "never was"),
        ("State.Query", "query", {"type": "BridgeSkipper", "where": [["x", "=", 1]]}, 422, "no field"),
        ("State.Query", "query", {"type": "BridgeSkipper", "where": [["id", "~", 1]]}, 422, "compares"),
        ("State.Query", "query", {"type": "BridgeSkipper", "limit": 0}, 400, "limit"),
        ("State.Query", "query", {"type": "BridgeSkipper", "limit": 10**6}, 400, "limit"),
        ("State.Ensure", "command", {"objects": [{"type": "BridgeSkipper", "fields": {"id": "a"}}]}, 422, "rank"),
        ("State.Ensure", "command", {"objects": [{"type": "No", "fields": {}}]}, 404, "knows no"),
        ("Event.Inspect", "query", {"eventId": "no"}, 404, "there is no event"),
        ("Event.Publish", "command", {"type": "*"}, 422, "stands for all"),
        ("Event.Publish", "command", {"type": "a", "delayMs": 1, "dueAt": 1}, 400, "not both"),
        ("Event.Publish", "command", {"type": "a", "dueAt": 1e300}, 422, "calendar"),
        ("Event.Publish", "command", {"type": "bridge.tide.turned", "payload": {}}, 422, "height"),
        ("Event.Publish", "command", {"type": "bridge.tide.turned", "payload": {"height": 1, "x": 1}}, 422, "'x'"),
        ("Command.Dispatch", "command", {"name": "bridge.nothing"}, 404, "no handler"),
        ("Command.Dispatch", "command", {"name": "bridge.fail", "payload": {"how": "value"}}, 422, "too heavy"),
        ("Command.Dispatch", "command", {"name": "bridge.fail", "payload": {"how": "permission"}}, 403, "not yours"),
        ("Command.Dispatch", "command", {"name": "bridge.fail", "payload": {"how": "conflict"}}, 409, "b1"),
        ("Command.Dispatch", "command", {"name": "bridge.fail", "payload": {"how": "head"}}, 409, "head"),
        ("Command.Dispatch", "command", {"name": "bridge.fail", "payload": {"how": "missing"}}, 404, "crane 7"),
        ("Command.Dispatch", "command", {"name": "bridge.fail", "payload": {"how": "busy"}}, 503, "somebody"),
        ("Command.Dispatch", "command", {"name": "bridge.fail", "payload": {"how": "key"}}, 500, "the log has"),
        ("Command.Dispatch", "command", {"name": "bridge.fail", "payload": {"how": "file"}}, 500, "the log has"),
        ("Command.Dispatch", "command", {"name": "bridge.fail", "payload": {"how": "exit"}}, 500, "the log has"),
    ],
)  # fmt: skip
def test_what_goes_wrong_has_the_code_that_http_has_for_it(
    uri, tmp_path, type, kind, data, code, said
):
    async def main():
        async with store(uri, tmp_path) as (client, session):
            answer = await client.ask(type, data, kind=kind)
            return answer, await client.ask("System.Describe"), session.head

    answer, after, head = asyncio.run(main())

    assert (answer["kind"], answer["type"]) == ("error", type)
    assert answer["data"]["code"] == code, answer
    assert said in answer["data"]["message"]
    assert "secret" not in str(answer)
    assert after["kind"] == "reply", "the loop goes on"
    assert head == 0, "something was written"


def test_a_command_is_carried_out_and_once_under_a_key(uri, tmp_path):
    async def main():
        async with store(uri, tmp_path) as (client, _):
            data = {"name": "bridge.lay", "payload": {"color": "red"}}
            plain = await client.ask(**command("Command.Dispatch", data))
            keyed = {**data, "idempotencyKey": "k-1"}
            first = await client.ask(**command("Command.Dispatch", keyed))
            second = await client.ask(**command("Command.Dispatch", keyed))
            keyed["payload"] = {"color": "blue"}
            other = await client.ask(**command("Command.Dispatch", keyed))
            found = await client.ask("State.Query", {"type": "bridge.buoy"})
            return plain, first, second, other, found["data"]["objects"]

    plain, first, second, other, buoys = asyncio.run(main())

    assert plain["data"]["result"]["color"] == "red"
    assert first["data"] == second["data"]
    assert other["data"]["code"] == 422
    assert len(buoys) == 2


def test_an_event_is_published_now_or_later_and_once_under_a_key(uri, tmp_path):
    async def main():
        async with store(uri, tmp_path) as (client, session):

            async def publish(**data):
                answer = await client.ask(
                    **command("Event.Publish", {"type": "bridge.tide.turned", **data})
                )
                return answer["data"]

            now = await publish(payload={"height": 1}, dedupKey="k")
            again = await publish(payload={"height": 2}, dedupKey="k")
            later = await publish(payload={"height": 3}, delayMs=3_600_000)
            found = session.event_store.list_events(session.namespace)
            hidden = await client.ask("Event.Inspect", {"eventId": later["eventId"]})
            return now, again, [each["id"] for each in found], hidden["data"]["code"]

    now, again, stored, hidden = asyncio.run(main())

    assert now["stored"]
    assert again == {"eventId": now["eventId"], "stored": False}
    assert stored == [now["eventId"]]
    assert hidden == 404, "it is not announced yet"
    assert BridgeTideTurned.__event_type__ == "bridge.tide.turned"


def test_everything_that_can_be_asked_is_described(uri, tmp_path):
    async def main():
        _, echo = echoing()
        async with store(uri, tmp_path, [echo]) as (client, _):
            return (await client.ask("System.Describe"))["data"]

    described = asyncio.run(main())
    handles = {
        (each["kind"], each["type"]): each["schema"]
        for capability in described["capabilities"]
        for each in capability["handles"]
    }

    assert {type for _, type in handles} >= {
        "State.Get", "State.Query", "State.Ensure", "State.History", "Event.Publish",
        "Event.Inspect", "Command.Dispatch", "System.Describe", "Timer.Set", "Timer.Cancel",
        "Echo.Ask", "Echo.Set",
    }  # fmt: skip
    publish = handles["command", "Event.Publish"]
    assert publish["properties"]["type"]["const"] == "Event.Publish"
    assert "delayMs" in publish["$defs"]["PublishData"]["properties"]
    assert "bridge.lay" in described["commands"]
