"""The agent for chat endpoints, against a real server on this machine."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from ontologia.errors import AgentError, ConfigError
from ontologia.extensions.contract import Event
from ontologia.extensions.openai import ENDPOINT, OpenAIChatAgent
from tests.integration.chat_server import chat_server, piece, plain, raw, refused, streamed
from tests.integration.running import PATIENCE, until

KEY = "sk-very-secret-0123456789"
ASKED = Event(7, "user.message", "cli_channel", {"text": "Who am I?", "user_id": "ada"}, 1.0)
DUE = Event(8, "reminder.due", "reminders", {"text": "Drink water", "glasses": 2}, 1.0)


@pytest.fixture
def server():
    with chat_server() as running:
        yield running


@pytest.fixture
def agent(server):
    return OpenAIChatAgent("gpt-5-mini", instructions="Be kind.", endpoint=server.url, key=KEY)


def ask(agent, event=ASKED):
    return asyncio.run(agent.run(event))


def failure(agent, event=ASKED):
    with pytest.raises(AgentError) as caught:
        ask(agent, event)
    assert KEY not in str(caught.value)
    assert KEY not in repr(caught.value.__cause__)
    return caught.value


def test_the_answer_is_put_together_from_its_pieces(server, agent):
    assert ask(agent) == "Hello, Ada"

    [question] = server.questions
    assert question == {
        "path": "/v1/chat/completions",
        "model": "gpt-5-mini",
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Who am I?"},
        ],
        "stream": True,
    }
    assert server.keys == [f"Bearer {KEY}"]


def test_an_event_that_nobody_typed_is_told_with_its_topic_and_payload(server):
    ask(OpenAIChatAgent("m", endpoint=server.url + "/"), DUE)

    [question] = server.questions
    assert question["messages"] == [
        {
            "role": "user",
            "content": 'Event reminder.due from reminders:\n{"glasses":2,"text":"Drink water"}',
        }
    ]
    assert server.keys == [None]
    assert question["path"] == "/v1/chat/completions"


def test_pieces_are_given_as_they_come(server, agent):
    def answer(request):
        raw(piece("first"))(request)
        server.release.wait()
        request.wfile.write(piece("second", "stop"))

    server.answer = answer

    async def look():
        seen = []
        async for text in agent.stream(ASKED):
            seen.append(text)
            server.release.set()  # only now is the second one sent
        return seen

    assert asyncio.run(look()) == ["first", "second"]


def test_the_loop_goes_on_while_an_agent_thinks(server, agent):
    def answer(request):
        server.release.wait()
        streamed("done")(request)

    server.answer = answer

    async def both():
        asking = asyncio.create_task(agent.run(ASKED))
        await asyncio.to_thread(until, lambda: server.questions)
        assert not asking.done()
        server.release.set()
        return await asking

    assert asyncio.run(both()) == "done"


def test_who_stops_waiting_is_not_kept(server, agent):
    server.answer = lambda request: server.release.wait()

    async def stop():
        asking = asyncio.create_task(agent.run(ASKED))
        await asyncio.to_thread(until, lambda: server.questions)
        asking.cancel()
        await asking

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(stop())


def test_an_endpoint_that_does_not_stream_is_understood(server, agent):
    server.answer = plain(json.dumps({"choices": [{"message": {"content": "All at once"}}]}))

    assert ask(agent) == "All at once"


def test_letters_of_any_script_come_through(server, agent):
    server.answer = streamed("Grüße, ", "世界", " 🎉")

    assert ask(agent) == "Grüße, 世界 🎉"


def test_a_stream_that_says_it_is_finished_needs_no_further_end(server, agent):
    server.answer = raw(piece("whole"), piece(None, "stop"))

    assert ask(agent) == "whole"


def test_a_key_that_is_refused_is_told_and_not_shown(server, agent):
    body = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}."}})
    server.answer = refused(401, body)

    error = failure(agent)

    assert error.status == 401
    assert "answered 401: Incorrect API key provided: …." in str(error)
    assert "OPENAI_API_KEY" in error.hint


def test_too_many_questions_say_when_to_ask_again(server, agent):
    server.answer = refused(429, '{"error": {"message": "slow down"}}', Retry_After="7")

    error = failure(agent)

    assert (error.status, error.retry_after) == (429, 7.0)
    assert "answered 429 (again in 7 s): slow down" in str(error)


def test_a_time_to_ask_again_may_be_a_date(server, agent):
    later = format_datetime(datetime.now(UTC) + timedelta(hours=2), usegmt=True)
    server.answer = refused(429, "{}", Retry_After=later)

    assert 7000 < failure(agent).retry_after <= 7200


@pytest.mark.parametrize("header", ["soon", "-5", "Fri, 99 Foo 2026"])
def test_a_time_that_is_none_is_left_out(server, agent, header):
    server.answer = refused(429, "{}", Retry_After=header)

    assert failure(agent).retry_after is None


@pytest.mark.parametrize(
    ("code", "body", "said"),
    [
        (500, "<html>\noops</html>", "answered 500: <html> oops</html>"),
        (503, "", "answered 503: Service Unavailable"),
        (404, '{"error": "no such model"}', "answered 404: no such model"),
        (400, '{"error": {"message": null}}', "answered 400: None"),
    ],
)
def test_a_refusal_says_its_code_and_words(server, agent, code, body, said):
    server.answer = refused(code, body)

    error = failure(agent)

    assert said in str(error)
    assert error.hint
    assert error.retry_after is None


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_since_the_key_would_go_along(server, agent, code):
    with chat_server() as elsewhere:
        server.answer = refused(code, "", Location=f"{elsewhere.url}/chat/completions")

        error = failure(agent)

        assert elsewhere.keys == []
    assert f"it wants to be asked at {elsewhere.url}" in str(error)


@pytest.mark.parametrize(
    ("answer", "said"),
    {
        "no JSON in the stream": (raw(piece("a"), b"data: {oops\n\n"), "sent what is no answer"),
        "no JSON": (plain("oops"), "sent what is no answer: 'oops'"),
        "a page": (plain("<html>", Content_Type="text/html"), "sent what is no answer: '<html>'"),
        "other JSON": (plain('{"a": 1}'), "sent what is no answer"),
        "a number": (plain("5"), "sent what is no answer: '5'"),
        "no text": (plain('{"choices": [{"message": {"content": 5}}]}'), "sent what is no answer"),
        "an error in it": (
            raw(piece("a"), b'data: {"error": {"message": "overloaded"}}\n\n'),
            ": overloaded; there is no answer",
        ),
        "a stream that breaks off": (
            raw(piece("a"), piece("b")),
            "broke off before its answer was",
        ),
        "within a piece": (raw(piece("a")[:-10]), "sent what is no answer"),
        "no piece at all": (raw(), "broke off before its answer was whole"),
    }.values(),
)
def test_what_is_no_whole_answer_is_an_error(server, agent, answer, said):
    server.answer = answer

    assert said in str(failure(agent))


def test_a_stream_in_chunks_that_breaks_off_is_an_error(server, agent):
    def answer(request):
        request.close_connection = True
        request.send_response(200)
        request.send_header("Content-Type", "text/event-stream")
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        first = piece("a")
        request.wfile.write(f"{len(first):x}\r\n".encode() + first + b"\r\n" + b"40\r\ndata")

    server.answer = answer

    assert "broke off before its answer was whole" in str(failure(agent))


def test_a_silent_endpoint_is_given_up(server):
    agent = OpenAIChatAgent("m", endpoint=server.url, key=KEY, timeout=0.05)
    server.answer = lambda request: server.release.wait()
    before_it_speaks = failure(agent)

    def pause(request):
        raw(piece("a"))(request)
        server.release.wait()

    server.answer = pause
    while_it_speaks = failure(agent)

    assert "was silent for 0.05 s; there is no answer" in str(before_it_speaks)
    assert "was silent for 0.05 s; there is no answer" in str(while_it_speaks)


def test_an_endpoint_that_is_not_there_is_told_of():
    with chat_server() as gone:
        url = gone.url

    assert f"{url} cannot be reached: [Errno 111] Connection refused" in str(
        failure(OpenAIChatAgent("m", endpoint=url, key=KEY))
    )


def test_the_public_endpoint_is_not_asked_without_a_key():
    error = failure(OpenAIChatAgent("m"))

    assert f"{ENDPOINT} needs a key, and there is none; nothing was asked" in str(error)


def test_the_key_is_in_no_log_and_no_representation(server, agent, caplog):
    caplog.set_level(logging.DEBUG)
    server.answer = refused(401, "no")

    failure(agent)

    assert KEY not in repr(agent)
    assert KEY not in caplog.text


@pytest.mark.req("BUS-037")
def test_an_agent_is_made_from_its_section_its_settings_and_the_environment():
    section = {"integration_mode": "tool", "model": "small", "instructions": "Be kind."}
    environment = {"OPENAI_API_KEY": "k1", "OPENAI_BASE_URL": "http://one/v1"}

    plainly = OpenAIChatAgent.from_section(section, {}, environment)
    settings = {"model": "large", "base_url": "http://two/v1/", "api_key": "k2", "timeout": 5}
    chosen = OpenAIChatAgent.from_section(section, settings, environment)
    bare = OpenAIChatAgent.from_section(section, {"model": None}, {})

    assert (plainly.model, plainly.endpoint, plainly._key) == ("small", "http://one/v1", "k1")
    assert plainly.instructions == "Be kind."
    assert (chosen.model, chosen.endpoint, chosen._key) == ("large", "http://two/v1", "k2")
    assert chosen.timeout == 5
    assert (bare.endpoint, bare._key) == (ENDPOINT, None)


@pytest.mark.parametrize(
    "options",
    [
        {"endpoint": "file:///etc/passwd"},
        {"endpoint": f"https://ada:{KEY}@example.com/v1"},
        {"timeout": 0},
        {"key": "ключ"},
        {"key": f"{KEY}\nX-Other: 1"},
    ],
)
def test_options_that_cannot_be_are_refused_and_keys_are_not_shown(options):
    with pytest.raises(ConfigError, match="an agent's") as caught:
        OpenAIChatAgent("m", **options)

    assert KEY not in str(caught.value)


def test_no_thread_is_left_when_an_answer_was_given(server, agent):
    ask(agent)

    for thread in threading.enumerate():
        if thread.name == "chat agent":
            thread.join(PATIENCE)
            assert not thread.is_alive()
