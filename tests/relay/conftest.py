"""Where relays of the tests send to: a topic of a mock cluster, or a prefix of a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from secrets import token_hex

import pytest

from ontologia.store.s3.bucket import Bucket
from tests.integration.conftest import refuse
from tests.s3.conftest import proxy

__all__ = ["proxy", "refuse"]


@pytest.fixture
def topic(mock_kafka, monkeypatch) -> str:
    """A topic with nothing in it."""
    # The mock tells no settings.
    monkeypatch.setattr("ontologia.relay.kafka._SETTINGS", 0.01)
    name = f"t-{token_hex(8)}"
    mock_kafka.make_topics([name])
    return f"kafka://{mock_kafka.servers}/{name}"


@pytest.fixture
def s3_uri(s3_uri: str) -> str:
    """A prefix in a bucket that is there."""
    Bucket(s3_uri).put("made", b"{}")
    return s3_uri


@pytest.fixture(params=["kafka", "s3"])
def place(request: pytest.FixtureRequest) -> str:
    """Each kind of target in turn, with nothing in it."""
    found: str = request.getfixturevalue({"kafka": "topic", "s3": "s3_uri"}[request.param])
    return found


@pytest.fixture
def regions(tmp_path, open_session) -> Iterator[tuple]:
    """Two stores, each with a session in the same namespace."""
    return tuple(
        open_session(uri=f"sqlite:///{tmp_path}/{name}.db", namespace="shop")
        for name in ("here", "there")
    )
