"""What takes long is done in the background, one thing at a time, and ends with the console."""

from __future__ import annotations

import json
import signal
import sys
from itertools import count

import httpx
import pytest

from ontologia import Entity, Event, Field, Session
from ontologia.errors import OntologiaError
from ontologia.runtime.session import core_of
from tests.integration.console.test_serving import program as started
from tests.integration.console.world import browsing, opened, vic
from tests.integration.running import PATIENCE, until

EVIL = '"><img src=x onerror=alert(1)></script>'
names = count(1)
PROGRAM = """
from ontologia import Entity, Event, Field, on_event


class Room(Entity):
    id: Field[str]
    beds: Field[int]{default}


class Booked(Event):
    room: Field[str]
    nights: Field[int]{default}


@on_event(Booked, name="confirm")
def confirm(ctx):
    pass
"""


class Room(Entity):
    id: Field[str]


class Booked(Event):
    room: Field[str]


@pytest.fixture
def hotel(open_session):
    session: Session = open_session()
    session.ensure(Room(id="1"))
    session.event_store.consumers.register("default", "confirm", ["booked"])
    session.commit(event=[Booked(room=EVIL), Booked(room="2")])
    return session


@pytest.fixture
def desk(hotel):
    app = opened(hotel)
    with browsing(app) as browser:
        browser.console = app
        yield browser
    app.close()


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Write a module; its name."""
    monkeypatch.syspath_prepend(tmp_path)
    made = []

    def write(text):
        made.append(f"hotel_program_{next(names)}")
        (tmp_path / f"{made[-1]}.py").write_text(text)
        return made[-1]

    yield write
    for name in made:
        sys.modules.pop(name, None)


def token_of(page) -> str:
    return page.text.split('name="form_token" value="')[1].split('"')[0]


def done(console):
    until(lambda: console.jobs.running is None)


def sent(browser, page, path, **fields):
    return browser.post(path, {"form_token": token_of(browser.get(page)), **fields})


@pytest.mark.req("NEW-222")
def test_nothing_is_examined_before_somebody_asks(desk):
    page = desk.get("/health")
    assert page.status_code == 200
    assert "not examined" in page.text
    assert "ontologia doctor" in page.text
    assert desk.console.jobs.last("doctor", None) is None
    assert desk.get("/health/examine").status_code == 405


def test_an_examination_finds_what_the_command_finds(desk, hotel, sql):
    sql("DELETE FROM entity_latest")
    hotel.commit(event=Booked(room=EVIL))
    answer = sent(desk, "/health", "/health/examine")
    assert (answer.status_code, answer.headers["location"]) == (303, "/health")
    done(desk.console)
    job = desk.console.jobs.last("doctor", None)
    assert job.error is None
    assert job.step == job.steps  # the bar ends at its end
    page = desk.get("/health").text
    assert "current entities are not what history says" in page
    assert "examined by <bdi>ada</bdi>" in page
    assert "ontologia doctor --repair" in page
    assert "<img" not in page


def test_a_viewer_and_a_console_that_only_reads_begin_nothing(hotel, program):
    name = program(PROGRAM.format(default=" = 1"))
    paths = ("/health", "/preflight")
    for options, status in (({"identify": vic}, 403), ({"read_only": True}, 404)):
        app = opened(hotel, models=name, **options)
        with browsing(app) as browser:
            for path, action in zip(paths, ("examine", "compare"), strict=True):
                page = browser.get(path)
                assert page.status_code == 200
                assert 'method="post"' not in page.text
                answer = browser.post(f"{path}/{action}", {"form_token": "x"})
                assert answer.status_code == status
            assert app.jobs.running is None
        app.close()


@pytest.mark.req("NEW-222")
def test_there_is_one_job_at_a_time(desk):
    jobs = desk.console.jobs
    slow = jobs.start("doctor", f"count {EVIL}", lambda job: until(lambda: job.stopped), by=EVIL)
    page = desk.get("/health").text
    assert "Running:" in page
    assert "count &#34;&gt;&lt;img" in page
    assert "<img" not in page
    answer = sent(desk, "/health", "/health/examine")
    assert answer.status_code == 409
    assert "nothing was begun" in answer.text
    slow.stop()
    done(desk.console)
    assert sent(desk, "/health", "/health/examine").status_code == 303
    done(desk.console)


def test_a_job_that_fails_says_why(desk, caplog):
    def refused(job):
        raise OntologiaError("the disk is full", hint=f"Make room. {EVIL}")

    def broken(job):
        raise ValueError("the secret of the program")

    desk.console.jobs.start("doctor", "examine", refused, by="ada")
    done(desk.console)
    page = desk.get("/health").text
    assert "the disk is full" in page
    assert "Make room." in page
    assert "<img" not in page
    desk.console.jobs.start("doctor", "examine", broken, by="ada")
    done(desk.console)
    page = desk.get("/health").text
    assert "ValueError" in page
    assert "secret" not in page
    assert "the secret of the program" in caplog.text


def test_a_job_ends_with_the_console(hotel):
    app = opened(hotel)
    begun = []

    def endless(job):
        for number in count():
            begun.append(number)
            job.tell(f"step {number}")

    job = app.jobs.start("doctor", "examine", endless, by="ada")
    until(lambda: begun)
    app.close()
    assert not job.running
    assert "ended before" in job.error
    with pytest.raises(OntologiaError, match="ending"):
        app.jobs.start("doctor", "examine", endless, by="ada")
    app.close()


def test_a_statement_that_runs_ends_with_the_console(hotel, backend):
    if backend.name != "sqlite":
        pytest.skip("a statement on a server ends at its own limit")
    app = opened(hotel)
    database = core_of(hotel).store.database
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT sum(i) FROM n"
    asked = []

    def ask(job):
        asked.append(job)
        database.all(endless)

    job = app.jobs.start("doctor", "examine", ask, by="ada")
    until(lambda: asked)
    app.close()
    assert not job.running
    assert job.stopped


def test_pages_that_are_open_are_told_of_the_progress(desk):
    told = []
    desk.console.live.tell = told.append
    desk.console.jobs.start("doctor", "examine", lambda job: job.tell("a step"), by="ada")
    done(desk.console)
    until(lambda: len(told) == 2)
    assert told == ["jobs", "jobs"]


@pytest.mark.req("NEW-160")
def test_the_report_before_a_deployment_is_that_of_the_command(hotel, program):
    name = program(PROGRAM.format(default=""))
    app = opened(hotel, models=name)
    with browsing(app) as browser:
        page = browser.get("/preflight")
        assert f"ontologia preflight {name}" in page.text
        assert "was not compared" in page.text
        answer = sent(browser, "/preflight", "/preflight/compare")
        assert (answer.status_code, answer.headers["location"]) == (303, "/preflight")
        done(app)
        text = browser.get("/preflight").text
    job = app.jobs.last("preflight", "default")
    assert job.error is None
    assert job.result.breaks
    assert "would break the deployment" in text
    assert "cannot be read as Booked" in text
    assert "entity Room, version 1: breaking" in text
    assert "<img" not in text
    app.close()


def test_a_program_that_fits_breaks_nothing(hotel, program):
    app = opened(hotel, models=program(PROGRAM.format(default=" = 1")))
    with browsing(app) as browser:
        sent(browser, "/preflight", "/preflight/compare", all="1")
        done(app)
        text = browser.get("/preflight").text
    assert "Nothing breaks" in text
    assert hotel.head == 1  # and nothing was written
    assert [each.complete for each in app.jobs.last("preflight", "default").result.read] == [True]
    app.close()


def test_without_a_program_the_page_says_how_to_name_one(desk):
    text = desk.get("/preflight").text
    assert "knows no program" in text
    assert "ontologia preflight MODULE" in text
    assert desk.post("/preflight/compare", {}).status_code == 404


def test_a_server_stops_while_a_job_runs(tmp_path):
    """A repair waits for a lock: the program ends all the same, and nothing was written."""
    uri = f"sqlite:///{tmp_path / 'app.db'}"
    with Session(uri) as session:
        session.ensure(Room(id="1"))
        session.commit()
        with started("console", "--datastore-uri", uri, "--port", "0", "--json") as running:
            said = json.loads(running.stdout.readline())
            with httpx.Client(base_url=said["url"], timeout=PATIENCE) as client:
                client.headers["Origin"] = said["url"]
                code = said["login"].partition("code=")[2]
                client.post("/login", data={"code": code, "name": "ada"})
                form = {"form_token": token_of(client.get("/health")), "reason": "why"}
                client.post("/health/examine", data=form)
                until(lambda: "Examine again" in client.get("/health").text)
                until(lambda: "Running:" not in client.get("/health").text)
                with core_of(session).store.write():
                    assert client.post("/do/repair", data=form).status_code == 303
                    assert "Running:" in client.get("/health").text
                    running.send_signal(signal.SIGTERM)
                    assert running.wait(PATIENCE) == 0
        assert session.head == 1
