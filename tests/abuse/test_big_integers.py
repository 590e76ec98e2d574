"""Integers past 64 bits, at every door where JSON comes in: refused, and never bent into a float."""

from __future__ import annotations

import asyncio
import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from ontologia import Entity, Field, Session, codec
from ontologia.actors.bridge import bridged
from ontologia.commands import Env
from ontologia.errors import InvalidValueError
from ontologia.queues import DomainEvent
from tests.integration.actor_world import connected, serving
from tests.integration.commands import invoke
from tests.integration.web_world import client, crates, served

BIG, NEXT = 2**64, 2**64 + 1
TOO_LARGE = "does not fit in 64 bits"


class AbuseReading(Entity):
    id: Field[str] = Field(primary_key=True)
    data: Field[dict]


def stored(uri):
    """All JSON text that a store was given."""
    with Session(uri, entity_types=[AbuseReading]) as session:
        events = [each.payload for each in session.event_store.list_events("default")]
        return events + [each.data for each in session.query().entities(AbuseReading).collect()]


@pytest.mark.parametrize("number", [BIG, -(2**63) - 1, 10**19, -(10**300)])
@pytest.mark.parametrize("form", [str, str.encode])
def test_the_codec_gives_integers_exactly_so_that_they_can_be_refused(number, form):
    value = codec.decode(form(f'{{"a": ["1", {number}]}}'))

    assert value == {"a": ["1", number]}
    assert type(value["a"][1]) is int
    with pytest.raises(InvalidValueError, match=rf"value\.a\[1\]: {number} {TOO_LARGE}"):
        codec.encode(value)


@pytest.mark.parametrize(
    "text", ["1e300", "0.12345678901234567890123", '"18446744073709551616"', "9223372036854775807"]
)
def test_other_long_numbers_are_as_they_were(text):
    [value] = codec.decode(f"[{text}]")

    assert value == json.loads(text)
    assert codec.encode(value)


def test_a_long_number_in_deep_nesting_is_an_error_and_no_crash():
    text = "[" * 1020 + str(BIG) + "]" * 1020

    with pytest.raises(InvalidValueError):
        codec.encode(codec.decode(text))


def test_over_http_it_is_refused_with_its_place_and_under_a_key_too(uri):
    with (
        Env(uri, modules=["tests.integration.web_world"]) as env,
        served(env) as server,
        client(server) as http,
    ):
        headers = {"Content-Type": "application/json", "Idempotency-Key": "k"}
        said = [
            http.post(
                "/commands/crate.pack",
                content=f'{{"payload": {{"ref": {number}}}}}',
                headers=headers,
            )
            for number in (BIG, NEXT)
        ]

        assert [each.status_code for each in said] == [422, 422]
        assert [each.json()["detail"] for each in said] == [
            f"body.payload.ref: {number} {TOO_LARGE}" for number in (BIG, NEXT)
        ]
        assert crates(env) == []


def test_on_a_socket_it_is_refused_and_the_next_line_is_read(uri, tmp_path):
    asked = [
        ("Event.Publish", {"type": "some.thing", "payload": {"x": BIG}}),
        ("State.Ensure", {"objects": [{"type": "AbuseReading", "fields": {"id": "a", "data": {"x": BIG}}}]}),
        ("Command.Dispatch", {"name": "quay.note", "payload": {"x": BIG}}),
    ]  # fmt: skip

    async def main(env):
        path = tmp_path / "o.sock"
        async with serving(path, bridged(env)), connected(path) as client:
            for type, data in asked:
                answer = await client.ask(type, data, kind="command")
                assert (answer["kind"], answer["data"]["code"]) == ("error", 400)
                assert "64" in answer["data"]["message"]
            assert (await client.ask("System.Describe"))["kind"] == "reply"

    with (
        Session(uri, entity_types=[AbuseReading]) as session,
        Env(session, modules=["tests.integration.quay_world"]) as env,
    ):
        asyncio.run(main(env))
    assert stored(uri) == []


def test_on_the_command_line_it_is_refused(uri, tmp_path):
    with Session(uri, entity_types=[AbuseReading]) as session:
        session.ensure(AbuseReading(id="a", data={"x": 1}))
        session.commit()
    where = ("--datastore-uri", uri)
    file = tmp_path / "state.jsonl"
    file.write_bytes(invoke("export", *where).stdout_bytes.replace(b'"x":1', b'"x":%d' % BIG))

    said = [
        invoke("emit", "some.thing", f'{{"x": {BIG}}}', *where),
        invoke("import", str(file), "--on-conflict", "replace", *where),
        invoke("query", "entities", "AbuseReading", "--filter", "data.x", "eq", str(BIG), *where),
        invoke("query", "entities", "AbuseReading", "--filter", f'["data.x", "eq", {BIG}]', *where),
    ]

    assert [each.exit_code for each in said] == [2, 1, 2, 2]
    assert all(TOO_LARGE in " ".join(each.stderr.split()) for each in said)
    assert stored(uri) == [{"x": 1}]


def test_call_does_not_send_it(tmp_path):
    asked = {"kind": "command", "type": "Event.Publish", "data": {"payload": {"x": BIG}}}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "o.sock"))
        listener.listen()

        def received() -> bytes:
            connection, _ = listener.accept()
            with connection:  # and end it, or a call that has sent something waits for its answer
                return connection.recv(1000)

        with ThreadPoolExecutor(1) as pool:
            received_there = pool.submit(received)
            done = invoke("call", "--socket", str(tmp_path / "o.sock"), json.dumps(asked))
            sent = received_there.result()

    assert done.exit_code == 1
    assert json.loads(done.stdout)["data"]["code"] == 400
    assert sent == b""


def test_a_queue_takes_none():
    with pytest.raises(InvalidValueError, match=TOO_LARGE):
        DomainEvent.build(name="some.thing", payload={"x": BIG})
