"""The loop on a Unix socket: lines in, answers out, and clients of every kind."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import stat
import threading

import pytest

from ontologia.actors import ActorLoop, Capability, Message, UnixSocketAdapter
from ontologia.actors.adapter import MOST_IN_FLIGHT, Lines
from ontologia.errors import ActorBootError, ConfigError
from tests.integration.actor_world import (
    Client,
    connected,
    echoing,
    eventually,
    line,
    listening,
    serving,
)
from tests.integration.running import PATIENCE


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "o.sock"


@pytest.mark.req("CQR-073", "CQR-079", "CQR-082", "CQR-088")
def test_a_request_on_the_socket_is_answered(path):
    async def main():
        _, echo = echoing()
        async with serving(path, [echo]) as (loop, _), connected(path) as client:
            answer = await client.ask(data={"n": 1}, id="first", correlation="c")
            waiting = loop.metrics()["pending"]
        return answer, waiting

    answer, waiting = asyncio.run(main())

    assert (answer["kind"], answer["type"], answer["data"]) == ("reply", "Echo.Ask", {"n": 1})
    assert answer["metadata"]["causation"] == "first"
    assert answer["metadata"]["correlation"] == "c"
    assert waiting["adapters"] == 0


@pytest.mark.req("CQR-078")
def test_a_line_counts_from_its_newline_on_and_a_piece_may_have_several(path):
    async def main():
        actor, echo = echoing()
        async with serving(path, [echo]), connected(path) as client, connected(path) as other:
            whole = line(data={"n": 1})
            await client.send(whole[:-1])
            await other.ask(data={"n": 0})  # whatever was sent before has arrived by now
            seen = len(actor.seen)
            await client.send(b"\n" + line(data={"n": 2}) + line(data={"n": 3})[:20])
            return seen, [(await client.read())["data"]["n"] for _ in range(2)]

    seen, answers = asyncio.run(main())

    assert seen == 1, "half a line was taken for one"
    assert answers == [1, 2]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_are_the_same_in_pieces_of_any_size(size):
    text = b"\n".join([b"a", b"", b"bcdef", b"x" * 11, b"y" * 10, b"z" * 25, b"end"]) + b"\nrest"
    lines = Lines(10)

    pieces = (text[n : n + size] for n in range(0, len(text), size))
    found = [each for piece in pieces for each in lines.feed(piece)]

    assert found == [b"a", b"", b"bcdef", None, b"y" * 10, None, b"end"]
    assert lines.end() == b"rest"


METADATA = '"metadata": {"id": "m1", "timestamp": 1}'
MALFORMED = {
    "text": b"nonsense",
    "a list": b"[1, 2]",
    "null": b"null",
    "not UTF-8": b'{"kind": "\xff\xfe"}',
    "no metadata": b'{"kind": "query", "type": "Echo.Ask", "data": {}}',
    "no id": b'{"kind": "query", "type": "Echo.Ask", "data": {}, "metadata": {"timestamp": 1}}',
    "too deep": b'{"kind":"query","type":"Echo.Ask","data":' + b"[" * 100_000,
    "no time": b'{"kind": "query", "type": "Echo.Ask", "metadata": {"id": "m1"}}',
    "a kind": f'{{"kind": "wish", "type": "Echo.Ask", {METADATA}}}'.encode(),
    "a type": f'{{"kind": "query", "type": "echo", {METADATA}}}'.encode(),
    "a key": f'{{"kind": "query", "type": "Echo.Ask", "more": 1, {METADATA}}}'.encode(),
    "NaN": f'{{"kind": "query", "type": "Echo.Ask", "data": {{"n": NaN}}, {METADATA}}}'.encode(),
    "U+0000": f'{{"kind":"query","type":"Echo.Ask","data":{{"n":"\\u0000"}},{METADATA}}}'.encode(),
    "large": f'{{"kind": "query","type":"Echo.Ask","data": {{"n":{2**70}}},{METADATA}}}'.encode(),
    "a reply": f'{{"kind": "reply", "type": "Echo.Ask", "data": {{}}, {METADATA}}}'.encode(),
}
# NaN is no JSON, so that nothing in such a line can be read.
NAMED = ["no time", "a kind", "a type", "a key", "U+0000", "large", "a reply"]


@pytest.mark.req("CQR-074")
@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_line_has_one_error_and_the_connection_goes_on(path, what):
    async def main():
        _, echo = echoing()
        async with serving(path, [echo]), connected(path) as client:
            await client.send(MALFORMED[what] + b"\n")
            return await client.answers_before(line())

    [error] = asyncio.run(main())

    assert (error["kind"], error["type"]) == ("error", "Sys.InvalidMessage")
    assert error["data"]["code"] == 400
    assert error["data"]["message"]
    assert error["metadata"].get("causation") == ("m1" if what in NAMED else None)


def test_blank_lines_are_nothing_and_so_are_the_ends_of_windows(path):
    async def main():
        _, echo = echoing()
        async with serving(path, [echo]), connected(path) as client:
            await client.send(b"\n  \n\r\n" + line(data={"n": 1}).replace(b"\n", b"\r\n"))
            first = await client.read()
            return first, await client.answers_before(line())

    first, rest = asyncio.run(main())

    assert first["data"] == {"n": 1}
    assert rest == []


@pytest.mark.req("CQR-074")
def test_a_line_that_is_too_long_has_one_error_while_it_comes_and_is_skipped(path):
    async def main():
        _, echo = echoing()
        async with serving(path, [echo], line_limit=10_000), connected(path) as client:
            await client.send(b"x" * 10_001)
            early = await client.read()
            await client.send(b"y" * 50_000 + b"\n")
            fits = line(data={"text": "x" * 9_000})
            answer = await client.answers_before(fits)
            await client.send(b"z" * 10_001 + b"\n")
            return early, answer, await client.answers_before(line())

    early, between, [late] = asyncio.run(main())

    assert early["type"] == late["type"] == "Sys.InvalidMessage"
    assert early["data"]["code"] == late["data"]["code"] == 413
    assert "at most 10000 bytes" in early["data"]["message"]
    assert between == []


@pytest.mark.req("CQR-075")
def test_two_clients_get_their_own_answers_alone(path):
    async def main():
        _, echo = echoing()
        async with serving(path, [echo]), connected(path) as one, connected(path) as other:
            for n in range(200):
                await one.send(line(data={"of": "one", "n": n}))
                await other.send(line(data={"of": "other", "n": n}))
            return (
                [(await one.read())["data"] for _ in range(200)],
                [(await other.read())["data"] for _ in range(200)],
            )

    one, other = asyncio.run(main())

    assert one == [{"of": "one", "n": n} for n in range(200)]
    assert other == [{"of": "other", "n": n} for n in range(200)]


@pytest.mark.req("CQR-081")
def test_an_id_that_is_pending_is_refused_to_whoever_used_it_again(path):
    async def main():
        actor, echo = echoing()
        async with serving(path, [echo]), connected(path) as one, connected(path) as other:
            await one.send(line(data={"held": True}, id="same"))
            await eventually(lambda: actor.seen)
            refused = await other.ask(id="same")
            actor.go.set()
            return refused, await one.read()

    refused, answer = asyncio.run(main())

    assert (refused["kind"], refused["data"]["code"]) == ("error", 409)
    assert answer["kind"] == "reply"


def test_a_client_cannot_answer_for_an_actor(path):
    async def main():
        actor, echo = echoing()
        async with serving(path, [echo]), connected(path) as one, connected(path) as other:
            await one.send(line(data={"held": True}, id="asked"))
            await eventually(lambda: actor.seen)
            refused = await other.ask(kind="reply", data={"forged": True}, causation="asked")
            actor.go.set()
            return refused, await one.read()

    refused, answer = asyncio.run(main())

    assert refused["data"]["code"] == 400
    assert answer["data"] == {"held": True}


@pytest.mark.req("CQR-077", "CQR-092")
def test_events_go_to_actors_and_never_to_clients(path):
    async def main():
        _, echo = echoing()
        listener, ears = listening("Echo.Changed", "Some.Thing")
        async with serving(path, [echo, ears]), connected(path) as client:
            await client.send(line("Echo.Set", {"n": 1}, kind="command", id="set"))
            await client.send(line("Some.Thing", {"n": 2}, kind="event"))
            answer = await client.read()
            rest = await client.answers_before(line())
            await eventually(lambda: len(listener.heard) == 2)
            return answer, rest, listener.heard

    answer, rest, heard = asyncio.run(main())

    assert (answer["kind"], answer["type"]) == ("reply", "Echo.Set")
    assert rest == []
    assert {each.type: each.data for each in heard} == {
        "Echo.Changed": {"n": 1},
        "Some.Thing": {"n": 2},
    }
    assert next(e for e in heard if e.type == "Echo.Changed").metadata.causation == "set"


@pytest.mark.req("CQR-083", "CQR-085")
def test_what_a_client_that_is_gone_asked_for_is_forgotten(path):
    async def main():
        actor, echo = echoing()
        listener, ears = listening("Sys.OrphanOutcome")
        async with serving(path, [echo, ears]) as (loop, adapter), connected(path) as other:
            async with connected(path) as gone:
                await gone.send(line(data={"held": True}, id="late"))
                await eventually(lambda: actor.seen)
            await other.send(line(data={"n": 1}))
            await eventually(lambda: adapter.clients == 1)
            left = loop.metrics()
            actor.go.set()
            answer = await other.read()
            await eventually(lambda: listener.heard)
            return left, answer, listener.heard

    left, answer, [orphan] = asyncio.run(main())

    assert left["pending"]["adapters"] == 1, "that of the other"
    assert left["timers"] <= 1, "the timeout of the one that is gone was not cancelled"
    assert answer["data"] == {"n": 1}
    assert orphan.data["answers"] == "late"


def test_a_client_that_says_no_more_gets_what_it_asked_for(path):
    async def main():
        actor, echo = echoing()
        async with serving(path, [echo]), connected(path) as client:
            await client.send(line(data={"held": True}), line(data={"n": 2}), b'{"kind": "que')
            client.writer.write_eof()
            await eventually(lambda: actor.seen)
            truncated = await client.read()
            actor.go.set()
            answers = [(await client.read())["data"] for _ in range(2)]
            return truncated, answers, await client.ended()

    truncated, answers, ended = asyncio.run(main())

    assert "no newline" in truncated["data"]["message"]
    assert answers == [{"held": True}, {"n": 2}]
    assert ended


@pytest.mark.req("CQR-065")
def test_only_the_command_that_ends_a_request_has_no_answer(path):
    async def main():
        _, echo = echoing()
        async with serving(path, [echo]), connected(path) as client:
            await client.send(line("Sys.RequestTimeout", {"requestId": "x"}, kind="command"))
            await client.send(line("Sys.RequestTimeout", {"requestId": "x"}, kind="query"))
            await client.send(line("No.Such", {"requestId": "x"}, kind="command"))
            client.writer.write_eof()
            return [(await client.read())["data"]["code"] for _ in range(2)], await client.ended()

    codes, ended = asyncio.run(main())

    assert codes == [400, 404]
    assert ended, "what was answered was not counted as asked"


@pytest.mark.req("CQR-070", "CQR-084")
def test_a_request_without_an_outcome_ends_with_504(path):
    async def main():
        _, echo = echoing()
        listener, ears = listening("Sys.OrphanOutcome")
        served = serving(path, [echo, ears], timeout=0.05)
        async with served as (loop, adapter), connected(path) as client:
            answer = await client.ask(data={"silent": True}, id="x", correlation="c")
            adapter.timeout = None
            again = await client.answers_before(line())
            return answer, again, listener.heard, loop.metrics()["pending"]

    answer, again, orphans, pending = asyncio.run(main())

    assert (answer["kind"], answer["type"], answer["data"]["code"]) == ("error", "Echo.Ask", 504)
    assert (answer["metadata"]["causation"], answer["metadata"]["correlation"]) == ("x", "c")
    assert (again, orphans, pending["adapters"]) == ([], [], 0)


@pytest.mark.req("CQR-080", "CQR-086", "CQR-090", "CQR-091")
def test_the_timeouts_of_clients_are_the_loops_own_and_no_orphans(path):
    async def main():
        _, echo = echoing()
        listener, ears = listening("Sys.OrphanOutcome", "Sys.RoutingError", "Sys.TimerSet")
        async with serving(path, [echo, ears]) as (loop, _), connected(path) as client:
            for _ in range(20):
                await client.ask()
            missing = await client.ask("No.Such")
            await eventually(lambda: loop.metrics()["timers"] == 0)
            await eventually(lambda: any(e.type == "Sys.RoutingError" for e in listener.heard))
            return missing, [each.type for each in listener.heard]

    missing, heard = asyncio.run(main())

    assert missing["data"]["code"] == 404
    assert "Sys.OrphanOutcome" not in heard
    assert heard.count("Sys.RoutingError") == 1


@pytest.mark.req("CQR-076")
def test_a_client_that_never_reads_is_cut_off_and_the_others_are_served(path, caplog):
    async def main():
        _, echo = echoing()
        served = serving(path, [echo], stall=0.2, most_waiting=2**30)
        async with served as (_, adapter), connected(path) as other, connected(path) as silent:
            silent.reader._transport.pause_reading()  # the reader would read ahead
            await silent.send(*[line(data={"size": 100_000}) for _ in range(50)])
            await eventually(lambda: adapter.buffered)
            answers = [(await other.ask(data={"n": n}))["data"]["n"] for n in range(20)]
            await eventually(lambda: adapter.clients == 1)
            return answers, adapter.buffered, (await other.ask(data={"n": 99}))["data"]

    with caplog.at_level(logging.WARNING, "ontologia.actors"):
        served, buffered, after = asyncio.run(main())

    assert served == list(range(20))
    assert (buffered, after) == (0, {"n": 99})
    assert "is cut off: it read nothing for 0.2 s" in caplog.text


@pytest.mark.req("CQR-076")
def test_nothing_is_read_from_a_client_that_does_not_read(path):
    many = 4 * MOST_IN_FLIGHT
    more = {"size": 1_000, "more": "x" * 1_000}

    async def main():
        actor, echo = echoing()
        served = serving(path, [echo], stall=3_600, most_waiting=2**30)
        async with served as (_, adapter), connected(path) as other, connected(path) as silent:
            silent.reader._transport.pause_reading()
            silent.writer.write(b"".join(line(data=more) for _ in range(many)))
            await eventually(lambda: adapter.buffered)
            for n in range(100):  # each waits until the actor is done with all that was read
                await other.ask(data={"n": n})
            seen = sum("more" in each.data for each in actor.seen)
            silent.writer.transport.abort()
            return seen

    assert 0 < asyncio.run(main()) < many


@pytest.mark.req("CQR-076")
def test_what_waits_for_a_client_is_bounded(path, caplog):
    most, each = 1_000_000, 100_000

    async def main():
        _, echo = echoing()
        served = serving(path, [echo], most_waiting=most)
        async with served as (_, adapter), connected(path) as silent:
            silent.reader._transport.pause_reading()
            await silent.send(*[line(data={"size": each}) for _ in range(100)])
            await eventually(lambda: adapter.served and not adapter.clients)

    with caplog.at_level(logging.WARNING, "ontologia.actors"):
        asyncio.run(main())

    [record] = [each for each in caplog.records if "is cut off" in each.message]
    assert f"more than {most} bytes wait" in record.message
    assert record.args[-1] <= most + each + 1_000


def test_an_answer_may_be_larger_than_what_may_wait(path):
    async def main():
        _, echo = echoing()
        async with serving(path, [echo], most_waiting=10_000), connected(path) as client:
            large = await client.ask(data={"size": 5_000_000})
            return large, await client.ask(data={"n": 1})

    large, after = asyncio.run(main())

    assert len(large["data"]["text"]) == 5_000_000
    assert after["data"] == {"n": 1}


@pytest.mark.req("CQR-076")
def test_nothing_is_read_from_a_client_that_asks_for_too_much_at_once(path):
    async def main():
        actor, echo = echoing()
        async with serving(path, [echo], timeout=None) as (loop, _), connected(path) as client:
            held = [line(data={"held": True})] + [line(data={"n": n}) for n in range(10_000)]
            sending = asyncio.create_task(client.send(*held))
            await eventually(lambda: loop.metrics()["pending"]["adapters"] >= MOST_IN_FLIGHT)
            for _ in range(200):
                await asyncio.sleep(0)
            most = loop.metrics()["pending"]["adapters"]
            actor.go.set()
            await client.read()
            answers = [(await client.read())["data"]["n"] for _ in range(10_000)]
            await sending
            return most, answers

    most, answers = asyncio.run(main())

    assert most < 5_000, "everything was read, whatever became of it"
    assert answers == list(range(10_000))


def test_a_thousand_clients_come_and_vanish(path):
    async def visit(n: int) -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        client = Client(reader, writer)
        if n % 3 == 0:
            await client.ask(data={"n": n})
        elif n % 3 == 1:
            await client.send(line(data={"n": n})[: n % 40])
        else:
            await client.send(line(data={"silent": True}))
        writer.transport.abort()

    async def main():
        _, echo = echoing()
        async with serving(path, [echo]) as (loop, adapter), connected(path) as stays:
            for begin in range(0, 1_000, 100):
                await asyncio.gather(*map(visit, range(begin, begin + 100)))
            await eventually(lambda: adapter.clients == 1)
            await eventually(lambda: loop.metrics()["timers"] == 0)
            answer = await stays.ask(data={"n": 1})
            return answer, adapter.served, loop.metrics()

    answer, served, metrics = asyncio.run(main())

    assert answer["data"] == {"n": 1}
    assert served == 1_001
    assert metrics["pending"] == {"adapters": 0, "actors": 0, "loop": 0}


# -- the file -----------------------------------------------------------------------------------


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_the_socket_is_for_its_user_alone_and_gone_at_the_end(path):
    async def main():
        _, echo = echoing()
        before = os.umask(0)
        try:
            async with serving(path, [echo]):
                return mode(path), mode(path.parent)
        finally:
            os.umask(before)

    assert asyncio.run(main()) == (0o600, 0o700)
    assert not path.exists()


def test_a_file_that_an_ended_process_left_is_replaced(path):
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))

    async def main():
        _, echo = echoing()
        async with serving(path, [echo]), connected(path) as client:
            return await client.ask(data={"n": 1})

    assert asyncio.run(main())["data"] == {"n": 1}


def test_a_socket_on_which_somebody_listens_is_left_alone(path):
    async def main():
        _, echo = echoing()
        async with serving(path, [echo]), connected(path) as client:
            with pytest.raises(ConfigError, match="another program listens at"):
                async with serving(path, [echoing()[1]]):
                    pass
            return await client.ask(data={"n": 1})

    assert asyncio.run(main())["data"] == {"n": 1}


def test_of_two_that_start_at_the_same_moment_only_one_replaces_a_stale_file(path, monkeypatch):
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    first, second = UnixSocketAdapter(path), UnixSocketAdapter(path)
    look, other_done = first._remove_stale, threading.Event()
    found = []

    def look_and_dawdle():
        look()
        other.start()
        other_done.wait(0.3)  # as long as that another may have the same idea

    def listen_too():
        try:
            second._listen().close()
        except ConfigError as error:
            found.append(str(error))
        other_done.set()

    other = threading.Thread(target=listen_too)
    monkeypatch.setattr(first, "_remove_stale", look_and_dawdle)

    with first._listen():
        other.join(PATIENCE)

    [refused] = found
    assert "another program listens at" in refused


def test_what_is_no_socket_is_left_alone(path):
    path.parent.mkdir()
    path.write_text("precious")

    async def main():
        async with serving(path, [echoing()[1]]):
            pass

    with pytest.raises(ConfigError, match="is a file, and no socket"):
        asyncio.run(main())
    assert path.read_text() == "precious"


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_that_would_never_be_is_refused(path, timeout):
    with pytest.raises(ConfigError, match="timeout is seconds, more than 0"):
        UnixSocketAdapter(path, timeout=timeout)


def test_a_path_that_cannot_be_one_is_said(tmp_path):
    async def main():
        async with serving(tmp_path / ("x" * 200), [echoing()[1]]):
            pass

    with pytest.raises(ConfigError, match="cannot listen at"):
        asyncio.run(main())


def test_the_socket_of_another_is_not_removed_at_the_end(path):
    async def main():
        async with serving(path, [echoing()[1]]):
            path.unlink()
            path.write_text("another's")

    asyncio.run(main())

    assert path.read_text() == "another's"


# -- the life of the loop -----------------------------------------------------------------------


@pytest.mark.req("CQR-087")
def test_nothing_listens_when_a_capability_cannot_be_started(path):
    def broken():
        raise OSError("no disk")

    _, echo = echoing()
    bad = Capability(
        "bad", "", inbound=echo.inbound, outbound=Message, subscribes=(), spawn=echo.spawn
    )
    worse = Capability(
        "worse", "", inbound=echo.inbound, outbound=Message, subscribes=(), spawn=broken
    )

    with pytest.raises(ActorBootError, match="bad: inbound"):
        ActorLoop([echo, bad], adapters=[UnixSocketAdapter(path)])
    with pytest.raises(ActorBootError, match="worse: spawn: OSError: no disk"):
        asyncio.run(ActorLoop([worse], adapters=[UnixSocketAdapter(path)]).run())
    assert not path.exists()


@pytest.mark.req("CQR-088", "CQR-089")
def test_a_loop_with_a_socket_is_alive_until_it_is_stopped(path):
    async def main():
        actor, echo = echoing()
        loop = ActorLoop([echo], adapters=[UnixSocketAdapter(path)])
        running = asyncio.create_task(loop.run())
        await loop.ready()
        async with connected(path) as client, connected(path) as other:
            await client.ask()
            assert loop.alive
            assert not running.done()
            await other.send(line(data={"held": True}))
            await eventually(lambda: len(actor.seen) == 2)
            loop.stop()
            last = await other.read()
            await running
            return last, await client.ended(), loop.alive

    last, ended, _ = asyncio.run(main())

    assert (last["kind"], last["data"]["code"]) == ("error", 503)
    assert ended
    assert not path.exists()


def test_answers_that_wait_are_written_at_the_end(path):
    async def main():
        _, echo = echoing()
        async with serving(path, [echo]) as (_, adapter):
            client = Client(*await asyncio.open_unix_connection(path, limit=2**26))
            client.reader._transport.pause_reading()
            await client.send(*[line(data={"size": 50_000}) for _ in range(20)])
            await eventually(lambda: adapter.buffered)
            client.reader._transport.resume_reading()
        text = await client.reader.read()
        await client.close()
        return [json.loads(each) for each in text.splitlines()]

    answers = asyncio.run(main())

    assert len(answers) == 20, "one answer each, be it that the loop was stopped"
    assert any(each["kind"] == "reply" for each in answers)
