"""Programs of two versions on one store: a deploy that replaces one process after the other."""

from __future__ import annotations

import sys

import httpx
import pytest

from ontologia import Entity, Event, Field, Session
from tests.integration.running import PATIENCE
from tests.integration.test_cli_run import Worker
from tests.integration.test_cli_serve import Program

BEFORE = """
from ontologia import Entity, Event, Field, on_event
from ontologia.commands import DomainModel, api


class Parcel(Entity):
    id: Field[str]
    stops: Field[int] = Field(default=0)


class ParcelMoved(Event):
    parcel: Field[str]


@on_event(ParcelMoved)
def move(ctx):
    parcel = ctx.get(Parcel, ctx.event.parcel) or Parcel(id=ctx.event.parcel)
    parcel.stops += 1
    ctx.ensure(parcel)
    ctx.commit()


@api.model("van")
class Van(DomainModel):
    name: Field[str]
    trips: Field[int] = Field(default=0)

    @api.on_command("van.drive")
    def drive(self, cmd):
        vans = self.env.models["van"].search([("name", "=", cmd.payload["name"])])
        if not vans:
            vans = self.env.models["van"].create({"name": cmd.payload["name"]})
        vans.write({"trips": vans.read()[0]["trips"] + 1})
        return vans.read()[0]["trips"]
"""
AFTER = (
    BEFORE.replace(
        "    stops: Field[int] = Field(default=0)\n",
        "    stops: Field[int] = Field(default=0)\n    seen_by: Field[str] = Field(default='nobody')\n",
    )
    .replace("    parcel.stops += 1\n", "    parcel.stops += 1\n    parcel.seen_by = 'new'\n")
    .replace(
        "    trips: Field[int] = Field(default=0)\n",
        "    trips: Field[int] = Field(default=0)\n    fuel: Field[str] = Field(default='diesel')\n",
    )
    .replace(
        '{"name": cmd.payload["name"]})\n        vans.write',
        '{"name": cmd.payload["name"], "fuel": "power"})\n        vans.write',
    )
)


class Parcel(Entity):
    id: Field[str]
    stops: Field[int] = Field(default=0)
    seen_by: Field[str] = Field(default="nobody")


class ParcelMoved(Event):
    parcel: Field[str]


@pytest.fixture
def folders(tmp_path):
    """Of the program before and after."""
    made = []
    for name, text in (("before", BEFORE), ("after", AFTER)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "depot.py").write_text(text)
        made.append(folder)
    return made


@pytest.fixture
def store(uri):
    Session(uri).close()
    return uri


def serving(folder, uri):
    return Program(folder, uri, "serve", "depot", "--port", "0", bearer="t")


def drive(server, name):
    answer = httpx.post(
        f"{server.root}/commands/van.drive",
        json={"payload": {"name": name}},
        headers={"Authorization": "Bearer t"},
        timeout=PATIENCE,
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def moved(worker, session, parcel):
    """Let this worker, the only one that runs, move a parcel."""
    event = ParcelMoved(parcel=parcel)
    session.commit(event=event)
    worker.hear(f"event {event.id} ", "done at attempt 1")


@pytest.mark.thorough
@pytest.mark.each_database
@pytest.mark.req("NEW-142", "NEW-143")
def test_a_deploy_goes_forward_and_back_one_process_after_the_other(store, folders, monkeypatch):
    before, after = folders
    monkeypatch.setenv("ONTOLOGIA_AUTO_MIGRATE", "compatible")
    with (
        Session(store) as session,
        serving(before, store) as old_server,
    ):
        old_server.root = old_server.url()
        with Worker(before, store, "depot") as worker:
            moved(worker, session, "p1")
            assert drive(old_server, "ada") == 1
            with serving(after, store) as new_server:
                new_server.root = new_server.url()
                assert drive(new_server, "bob") == 1
                # Servers and workers of both versions work on the same objects.
                assert drive(old_server, "bob") == 2
                assert drive(new_server, "ada") == 2
                assert drive(old_server, "ada") == 3
                moved(worker, session, "p1")
        with Worker(after, store, "depot", "--migrate", "compatible") as worker:
            moved(worker, session, "p1")
            assert session.one(Parcel, "p1").seen_by == "new"
            assert drive(old_server, "bob") == 3
        with Worker(before, store, "depot") as worker:  # and back
            moved(worker, session, "p1")
            moved(worker, session, "p2")
        code, rest = old_server.stop()

        assert (code, "Traceback" in rest) == (0, False)
        assert session.one(Parcel, "p1") == Parcel(id="p1", stops=4, seen_by="new")
        assert session.one(Parcel, "p2") == Parcel(id="p2", stops=1, seen_by="nobody")
    assert vans(store, after) == {"ada": (3, "diesel"), "bob": (3, "power")}


def vans(uri, folder):
    from ontologia.commands import Env

    sys.path.insert(0, str(folder))
    try:
        with Env(uri, modules=["depot"]) as env:
            found = env.models["van"].search([]).read()
            return {each["name"]: (each["trips"], each["fuel"]) for each in found}
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("depot")
