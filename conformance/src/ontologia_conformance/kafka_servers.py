"""Kafka for tests: librdkafka's mock cluster, and a real Apache Kafka. They listen on loopback only.

The mock is in the wheel of confluent-kafka and starts in a moment. It keeps no offsets that were
committed in a transaction, creates no topics on request, and forgets all when it ends. The real one
needs Java 17; its jars are fetched once, with Maven, into the folder `.cache` of the repository.
"""

from __future__ import annotations

import ctypes
import fcntl
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

VERSION = "4.1.0"
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_START_SECONDS = 90
_FETCH_SECONDS = 540

_MOCK = """
import sys
from confluent_kafka import Producer
held = Producer({"bootstrap.servers": "unused:1", "test.mock.num.brokers": 1, "log_level": 0})
brokers = held.list_topics(timeout=30).brokers.values()
print(",".join(f"{each.host}:{each.port}" for each in brokers), flush=True)
for line in sys.stdin:
    for topic in line.split():
        held.list_topics(topic, timeout=30)
    print("made", flush=True)
"""


class MockKafka:
    """A mock cluster in a process of its own, until it is stopped. A topic has 4 partitions."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MOCK],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
        )
        self.servers = self._answer()
        """What clients connect to."""

    def make_topics(self, topics: Sequence[str]) -> None:
        """Make them: a client cannot."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(topics) + "\n")
        self._process.stdin.flush()
        self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError("the mock cluster of Kafka did not start")
        return line

    def kill(self) -> None:
        """End it as a crash would; nothing of it is left."""
        self._process.kill()
        self._process.wait(20)

    def stop(self) -> None:
        """End it. Idempotent."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Kafka:
    """A real Apache Kafka of one node with an empty log, until it is stopped.

    ```python
    with Kafka() as broker:
        queue = open_queue("kafka", bootstrap_servers=broker.servers)
    ```

    FileNotFoundError, with the reason, where there is no Java or the jars cannot be had. `settings`
    are more lines of its configuration, `client` what a client needs for them.
    """

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        client: Mapping[str, str] | None = None,
    ) -> None:
        self._jars = kafka_jars()
        self._client = {"log_level": 0} | dict(client or {})
        self.folder = Path(tempfile.mkdtemp(prefix="kafka-", dir="/tmp"))
        port, controller = _free_ports(2)
        self.servers = f"127.0.0.1:{port}"
        """The same for as long as the log lives, also after a restart."""
        self._process: subprocess.Popen[Any] | None = None
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.folder / "data"),
            "num.partitions": "4",
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "1000",
            "group.consumer.min.session.timeout.ms": "1000",
            "group.consumer.session.timeout.ms": "15000",
            "group.consumer.min.heartbeat.interval.ms": "300",
            "group.consumer.heartbeat.interval.ms": "500",
            "log.retention.check.interval.ms": "1000",
        }
        written = "".join(f"{k}={v}\n" for k, v in (lines | dict(settings or {})).items())
        (self.folder / "settings").write_text(written)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Make the log, the first time, and start the broker on it."""
        if not (self.folder / "data").exists():
            made = subprocess.run(
                [
                    *self._java("kafka.tools.StorageTool"),
                    *("format", "-t", _cluster_id(), "-c", self.folder / "settings"),
                ],
                capture_output=True,
                text=True,
                check=False,
            )
            if made.returncode:
                raise RuntimeError(f"Kafka's log was not made: {made.stdout}{made.stderr}")
        with (self.folder / "log").open("ab") as output:
            self._process = subprocess.Popen(
                [*self._java("kafka.Kafka"), self.folder / "settings"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
            )
        self._wait()

    def _java(self, program: str) -> list[str | Path]:
        quick = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
        return [java(), *quick, "-cp", f"{self._jars}/*", program]

    def _wait(self) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        assert self._process is not None
        client = AdminClient({"bootstrap.servers": self.servers, **self._client})
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                if client.list_topics(timeout=1).brokers:
                    return
            except KafkaException as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    said = (self.folder / "log").read_text(errors="replace")[-3000:]
                    raise RuntimeError(f"Kafka did not start: {said}") from error

    def halt(self) -> None:
        """Shut the broker down; the log stays."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would; the log stays, and `start` recovers it."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the broker, and delete the log. Idempotent."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None


def java() -> str:
    """The program; FileNotFoundError where the machine has none."""
    found = shutil.which("java")
    if found is None:
        raise FileNotFoundError("there is no program java")
    return found


def kafka_jars() -> Path:
    """The folder with Kafka's jars, which are fetched with Maven if they are not there yet.

    FileNotFoundError, with what Maven said, where they cannot be had. Processes that ask together
    fetch once.
    """
    java()
    cache = _cache()
    jars = cache / f"kafka-{VERSION}"
    if jars.is_dir():
        return jars
    if (maven := shutil.which("mvn")) is None:
        raise FileNotFoundError("there is no program mvn, which fetches Kafka's jars")
    cache.mkdir(parents=True, exist_ok=True)
    failed = cache / f"kafka-{VERSION}.failed"
    with (cache / "kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if jars.is_dir():
            return jars
        if failed.exists() and time.time() - failed.stat().st_mtime < 600:
            raise FileNotFoundError(failed.read_text())  # not each process of a run tries anew
        try:
            _fetch(maven, jars)
        except FileNotFoundError as error:
            failed.write_text(str(error))
            raise
    return jars


def _fetch(maven: str, jars: Path) -> None:
    with tempfile.TemporaryDirectory(dir=jars.parent) as work:
        project = Path(work) / "pom.xml"
        project.write_text(
            "<project><modelVersion>4.0.0</modelVersion><groupId>tests</groupId>"
            "<artifactId>kafka-for-tests</artifactId><version>1</version><packaging>pom</packaging>"
            "<dependencies><dependency><groupId>org.apache.kafka</groupId>"
            f"<artifactId>kafka_2.13</artifactId><version>{VERSION}</version>"
            "</dependency></dependencies></project>"
        )
        fetched = Path(work) / "jars"
        try:
            done = subprocess.run(
                [
                    *(maven, "-q", "-B", "-f", project, "dependency:copy-dependencies"),
                    f"-DoutputDirectory={fetched}",
                ],
                capture_output=True,
                text=True,
                check=False,
                timeout=_FETCH_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise FileNotFoundError("Maven took too long to fetch Kafka's jars") from error
        if done.returncode or not list(fetched.glob("kafka_*.jar")):
            said = (done.stdout + done.stderr).strip().splitlines()
            raise FileNotFoundError(
                "Maven could not fetch Kafka's jars: " + " ".join(said[:2])[:400]
            )
        fetched.rename(jars)


def _cache() -> Path:
    """`.cache` of the repository; of a package that is installed elsewhere, the user's own."""
    root = Path(__file__).resolve().parents[3]
    return (
        root / ".cache" if (root / "Makefile").is_file() else Path.home() / ".cache" / "ontologia"
    )


def _cluster_id() -> str:
    """A UUID in base64; one that begins with a dash would be taken for an option."""
    return "A" + secrets.token_urlsafe(16)[1:]


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            with closing(probe):
                pass


def _die_with_parent() -> None:
    """Also a test run that is killed leaves no server behind."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
