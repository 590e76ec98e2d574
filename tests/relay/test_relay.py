"""A relay over its store: batches, other relays, targets that are away or refuse."""

from __future__ import annotations

import threading

import pytest

from ontologia.errors import BrokerError, ConfigTypeError, ConsumerBusyError
from ontologia.relay import Relay
from ontologia.relay import relay as relaying
from ontologia.runtime.session import core_of
from ontologia.store.s3.bucket import Bucket
from ontologia_conformance.backends import NAMES
from tests.integration.running import until
from tests.relay.world import Listing, carry, emit, ids, send_without_ack

pytestmark = pytest.mark.each_database


@pytest.fixture(scope="session", params=[name for name in NAMES if name != "postgres16"])
def backend(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def target():
    return Listing()


@pytest.mark.req("NEW-120")
def test_what_is_committed_is_sent_in_order_and_acked(session, target, monkeypatch):
    monkeypatch.setattr(relaying, "_BATCH", 3)
    sent = emit(session, *range(10))

    relay = Relay(session, target)
    relay.run_until_empty()

    assert target.sent == sent
    assert (relay.done, relay.lag()) == (10, 0)
    assert relay.health_snapshot()["lag"] == 0


@pytest.mark.req("NEW-120")
def test_a_relay_that_runs_sends_what_comes(session, open_session, target):
    relay = Relay(session, target)
    thread = threading.Thread(target=relay.run)
    thread.start()
    try:
        sent = emit(session, 1)
        until(lambda: target.sent == sent)
        sent += emit(open_session(), 2)  # of another process
        until(lambda: target.sent == sent)
    finally:
        relay.stop()
        thread.join()

    assert relay.lag() == 0


@pytest.mark.req("NEW-121")
def test_another_relay_waits_for_what_one_has_claimed(session, open_session, target):
    """And it sends first what that one did not."""
    sent = emit(session, 1, 2)
    second = Relay(open_session(), target)

    def fail(messages):
        emit(session, 3)
        assert claims_of(second) == []  # the other session, meanwhile
        raise BrokerError("the first relay fails here")

    target.on_send = fail
    with pytest.raises(BrokerError):
        Relay(session, target).run_until_empty()
    target.on_send = lambda messages: None
    second.run_until_empty()

    assert target.sent[:2] == sent
    assert len(target.sent) == 3


def claims_of(relay):
    """What a relay could claim now."""
    core = relay._core
    row = core.store.events.consumers.register(core.namespace, relay.name, relay._types)
    return core.store.events.claims.claim(
        row,
        relay._types,
        session_id=core.session_id,
        limit=10,
        lease_ms=1000,
        policy=relaying._POLICY,
        in_order=True,
    )


@pytest.mark.req("NEW-121")
def test_after_a_relay_that_died_its_events_are_sent_first(session, open_session, target, clock):
    sent = emit(session, 1, 2, 3)
    dead = Relay(session, target)
    assert [claim.event.id for claim in claims_of(dead)] == sent  # and then nothing is heard of it

    other = Relay(open_session(), target)
    assert claims_of(other) == []
    clock.advance(seconds=2)
    other.run_until_empty()

    assert target.sent == sent


@pytest.mark.req("NEW-120")
def test_a_target_that_is_away_is_waited_for(session, target, caplog):
    sent = emit(session, 1, 2)
    target.away = 2

    Relay(session, target).run_until_empty()

    assert target.sent == sent
    assert "the run goes on as soon as the target listing can be reached" in caplog.text


@pytest.mark.req("NEW-120")
def test_a_relay_is_stopped_while_its_target_is_away(session, target):
    sent = emit(session, 1, 2)
    relay = Relay(session, target)
    target.away = 1_000_000
    target.on_send = lambda messages: relay.stop()

    relay.run()

    assert relay.lag() == 2
    target.on_send, target.away = lambda messages: None, 0
    Relay(session, target).run_until_empty()
    assert target.sent == sent


@pytest.mark.req("NEW-124")
def test_what_the_target_refuses_for_good_is_a_dead_letter(session, target):
    [first, second, third] = emit(session, 1, 2, 3)
    target.refuses = {second}

    relay = Relay(session, target)
    relay.run_until_empty()

    dead = list(session.event_store.list_dead_letters("default"))
    assert [each["event_id"] for each in dead] == [second]
    assert "listing will not take it: no" in dead[0]["last_error"]
    assert [each for each in target.sent if each in ids(session)] == [first, third]
    assert (relay.done, relay.failed, relay.lag()) == (3, 1, 0)  # one tells of the dead letter


@pytest.mark.req("NEW-124")
@pytest.mark.parametrize("in_the_way", ["an event", "no event"])
def test_an_event_whose_id_another_store_has_used_is_a_dead_letter(
    session, tmp_path, open_session, s3_uri, in_the_way
):
    if in_the_way == "an event":
        other = open_session(uri=f"sqlite:///{tmp_path}/other.db")
        emit(other, 1, id="order-1")
        Relay(other, s3_uri).run_until_empty()
    else:
        Bucket(s3_uri).put("default/messages/order-1.json", b"[7]")
    emit(session, 2, id="order-1")
    emit(session, 3, id="order-2")

    relay = Relay(session, s3_uri)
    relay.run_until_empty()

    [dead] = session.event_store.list_dead_letters("default")
    assert dead["event_id"] == "order-1"
    assert "order-1.json is another event with this id" in dead["last_error"]
    assert (relay.failed, relay.lag()) == (1, 0)
    assert {"order-1.json", "order-2.json"} <= {
        each.key.rpartition("/")[2] for each in Bucket(s3_uri).listing("default/messages")
    }


@pytest.mark.req("NEW-120", "NEW-122")
def test_an_event_that_the_bucket_has_is_sent_again_without_harm(
    session, tmp_path, open_session, s3_uri
):
    """By the same store, whose relay ended before the ack, and by one that the event came to."""
    other = open_session(uri=f"sqlite:///{tmp_path}/other.db")
    emit(session, 1, 2, priority=7)
    carry(session, f"{s3_uri}/first", other)
    send_without_ack(session, s3_uri)

    for each in (session, other):
        again = Relay(each, s3_uri)
        again.run_until_empty()
        assert (again.done, again.failed, again.lag()) == (2, 0, 0)

    assert len(list(Bucket(s3_uri).listing("default/messages"))) == 2


@pytest.mark.req("NEW-120")
def test_an_object_that_is_deleted_while_it_is_in_the_way_is_written(session, s3_uri, proxy):
    """By a lifecycle rule of the bucket."""
    bucket = Bucket(s3_uri)
    bucket.put("default/messages/order-1.json", b"[7]")
    proxy.fail("GET", "order-1.json", first=lambda: bucket.delete("default/messages/order-1.json"))
    emit(session, 1, id="order-1")

    relay = Relay(session, s3_uri)
    relay.run_until_empty()

    assert (relay.done, relay.failed) == (1, 0)
    found = bucket.get("default/messages/order-1.json")
    assert found is not None
    assert b'"number":1' in found.body


@pytest.mark.req("NEW-120")
def test_an_error_of_the_target_ends_the_run_and_loses_nothing(session, target):
    sent = emit(session, 1, 2)

    def refuse(messages):
        raise BrokerError("the login was refused")

    target.on_send = refuse
    with pytest.raises(BrokerError, match="the login was refused"):
        Relay(session, target).run()

    target.on_send = lambda messages: None
    Relay(session, target).run_until_empty()
    assert target.sent == sent


@pytest.mark.req("NEW-120")
def test_one_session_runs_one_relay_of_a_target(session, target):
    emit(session, 1)
    second = Relay(session, target)

    def run_another(messages):
        with pytest.raises(ConsumerBusyError):
            second.run()

    target.on_send = run_another
    Relay(session, target).run_until_empty()

    assert len(target.sent) == 1


def test_types_are_a_list(session, target):
    with pytest.raises(ConfigTypeError, match="types takes a list"):
        Relay(session, target, types="barrel.filled")


@pytest.mark.req("NEW-125")
def test_what_waits_for_a_paused_relay_is_seen(session, target):
    emit(session, 1, 2)
    relay = Relay(session, target)
    assert relay.lag() == 2
    session.event_store.pause("default", relay.name)

    relay.run_until_empty()  # an operator holds it back

    assert target.sent == []
    [row] = [
        each
        for each in core_of(session).store.events.activity.waiting("default")
        if each["handler"] == relay.name and each["waiting"]
    ]
    assert row["waiting"] == 2
