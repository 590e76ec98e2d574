"""What clients may not say: nothing of the domain `Sys`, by whatever way."""

from __future__ import annotations

import asyncio

import pytest

from ontologia import Session
from ontologia.actors import ActorLoop, Message, UnixSocketAdapter
from ontologia.actors.bridge import bridged
from ontologia.actors.router import system_type_in
from tests.integration.actor_world import connected, echoing, eventually, line, listening

VICTIM = "asked-by-another"
ALARM = {"kind": "event", "type": "Sys.ActorFault", "data": {"capability": "echo", "error": "lie"}}
END = {"kind": "command", "type": "Sys.RequestTimeout", "data": {"requestId": VICTIM}}


def timer(template, **more):
    data = {"delayMs": 0, **more, "message": template}
    return {"kind": "command", "type": "Timer.Set", "data": data}


def due(template):
    """What a durable timer is in the store."""
    metadata = {"id": "forged", "timestamp": 1}
    command = timer(template, durable=True) | {"metadata": metadata}
    return {"loop": "default", "timerId": "durable-forged", "command": command}


def published(template):
    data = {"type": "actors.timer.due", "payload": due(template)}
    return {"kind": "command", "type": "Event.Publish", "data": data}


def announced(template):
    event = {"type": "actors.timer.due", "payload": due(template)}
    return {"kind": "command", "type": "State.Ensure", "data": {"event": event}}


WAYS = {
    "by itself": lambda sent: sent,
    "by a timer": timer,
    "by a timer of a timer": lambda sent: timer(timer(sent)),
    "by a durable timer": lambda sent: timer(sent, durable=True),
    "by a timer of a durable timer": lambda sent: timer(timer(sent), durable=True),
    "as a timer that is due": lambda sent: {
        "kind": "event",
        "type": "Actors.TimerDue",
        "data": due(sent),
    },
    "as one whose message sets another": lambda sent: {
        "kind": "event",
        "type": "Actors.TimerDue",
        "data": due(timer(sent)),
    },
    "by an event of the store": published,
    "by an event of the store that sets a timer": lambda sent: published(timer(sent)),
    "by an event with a change": announced,
    "by an event of the store that is called so": lambda sent: {
        "kind": "command",
        "type": "Event.Publish",
        "data": {"type": "sys.actor.fault", "payload": sent["data"]},
    },
}
REFUSED = [way for way in WAYS if way.startswith("by") and "event" not in way]


async def attacked(path, uri, sent):
    """What is said to a client that sends this, what becomes of another's request, and signals."""
    actor, echo = echoing()
    listener, ears = listening("Buoy.Lost", "Buoy.Rang", "Sys.ActorFault")
    with Session(uri) as session:
        known = bridged(session, [echo, ears])
        async with (
            ActorLoop(known, adapters=[UnixSocketAdapter(path)]),
            connected(path) as victim,
            connected(path) as other,
        ):
            await victim.send(line(data={"held": True}, id=VICTIM))
            await eventually(lambda: actor.seen)
            said = await tried(other, sent)
            # Behind it in the store, and then in the timer: when these are here, it was.
            await other.ask("Event.Publish", {"type": "buoy.lost"}, kind="command")
            await eventually(lambda: "Buoy.Lost" in types(listener))
            rings = timer({"kind": "event", "type": "Buoy.Rang", "data": {}}, delayMs=5)
            await other.ask("Timer.Set", rings["data"], kind="command")
            await eventually(lambda: "Buoy.Rang" in types(listener))
            actor.go.set()
            answer = await victim.read()
    forged = [each for each in listener.heard if "lie" in str(each.data.get("error"))]
    return said, answer, forged


async def tried(client, sent):
    """What is said about what is sent; what is taken and has no answer leaves nothing to say."""
    await client.send(line(**sent, id="tried"))
    if sent["kind"] == "event" or sent["type"] == "Sys.RequestTimeout":
        await client.send(line("No.Such", id="mark"))
        first = await client.read()
        return [] if first["metadata"]["causation"] == "mark" else [first, await client.read()][:1]
    return [await client.read()]


def types(listener):
    return [each.type for each in listener.heard]


@pytest.mark.parametrize("way", WAYS)
def test_no_client_ends_the_request_of_another(way, tmp_path, uri):
    said, answer, _ = asyncio.run(attacked(tmp_path / "o.sock", uri, WAYS[way](END)))

    assert answer["kind"] == "reply", answer
    assert answer["data"] == {"held": True}
    if way in REFUSED and way != "by itself":  # it may end its own by itself, without an answer
        [refused] = said
        assert (refused["kind"], refused["metadata"]["causation"]) == ("error", "tried")
        assert "Sys.RequestTimeout is for the loop to say" in refused["data"]["message"]


@pytest.mark.parametrize("way", WAYS)
def test_no_client_makes_a_signal(way, tmp_path, uri):
    said, _, forged = asyncio.run(attacked(tmp_path / "o.sock", uri, WAYS[way](ALARM)))

    assert forged == []
    if way in REFUSED:
        [refused] = said
        assert refused["type"] == "Sys.InvalidMessage"
        assert refused["data"]["code"] == 400
        assert "Sys.ActorFault is for the loop to say" in refused["data"]["message"]


def test_no_durable_timer_says_what_is_for_the_loop_to_say(uri):
    async def main():
        with Session(uri) as session:
            async with ActorLoop(bridged(session)) as loop:
                set_ = timer(ALARM, durable=True)
                answer = await loop.request(Message.command("Timer.Set", set_["data"]))
            return answer, session.event_store.list_events(session.namespace)

    answer, stored = asyncio.run(main())

    assert (answer.kind, answer.data["code"]) == ("error", 422)
    assert stored == []


@pytest.mark.parametrize(
    "data", [None, [], {}, {"message": None}, {"message": []}, {"message": {"type": 5}}]
)
def test_what_is_no_timer_has_no_type_in_it(data):
    assert system_type_in("Timer.Set", data) is None
