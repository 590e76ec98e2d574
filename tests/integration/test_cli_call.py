"""`ontologia serve --socket` and `ontologia call`: a store for programs in any language."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from ontologia import Session
from tests.integration.running import PATIENCE, until
from tests.integration.test_cli_serve import ONTOLOGIA, Program, launch

EXAMPLES = Path(__file__).parents[2] / "examples" / "actors"
MODELS = """
from ontologia import Entity, Field
from ontologia.commands import DomainModel, api

class LockKeeper(Entity):
    id: Field[str] = Field(primary_key=True)
    shift: Field[str]

@api.model("pier.gate")
class PierGate(DomainModel):
    name: Field[str]

    @api.on_command("boat.launch")
    def launch(self, cmd):
        [gate] = self.env.models["pier.gate"].create({"name": cmd.payload["name"]})
        return gate.read()[0]
"""


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "p"
    place.mkdir()
    (place / "gates.py").write_text(MODELS)
    return place


@pytest.fixture
def store(uri):
    Session(uri).close()
    return uri


def served(folder, uri, *arguments):
    return Program(folder, uri, "serve", "--socket", "run/o.sock", *arguments, bearer="t")


def called(folder, *arguments, **options):
    done = subprocess.run(
        [*ONTOLOGIA, "call", "--socket", "run/o.sock", *arguments],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        **options,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def message(type, data=None, kind="query", **metadata):
    found = {"kind": kind, "type": type, "data": data or {}}
    return json.dumps(found | ({"metadata": metadata} if metadata else {}))


def keeper(key, shift="night"):
    fields = {"id": key, "shift": shift}
    return message(
        "State.Ensure", {"objects": [{"type": "LockKeeper", "fields": fields}]}, "command"
    )


@pytest.mark.thorough
@pytest.mark.req("CQR-073")
def test_a_store_is_served_and_called(store, folder):
    with served(folder, store, "--models", "gates") as server:
        server.hear("serving the store at run/o.sock")
        lines = [
            keeper("k1"),
            "",
            message("State.Get", {"type": "LockKeeper", "key": "k1"}, id="mine", timestamp=5),
            message("Some.Thing", {"n": 1}, "event"),
            message(
                "Command.Dispatch", {"name": "boat.launch", "payload": {"name": "A"}}, "command"
            ),
        ]
        done = called(folder, input="\n".join(lines))
        code, rest = server.stop()

    answers = [json.loads(each) for each in done.stdout.splitlines()]
    assert done.returncode == 0
    assert [each["type"] for each in answers] == ["State.Ensure", "State.Get", "Command.Dispatch"]
    assert answers[1]["metadata"]["causation"] == "mine"
    assert answers[1]["data"]["fields"] == {"id": "k1", "shift": "night"}
    assert answers[2]["data"]["result"]["name"] == "A"
    assert code == 0
    assert "stopped: 1 client served" in rest
    assert not (folder / "run" / "o.sock").exists()


@pytest.mark.thorough
def test_the_exit_code_says_whether_all_went_well(tmp_path):
    uri = f"sqlite:///{tmp_path / 'a.db'}"
    Session(uri).close()
    told = {
        message("System.Describe"): (0, '"kind":"reply"'),
        message("No.Such"): (1, '"code":404'),
        "nonsense": (1, '"Sys.InvalidMessage"'),
        "[]": (1, "a message is a JSON object"),
        '{"kind": "query"}': (1, "type: Field required"),
        message("Some.Thing", {}, "event"): (0, ""),
    }
    with served(tmp_path, uri) as server:
        server.hear("serving the store at")
        done = {sent: called(tmp_path, sent) for sent in told}
        both = called(tmp_path, input=f"nonsense\n{message('System.Describe')}\n")
        server.stop()

    for sent, (code, said) in told.items():
        assert done[sent].returncode == code, sent
        assert said in done[sent].stdout
        assert len(done[sent].stdout.splitlines()) == (1 if said else 0)
    # One line that fails does not keep the others from being sent.
    kinds = [json.loads(each)["kind"] for each in both.stdout.splitlines()]
    assert (both.returncode, kinds) == (1, ["error", "reply"])


@pytest.mark.thorough
def test_a_line_that_is_answered_against_expectation_moves_no_other_answer(tmp_path):
    uri = f"sqlite:///{tmp_path / 'a.db'}"
    Session(uri).close()
    refused = message("No.Such", kind="reply", id="r", timestamp=1)
    asked = [message("No.Such", id="a", timestamp=1), message("No.Such", id="b", timestamp=1)]
    with served(tmp_path, uri) as server:
        server.hear("serving the store at")
        done = called(tmp_path, input="\n".join([refused, *asked]))
        server.stop()

    answered = [json.loads(each)["metadata"]["causation"] for each in done.stdout.splitlines()]
    assert answered == ["r", "a", "b"]


def test_nobody_listens(folder):
    done = called(folder, "{}")

    assert done.returncode == 4
    assert "nobody listens at run/o.sock" in done.stderr
    assert "ontologia serve --socket run/o.sock" in done.stderr


@pytest.mark.thorough
def test_http_and_the_socket_are_served_together(store, folder):
    with served(folder, store, "gates", "--port", "0") as server:
        server.hear("serving the store at run/o.sock")
        url = server.url()
        answer = launch(url, "Ada")
        done = called(folder, message("State.Query", {"type": "pier.gate"}))
        server.popen.send_signal(signal.SIGTERM)
        code, rest = server.end()

    assert answer.status_code == 200
    [found] = json.loads(done.stdout)["data"]["objects"]
    assert found["fields"]["name"] == "Ada"
    assert code == 0
    assert "stopped: 1 request answered, 1 client served" in rest
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{url}/health")


@pytest.mark.parametrize("modules", [(), ("gates", "--port", "0")])
def test_a_socket_that_cannot_be_is_said_and_nothing_is_served(store, folder, modules):
    (folder / "run").write_text("a file")

    with served(folder, store, *modules) as server:
        code, rest = server.end()

    assert code == 1
    assert "cannot listen at run/o.sock" in rest
    assert "Traceback" not in rest


def test_there_must_be_something_to_serve(store, folder):
    done = run(*ONTOLOGIA, "serve", "--datastore-uri", store, cwd=folder)

    assert done.returncode == 2
    assert "give a MODULE, or --socket PATH" in " ".join(done.stderr.split())


@pytest.mark.thorough
def test_a_socket_needs_no_packages_of_http(store, folder):
    (folder / "starlette.py").write_text("raise ImportError('not here')")

    with served(folder, store) as server:
        server.hear("serving the store at")
        done = called(folder, message("System.Describe"))
        code, _ = server.stop()

    assert (done.returncode, code) == (0, 0)


@pytest.mark.thorough
@pytest.mark.req("CQR-061")
def test_a_durable_timer_survives_the_death_of_its_process(store, folder):
    """What it sends is a command of the store's own: an event that says it was carried out."""

    def timer(due, name):
        inner = {"kind": "command", "type": "Event.Publish", "data": {"type": name}}
        data = {"dueAt": due, "durable": True, "message": inner}
        return message("Timer.Set", data, "command")

    with served(folder, store) as server:
        server.hear("serving the store at")
        now = int(time.time() * 1000)
        lines = [timer(now + 5_000, "alarm.rang"), timer(now + 3_600_000, "alarm.later")]
        done = called(folder, input="\n".join(lines))
        server.popen.kill()
        server.popen.wait(PATIENCE)
    assert done.returncode == 0
    _, later = [json.loads(each)["data"]["timerId"] for each in done.stdout.splitlines()]

    with Session(store) as session:

        def rung():
            events = session.event_store.list_events(session.namespace)
            return [each["type"] for each in events if not each["type"].startswith("actors.")]

        assert rung() == [], "it fired too early for this test to mean anything"
        with served(folder, store) as server:  # over the socket file that the dead one left
            server.hear("serving the store at")
            cancelled = called(folder, message("Timer.Cancel", {"timerId": later}, "command"))
            until(rung)
            code, _ = server.stop()

        assert json.loads(cancelled.stdout)["data"] == {"cancelled": True}
        assert rung() == ["alarm.rang"]
        assert code == 0


# -- the examples ---------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node here")
def test_a_program_in_another_language_uses_the_store(store, folder):
    (folder / "test.mjs").write_text(
        f"""
import {{ connect }} from "{(EXAMPLES / "client.mjs").as_uri()}";
const store = await connect("run/o.sock");
const many = Array.from({{ length: 50 }}, (_, n) => store.command("State.Ensure",
  {{ objects: [{{ type: "LockKeeper", fields: {{ id: "k" + n, shift: n % 2 ? "day" : "night" }} }}] }}));
await Promise.all(many);
const where = [["shift", "=", "day"]];
const {{ objects }} = await store.query("State.Query", {{ type: "LockKeeper", where }});
console.log(objects.length);
try {{ await store.query("State.Get", {{ type: "LockKeeper", key: "nobody" }}); }}
catch (error) {{ console.log(error.code); }}
store.close();
await new Promise((resolve) => setTimeout(resolve, 100));
try {{ await store.query("System.Describe"); }}
catch (error) {{ console.log(error.message); }}
"""
    )
    with served(folder, store, "--models", "gates") as server:
        server.hear("serving the store at")
        done = run("node", "test.mjs", cwd=folder)
        one = run(
            "node", EXAMPLES / "client.mjs", "run/o.sock", "query", "State.Get",
            '{"type": "LockKeeper", "key": "k1"}', cwd=folder,
        )  # fmt: skip
        none = run("node", EXAMPLES / "client.mjs", "run/o.sock", "query", "No.Such", cwd=folder)
        server.stop()

    assert done.stdout.splitlines() == ["25", "404", "the connection was closed"], done.stderr
    assert done.returncode == 0
    assert json.loads(one.stdout)["fields"] == {"id": "k1", "shift": "day"}
    assert (none.returncode, "404" in none.stderr) == (1, True)


def run(*command, cwd):
    return subprocess.run(
        command, check=False, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE
    )


@pytest.mark.thorough
@pytest.mark.req("CQR-092")
def test_the_example_of_a_capability_remembers(tmp_path):
    process = subprocess.Popen(
        [sys.executable, EXAMPLES / "memory.py", "run/o.sock"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        until((tmp_path / "run" / "o.sock").exists)
        set_ = called(tmp_path, message("Memory.Set", {"name": "color", "value": "red"}, "command"))
        got = called(tmp_path, message("Memory.Get", {"name": "color"}))
        none = called(tmp_path, message("Memory.Get", {"name": "sound"}))
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()

    assert set_.returncode == 0
    assert json.loads(got.stdout)["data"] == {"value": "red"}
    assert (none.returncode, json.loads(none.stdout)["data"]["code"]) == (1, 404)
    assert said == "stopped\n"


CAPABILITIES = """
import os
from typing import Literal
from ontologia.actors import Actor, Capability, Message

class LockOpen(Message):
    kind: Literal["command"]
    type: Literal["Lock.Open"]
    data: dict[str, str]

class LockWho(Message):
    kind: Literal["query"]
    type: Literal["Lock.Who"]

class LockActor(Actor):
    async def handle(self, message: LockOpen) -> None:
        asked = Message.query("State.Get", {"type": "LockKeeper", "key": message.data["keeper"]})
        found = await self.request(asked)
        self.reply(message, {"by": found.data["fields"]["shift"]})

class WhoActor(Actor):
    async def handle(self, message: LockWho) -> None:
        self.reply(message, {"pid": os.getpid()})

lock = Capability("lock", "Opens", inbound=LockOpen, outbound=Message, spawn=LockActor)
apart = [Capability("who", "Tells", inbound=LockWho, outbound=Message, spawn=WhoActor,
                    isolation="process")]
number = 5
"""


@pytest.mark.thorough
def test_capabilities_of_a_program_are_served_beside_those_of_the_store(store, folder):
    (folder / "locks.py").write_text(CAPABILITIES)
    own = ["--capabilities", "locks:lock", "--capabilities", "locks:apart"]
    with served(folder, store, "--models", "gates", *own) as server:
        server.hear("serving the store at run/o.sock")
        lines = [
            keeper("k1"),
            message("Lock.Open", {"keeper": "k1"}, "command"),
            message("Lock.Who"),
            message("System.Describe"),
        ]
        done = called(folder, input="\n".join(lines) + "\n")
        code, _ = server.stop()

    answers = [json.loads(each)["data"] for each in done.stdout.splitlines()]
    assert answers[1] == {"by": "night"}
    assert answers[2]["pid"] != server.popen.pid
    described = {each["id"]: each["handles"] for each in answers[3]["capabilities"]}
    assert [each["type"] for each in described["lock"]] == ["Lock.Open"]
    assert (done.returncode, code) == (0, 0)


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("locks:number", "locks:number is not a Capability, nor a list of some; got 5"),
        ("locks:missing", "locks:missing is not a Capability, nor a list of some; got None"),
        ("locks", "locks is not the name of a capability"),
        ("nowhere:lock", "there is no module nowhere"),
    ],
)
def test_what_is_no_capability_is_said_and_nothing_is_served(store, folder, named, said):
    (folder / "locks.py").write_text(CAPABILITIES)

    done = subprocess.run(
        [
            *ONTOLOGIA,
            "--datastore-uri",
            store,
            "serve",
            "--socket",
            "o.sock",
            "--capabilities",
            named,
        ],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )

    assert done.returncode == 4
    assert said in done.stderr
    assert not (folder / "o.sock").exists()


def test_capabilities_need_a_socket(store, folder):
    done = subprocess.run(
        [*ONTOLOGIA, "--datastore-uri", store, "serve", "gates", "--capabilities", "locks:lock"],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )

    assert done.returncode == 2
    assert "give --socket PATH" in done.stderr


# -- over TCP -------------------------------------------------------------------------------------

OVER_TCP = """
import asyncio
from ontologia.actors import ActorLoop, TcpAdapter
from locks import apart

async def main():
    tcp = TcpAdapter(token="secret")
    async with ActorLoop(apart, adapters=[tcp]) as loop:
        print(tcp.port, flush=True)
        await asyncio.Event().wait()

if __name__ == "__main__":
    asyncio.run(main())
"""


def over_tcp(folder, place, token):
    environment = {name: value for name, value in os.environ.items() if name != "ONTOLOGIA_TOKEN"}
    if token is not None:
        environment["ONTOLOGIA_TOKEN"] = token
    return subprocess.run(
        [*ONTOLOGIA, "call", "--tcp", place, message("Lock.Who")],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=folder,
        env=environment,
    )


@pytest.mark.thorough
def test_a_program_that_listens_on_tcp_is_called_with_its_token(folder):
    (folder / "locks.py").write_text(CAPABILITIES)
    (folder / "over_tcp.py").write_text(OVER_TCP)
    with subprocess.Popen(
        [sys.executable, "over_tcp.py"], cwd=folder, stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            assert program.stdout is not None
            place = f"127.0.0.1:{program.stdout.readline().strip()}"
            done = over_tcp(folder, place, "secret")
            wrong = over_tcp(folder, place, "guess")
            none = over_tcp(folder, place, None)
        finally:
            program.kill()
    nobody = over_tcp(folder, place, "secret")

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["data"]["pid"] > 0
    assert (wrong.returncode, json.loads(wrong.stdout)["data"]["code"]) == (1, 401)
    assert "Set ONTOLOGIA_TOKEN" in none.stderr
    assert (nobody.returncode, "nobody listens" in nobody.stderr) == (4, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say where: --socket PATH, or --tcp HOST:PORT"),
        (["--tcp", "localhost"], "an address is written HOST:PORT, got localhost"),
        (["--tcp", "localhost:x"], "an address is written HOST:PORT"),
    ],
)
def test_an_address_is_one_and_complete(folder, arguments, said):
    done = subprocess.run(
        [*ONTOLOGIA, "call", *arguments, "{}"],
        check=False, cwd=folder, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip

    assert done.returncode == 2
    assert said in done.stderr
