"""Commands over HTTP: carried out once, refused with a reason, or not at all."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import httpx
import pytest

from ontologia.commands import Env
from tests.integration.running import PATIENCE, until
from tests.integration.web_world import (
    AUTHORIZED,
    GO,
    HELD,
    client,
    crates,
    events,
    served,
)

WORLD = "tests.integration.web_world"


@pytest.fixture
def env(uri):
    HELD.clear()
    GO.clear()
    with Env(uri, modules=[WORLD]) as made:
        yield made


@pytest.fixture
def http(env):
    with served(env) as server, client(server) as made:
        yield made


def post(http, name, payload=None, *, headers=None, **members):
    body = {"payload": payload or {}, **members}
    return http.post(f"/commands/{name}", json=body, headers=headers)


def problem(answer, status, kind):
    """The members of a problem; anything else than one is an error."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    members = answer.json()
    assert members["status"] == status
    assert members["type"] == f"urn:ontologia:problem:{kind}"
    assert members["instance"].startswith("urn:uuid:")
    assert members["title"]
    return members


@pytest.mark.req("EDE-016")
def test_a_command_is_carried_out_and_answers_with_what_its_handler_returned(http, env):
    answer = post(http, "crate.pack", {"ref": "Ω"})

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["ref"] == "Ω"
    assert crates(env) == ["Ω"]
    assert events(env) == ["crate.packed"]


def test_a_command_is_told_of_the_record_that_it_is_about(http):
    crate = post(http, "crate.pack", {"ref": "a"}).json()

    sealed = post(http, "crate.seal", model_key="docks.crate", model_id=crate["id"])

    assert sealed.json() == {"id": crate["id"], "ref": "a", "status": "sealed"}


def test_any_name_of_a_command_can_be_a_path(http):
    name = quote("crate/with spaces {and} more?", safe="")

    answer = post(http, name, {"a": [1]}, model_key="docks.crate", model_id=None)

    assert answer.json() == {"payload": {"a": [1]}, "model_key": "docks.crate", "model_id": None}


# -- errors of a command ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "kind", "detail"),
    [
        ("value", 422, "invalid", "too heavy"),
        ("kilos", 422, "invalid", "Weight: kilos: Input should be a valid integer"),
        ("permission", 403, "forbidden", "not yours"),
        ("missing", 404, "not-found", "there is no crane 7"),
        ("conflict", 409, "conflict", "was changed by another commit"),
        ("head", 409, "conflict", "expected head 1"),
        ("busy", 503, "unavailable", "the database is busy; nothing was done"),
        ("lost", 503, "unavailable", "the database cannot be reached"),
        ("standby", 503, "unavailable", "the database takes no writes now; nothing was done"),
        ("odd text", 422, "invalid", "? and \\0"),
        ("long", 422, "invalid", "xxx…"),
    ],
)
def test_an_error_of_a_handler_is_a_problem_and_leaves_nothing(
    http, env, error, status, kind, detail
):
    answer = post(http, "crate.fail", {"error": error})

    members = problem(answer, status, kind)
    assert detail in members["detail"]
    assert len(members["detail"]) < 3_000
    assert ("retry-after" in answer.headers) == (status == 503)
    assert (crates(env), events(env)) == ([], [])


@pytest.mark.parametrize("error", ["busy", "lost", "standby"])
def test_where_the_database_is_and_who_uses_it_is_in_the_log_alone(http, caplog, error):
    with caplog.at_level(logging.WARNING):
        answer = post(http, "crate.fail", {"error": error})

    assert "db.internal" not in answer.text
    [record] = caplog.records
    assert answer.json()["instance"] in record.getMessage()
    assert "db.internal" in record.getMessage()


@pytest.mark.parametrize("error", ["key", "type", "file", "exit", "stop", "command"])
def test_an_error_that_is_no_answer_is_in_the_log_and_not_in_the_answer(http, env, caplog, error):
    with caplog.at_level(logging.ERROR):
        answer = post(http, "crate.fail", {"error": error})

    members = problem(answer, 500, "internal")
    assert "secret" not in answer.text
    assert "crate.unknown" not in answer.text
    [record] = [each for each in caplog.records if members["instance"] in each.getMessage()]
    assert record.exc_info is not None
    assert [each.levelname for each in caplog.records] == ["ERROR"]
    assert (crates(env), events(env)) == ([], [])
    assert post(http, "crate.pack", {"ref": "after"}).status_code == 200


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        ("value", 409, "veto"),
        ("permission", 409, "veto"),
        ("missing", 404, "not-found"),
        ("key", 500, "internal"),
        ("type", 500, "internal"),
        ("file", 500, "internal"),
        ("busy", 503, "unavailable"),
        ("conflict", 409, "conflict"),
    ],
)
def test_a_hook_refuses_with_a_conflict_and_fails_with_an_error(http, env, error, status, kind):
    problem(post(http, "crate.watch", {"error": error}), status, kind)

    assert crates(env) == []


def test_a_veto_says_what_the_hook_said(http):
    crate = post(http, "crate.pack", {"ref": "a"}).json()
    about = {"model_key": "docks.crate", "model_id": crate["id"]}

    post(http, "crate.seal", **about)
    members = problem(post(http, "crate.seal", **about), 409, "veto")

    assert members["detail"] == "it is sealed already"


def test_an_answer_that_cannot_be_sent_is_no_success_and_leaves_nothing(http, env):
    problem(post(http, "crate.odd"), 500, "internal")
    problem(post(http, "crate.odd", {"lock": True}), 500, "internal")
    problem(post(http, "crate.odd", headers={"Idempotency-Key": "k"}), 500, "internal")

    assert crates(env) == []


@pytest.mark.parametrize(
    ("name", "members", "status", "kind"),
    [
        ("crate.unknown", {}, 404, "not-found"),
        ("", {}, 404, "not-found"),
        ("crate.seal", {"model_key": "docks.crate", "model_id": "none"}, 404, "not-found"),
        ("crate.seal", {"model_key": "docks.none", "model_id": "none"}, 404, "not-found"),
        ("ede.create", {"model_key": "docks.crate"}, 403, "forbidden"),
        ("ede.", {}, 403, "forbidden"),
        ("ede.anything", {}, 403, "forbidden"),
    ],
)
def test_what_is_not_there_or_not_for_clients_is_refused(http, env, name, members, status, kind):
    problem(post(http, name, {"ref": "x"}, **members), status, kind)

    assert crates(env) == []


# -- once -------------------------------------------------------------------------------------------


def test_a_repeated_key_gets_the_first_answer_and_nothing_is_done_again(http, env):
    key = {"Idempotency-Key": "a-1"}

    first = post(http, "crate.pack", {"ref": "a"}, headers=key)
    again = post(http, "crate.pack", {"ref": "a"}, headers=key)

    assert first.status_code == again.status_code == 200
    assert again.content == first.content
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert (crates(env), events(env)) == (["a"], ["crate.packed"])


def test_eight_at_once_with_one_key_are_one(http, env):
    together = threading.Barrier(8)

    def ask(_number):
        together.wait(PATIENCE)
        return post(http, "crate.pack", {"ref": "a"}, headers={"Idempotency-Key": "k"})

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))

    assert Counter(each.status_code for each in answers) == {200: 8}
    assert len({each.content for each in answers}) == 1
    replayed = [each.headers.get("idempotency-replayed") for each in answers]
    assert Counter(replayed) == {"true": 7, None: 1}
    assert (crates(env), events(env)) == (["a"], ["crate.packed"])


def test_a_key_stands_for_one_request(http, env):
    key = {"Idempotency-Key": "a-1"}
    post(http, "crate.pack", {"ref": "a"}, headers=key)

    members = problem(post(http, "crate.pack", {"ref": "b"}, headers=key), 422, "invalid")

    assert "was used for another request" in members["detail"]
    assert members["hint"].startswith("A key stands for one request.")
    assert crates(env) == ["a"]


def test_a_command_that_failed_may_be_asked_for_again_under_its_key(http, env):
    crate = post(http, "crate.pack", {"ref": "a"}).json()
    about = {"model_key": "docks.crate", "model_id": crate["id"]}
    post(http, "crate.seal", **about)
    key = {"Idempotency-Key": "later"}
    problem(post(http, "crate.seal", headers=key, **about), 409, "veto")

    env.models["docks.crate"].browse(crate["id"]).write({"status": "open"})
    answer = post(http, "crate.seal", headers=key, **about)

    assert answer.json()["status"] == "sealed"
    assert "idempotency-replayed" not in answer.headers


@pytest.mark.parametrize("key", ["", "x" * 256])
def test_a_key_has_a_length(http, env, key):
    answer = post(http, "crate.pack", {"ref": "a"}, headers={"Idempotency-Key": key})

    problem(answer, 422, "invalid")
    assert crates(env) == []


def test_two_keys_are_none(http):
    body = json.dumps({"payload": {}}).encode()
    headers = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    headers += [("Content-Type", "application/json")]

    problem(http.post("/commands/crate.pack", content=body, headers=headers), 422, "invalid")


# -- health -----------------------------------------------------------------------------------------


class Snapshot:
    def health_snapshot(self):
        return {"running": True, "processed": 3}


def test_health_is_for_all_and_its_details_for_those_with_the_token(env):
    with served(env, worker=Snapshot()) as server, client(server) as http:
        told = http.get("/health")
        public = httpx.get(f"{server.url}/health")

    assert public.json() == {"status": "ok"}
    assert told.json() == {
        "status": "ok",
        "queue": env.queue.describe(),
        "worker": {"running": True, "processed": 3},
    }


def test_health_is_bad_if_the_database_does_not_answer(http, env):
    env.session.close()

    answer = http.get("/health")

    problem(answer, 503, "unavailable")
    assert answer.headers["retry-after"]


def test_health_is_told_while_all_threads_are_busy(http, env):
    with ThreadPoolExecutor(24) as pool:
        holding = [pool.submit(post, http, "crate.hold") for _ in range(24)]
        until(HELD.is_set)

        healthy = http.get("/health").status_code
        GO.set()

    assert healthy == 200
    assert Counter(each.result().status_code for each in holding) == {200: 24}
    assert crates(env) == ["held"] * 24


# -- who may ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "challenge"),
    [
        ({}, 'Bearer realm="ontologia"'),
        ({"Authorization": "Bearer wrong"}, 'Bearer realm="ontologia", error="invalid_token"'),
        ({"Authorization": "Bearer"}, 'Bearer realm="ontologia"'),
        ({"Authorization": "Basic b3Blbg=="}, 'Bearer realm="ontologia"'),
        ({"Authorization": "open-sesame"}, 'Bearer realm="ontologia"'),
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/commands/crate.pack"),
        ("POST", "/commands/none"),
        ("GET", "/openapi.json"),
        ("GET", "/nothing"),
        ("POST", "/health"),
        ("DELETE", "/health"),
        ("GET", "/health/"),
    ],
)
def test_without_the_token_nothing_is_told_or_done(env, headers, challenge, method, path):
    with served(env) as server, client(server, headers=headers) as http:
        answer = http.request(method, path, json={"payload": {"ref": "x"}})

    problem(answer, 401, "unauthorized")
    assert answer.headers["www-authenticate"] == challenge
    assert crates(env) == []


def test_two_tokens_are_none(env):
    headers = [*AUTHORIZED.items(), ("Authorization", "Bearer other")]
    with served(env) as server, client(server, headers=headers) as http:
        problem(http.get("/openapi.json"), 401, "unauthorized")


def test_the_scheme_may_be_written_in_any_case(env):
    headers = {"authorization": "bEARER open-sesame"}
    with served(env) as server, client(server, headers=headers) as http:
        assert http.get("/openapi.json").status_code == 200


def test_a_server_without_a_token_is_open(env):
    with served(env, token=None) as server, client(server, headers={}) as http:
        assert post(http, "crate.pack", {"ref": "a"}).status_code == 200
        assert "queue" in http.get("/health").json()
        assert "security" not in http.get("/openapi.json").json()


@pytest.mark.parametrize("token", ["", "two words", "naïve", "line\n"])
def test_a_token_that_no_header_carries_is_refused(env, token):
    from ontologia.errors import ConfigError
    from ontologia.web import create_app

    with pytest.raises(ConfigError, match="a token is made of"):
        create_app(env, token=token)
