"""What tests of stores share: a clock that stands still, an empty store on each backend in turn,
sessions that get closed.

`pytest_plugins = ["ontologia.testing.conformance.plugin"]` in a `conftest.py` has it for other
tests, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from ontologia import OntologiaConfig, Session
from ontologia.queues import CarefulQueue
from ontologia.store.events.store import SqlEventStore
from ontologia.store.open import WithEvents, open_event_store
from ontologia.testing import ManualClock
from ontologia.testing.conformance.backends import (
    NAMES,
    PORT,
    SERVER,
    Backend,
    SQLite,
    postgres_server,
)
from ontologia.testing.conformance.queue_world import PROVIDERS, InMemory, InStore, Provider

if TYPE_CHECKING:
    from ontologia.testing.conformance.schemas import Postgres
    from ontologia.testing.servers import SharedPostgres

# At the desk each run looks at new examples; CI looks at the same ones each time, so that a run
# says something about the change and not about luck.
settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("ci")

pytest_plugins = ["ontologia.testing.conformance.tiers"]


# -- servers for `pytest -n` ----------------------------------------------------------------------

_shared: pytest.StashKey[SharedPostgres] = pytest.StashKey()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker process of xdist where it gets a database; this runs in the controller."""
    try:
        from ontologia.testing.servers import SharedPostgres
    except ImportError:  # the tests that need a server say so
        return
    if _shared not in node.config.stash:
        node.config.stash[_shared] = SharedPostgres()
    node.workerinput[PORT] = node.config.stash[_shared].port


def pytest_unconfigure(config: pytest.Config) -> None:
    if _shared in config.stash:
        config.stash[_shared].close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


# -- backends -------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def sqlite() -> SQLite:
    return SQLite()


@pytest.fixture(scope="session")
def postgres18(pytestconfig: pytest.Config) -> Iterator[Postgres]:
    with postgres_server(18, pytestconfig) as server:
        yield from _schemas(server, drop=False)  # the server goes with all that is on it


@pytest.fixture(scope="session")
def postgres16(pytestconfig: pytest.Config) -> Iterator[Postgres]:
    with postgres_server(16, pytestconfig) as server:
        yield from _schemas(server, drop=False)  # the server goes with all that is on it


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The server that ONTOLOGIA_TEST_POSTGRES names."""
    yield from _schemas(SERVER, drop=True)


def _schemas(server: str, *, drop: bool) -> Generator[Postgres]:
    from ontologia.testing.conformance.schemas import Postgres

    made = Postgres(server)
    try:
        yield made
    finally:
        made.close(drop=drop)


@pytest.fixture(scope="session", params=NAMES)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each backend in turn; `backends` has marks for tests of one kind alone."""
    found: Backend = request.getfixturevalue(request.param)
    return found


# -- stores ---------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the test's database is, if it is a file."""
    return tmp_path / "test.db"


@pytest.fixture
def uri(backend: Backend, tmp_path: Path) -> Iterator[str]:
    """Where the test's store is."""
    with backend.store(tmp_path) as uri:
        yield uri


@pytest.fixture(scope="session")
def fresh_uri(backend: Backend) -> Callable[[], str]:
    """An empty store each time it is called, for tests that need one an example."""
    return backend.fresh


@pytest.fixture
def direct(backend: Backend, uri: str) -> Callable[..., list[Any]]:
    """Ask or change the tables themselves, on a connection of its own; `?` stands for a value."""

    def ask(statement: str, values: Sequence[Any] = ()) -> list[Any]:
        return backend.ask(uri, [statement], values)

    return ask


@pytest.fixture
def sql(backend: Backend, uri: str) -> Callable[..., list[list[Any]]]:
    """The same for several statements; rows as lists."""
    return lambda *statements: [list(row) for row in backend.ask(uri, statements)]


# -- sessions -------------------------------------------------------------------------------------


@pytest.fixture
def open_session(uri: str, clock: ManualClock) -> Iterator[Callable[..., Session]]:
    """Open sessions on the test's store; they are closed at the end.

    Keywords of OntologiaConfig are given as `settings={...}`.
    """
    opened: list[Session] = []

    def open_(*, settings: dict[str, Any] | None = None, **options: Any) -> Session:
        config = OntologiaConfig(**({"clock": clock} | (settings or {})))
        session = Session(options.pop("uri", uri), config=config, **options)
        opened.append(session)
        return session

    yield open_
    for session in opened:
        session.close()


@pytest.fixture
def session(open_session: Callable[..., Session]) -> Session:
    return open_session()


# -- events ---------------------------------------------------------------------------------------


@pytest.fixture
def open_events(uri: str, clock: ManualClock) -> Iterator[Callable[..., SqlEventStore]]:
    """Open the test's event store, as another process would; settings as keywords.

    At the end what is stored must keep every rule of delivery.
    """
    opened: list[WithEvents] = []

    def open_(**settings: Any) -> SqlEventStore:
        config = OntologiaConfig(clock=clock, **settings)
        opened.append(open_event_store(uri, config, clock, Random(len(opened))))
        return opened[-1].events

    yield open_
    try:
        for each in opened[:1]:
            assert each.events.check() == []
    finally:
        for each in opened:
            each.close()


@pytest.fixture
def event_store(open_events: Callable[..., SqlEventStore]) -> SqlEventStore:
    return open_events()


@pytest.fixture
def ask(event_store: SqlEventStore, direct: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Rows of the event store's tables themselves."""
    return direct


@pytest.fixture
def change(event_store: SqlEventStore, direct: Callable[..., list[Any]]) -> Callable[..., int]:
    """Change the tables behind the store's back; how many rows were."""

    def run(statement: str) -> int:
        return len(direct(f"{statement} RETURNING 1"))

    return run


# -- queues ---------------------------------------------------------------------------------------


@pytest.fixture
def inmemory(clock: ManualClock) -> Iterator[InMemory]:
    with closing(InMemory(clock)) as provider:
        yield provider


@pytest.fixture(params=[*PROVIDERS, *NAMES])
def queues(
    request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path
) -> Iterator[Provider]:
    """Each provider of queues in turn; over a store, each backend."""
    found = request.getfixturevalue(request.param)
    if request.param not in NAMES:
        yield found
        return
    with found.store(tmp_path) as uri, closing(InStore(uri, clock)) as provider:
        yield provider


@pytest.fixture
def queue(queues: Provider) -> CarefulQueue:
    return queues.open()
