"""What the pages on relays say is so."""

from __future__ import annotations

import re

import pytest

from ontologia import relay
from ontologia.relay import Arrival, Intake, Portion, Progress, Relay, Source, Target
from tests.docs.test_documentation import DOCS, public_methods

PAGE = DOCS / "reference/relay.md"
WORDS = PAGE.read_text()


def test_every_name_is_documented():
    assert [name for name in relay.__all__ if not re.search(rf"\b{name}\b", WORDS)] == []


@pytest.mark.parametrize("cls", [Relay, Intake, Target, Source, Progress])
def test_every_method_is_documented(cls):
    names = public_methods(cls) - {"count", "index", "intakes", "namespace", "source"}

    assert [name for name in names if not re.search(rf"\b{name}\b", WORDS)] == []


@pytest.mark.parametrize("cls", [Arrival, Portion])
def test_every_field_is_documented(cls):
    assert [name for name in cls.__slots__ if not re.search(rf"\b{name}\b", WORDS)] == []


def test_the_snapshots_are_the_documented_ones(session):
    class Nowhere:
        uri = "nowhere"

        def lag(self, progress):
            return 0

    for snapshot in (
        Relay(session, Nowhere()).health_snapshot(),
        Intake(session, Nowhere()).health_snapshot(),
    ):
        assert f"`{' '.join(snapshot)}`" in WORDS


def test_the_table_of_limits_is_true():
    from ontologia.relay import endpoints, intake
    from ontologia.relay import relay as module

    how_to = (DOCS / "howto/relay.md").read_text()
    assert f"at most {module._BATCH:,} events, or about {module._BATCH_BYTES // 10**6} MB" in how_to
    assert f"an intake {intake._BATCH} messages" in how_to
    assert f"at most {endpoints.LONGEST_URI} characters" in WORDS
