"""What tests of stores share: a clock that stands still, an empty store on each backend in turn,
sessions that get closed.

`pytest_plugins = ["ontologia_conformance.plugin"]` in a `conftest.py` has it for other
tests, too.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import pytest
from hypothesis import settings

from ontologia import OntologiaConfig, Session
from ontologia.queues import CarefulQueue
from ontologia.store.events.store import EventStore
from ontologia.store.open import open_event_store
from ontologia.testing import ManualClock
from ontologia_conformance.backends import (
    NAMES,
    PORT,
    S3,
    SERVER,
    Backend,
    SQLite,
    postgres_server,
)
from ontologia_conformance.queue_world import (
    CLASSIC,
    PROVIDERS,
    InMemory,
    InStore,
    OnKafka,
    Provider,
    real_kafka,
)
from ontologia_conformance.seaweed import BUCKET, S3_PORT, SharedSeaweed, s3_environment

if TYPE_CHECKING:
    from ontologia_conformance.kafka_servers import MockKafka
    from ontologia_conformance.schemas import Postgres
    from ontologia_conformance.servers import SharedPostgres

# At the desk each run looks at new examples; CI looks at the same ones each time, so that a run
# says something about the change and not about luck.
settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("ci")

pytest_plugins = ["ontologia_conformance.tiers"]


# -- servers for `pytest -n` ----------------------------------------------------------------------

_shared: pytest.StashKey[SharedPostgres] = pytest.StashKey()
_shared_s3: pytest.StashKey[SharedSeaweed] = pytest.StashKey()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker process of xdist where it gets a database; this runs in the controller."""
    try:
        from ontologia_conformance.servers import SharedPostgres
    except ImportError:  # the tests that need a server say so
        return
    if _shared not in node.config.stash:
        node.config.stash[_shared] = SharedPostgres()
    node.workerinput[PORT] = node.config.stash[_shared].port
    if _shared_s3 not in node.config.stash:
        node.config.stash[_shared_s3] = SharedSeaweed()
    node.workerinput[S3_PORT] = node.config.stash[_shared_s3].port


def pytest_unconfigure(config: pytest.Config) -> None:
    if _shared in config.stash:
        config.stash[_shared].close()
    if _shared_s3 in config.stash:
        config.stash[_shared_s3].close()


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


@pytest.fixture(scope="session")
def s3(s3_server: dict[str, str]) -> S3:
    return S3(s3_server)


def _schemas(server: str, *, drop: bool) -> Generator[Postgres]:
    from ontologia_conformance.schemas import Postgres

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


@pytest.fixture(scope="session")
def s3_server(pytestconfig: pytest.Config) -> Iterator[dict[str, str]]:
    """The variables that lead a client to an S3 server of the tests; skips where there is none."""
    with s3_environment(pytestconfig) as environment:
        yield environment


@pytest.fixture
def s3_uri(s3_server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """A prefix of a bucket with nothing under it; the environment leads clients there."""
    for name, value in s3_server.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{uuid4().hex}"


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
def open_events(uri: str, clock: ManualClock) -> Iterator[Callable[..., EventStore]]:
    """Open the test's event store, as another process would; settings as keywords.

    At the end what is stored must keep every rule of delivery.
    """
    opened: list[Any] = []

    def open_(**settings: Any) -> EventStore:
        config, random = OntologiaConfig(clock=clock, **settings), Random(len(opened))
        if uri.startswith("s3://"):
            from ontologia.store.s3 import S3EventStore

            opened.append(S3EventStore(uri, config=config, random=random))
            return cast(EventStore, opened[-1])  # what it promises is the same
        opened.append(open_event_store(uri, config, clock, random))
        return cast(EventStore, opened[-1].events)

    yield open_
    try:
        for each in opened[:1]:
            assert getattr(each, "events", each).check() == []
    finally:
        for each in opened:
            each.close()


@pytest.fixture
def event_store(open_events: Callable[..., EventStore]) -> EventStore:
    return open_events()


@pytest.fixture
def ask(event_store: EventStore, direct: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Rows of the event store's tables themselves."""
    return direct


@pytest.fixture
def change(event_store: EventStore, direct: Callable[..., list[Any]]) -> Callable[..., int]:
    """Change the tables behind the store's back; how many rows were."""

    def run(statement: str) -> int:
        return len(direct(f"{statement} RETURNING 1"))

    return run


# -- queues ---------------------------------------------------------------------------------------


@pytest.fixture
def inmemory(clock: ManualClock) -> Iterator[InMemory]:
    with closing(InMemory(clock)) as provider:
        yield provider


@pytest.fixture(scope="session")
def mock_kafka() -> Iterator[MockKafka]:
    """A mock cluster for all tests; skips without confluent-kafka, which CI must have."""
    if find_spec("confluent_kafka") is None:
        assert not os.environ.get("CI"), "confluent-kafka is not installed"
        pytest.skip("no Kafka: confluent-kafka is not installed")
    from ontologia_conformance.kafka_servers import MockKafka

    with MockKafka() as mock:
        yield mock


@pytest.fixture
def kafka(
    mock_kafka: MockKafka, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OnKafka]:
    """Queues on a topic of their own on the mock cluster."""
    with closing(OnKafka(mock_kafka.servers, clock)) as provider:
        mock_kafka.make_topics(provider.topics)
        # A member that is given no partition waits that long.
        monkeypatch.setattr("ontologia.queues.kafka.JOIN_SECONDS", 1.5)
        # The mock sends its messages one by one.
        monkeypatch.setattr("ontologia.queues.kafka.GATHER_SECONDS", 0.02)
        yield provider


@pytest.fixture(scope="session")
def apache_kafka() -> Iterator[str]:
    """The servers of a real Kafka: KAFKA_BOOTSTRAP, or one that is started for the tests."""
    if servers := os.environ.get("KAFKA_BOOTSTRAP"):
        yield servers
        return
    with real_kafka() as broker:
        yield broker.servers


@pytest.fixture
def real_broker(apache_kafka: str, clock: ManualClock) -> Iterator[OnKafka]:
    """Queues on a topic of their own on a real Kafka."""
    with closing(OnKafka(apache_kafka, clock)) as provider:
        yield provider


@pytest.fixture
def classic_broker(apache_kafka: str, clock: ManualClock) -> Iterator[OnKafka]:
    """The same with the classic group protocol, which is the default of librdkafka.

    In a group of its own: there, one that left while it joined is waited for.
    """
    group = f"g-{secrets.token_hex(8)}"
    with closing(OnKafka(apache_kafka, clock, CLASSIC, group)) as provider:
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
