"""What is wrong is said in one sentence, with what helps, and without secrets."""

from __future__ import annotations

import builtins
import sys

import pytest

from ontologia import OntologiaConfig
from ontologia.errors import (
    BrokerError,
    ConfigError,
    ConfigTypeError,
    ConnectionLostError,
    OntologiaError,
    StoreOpenError,
)
from ontologia.relay import Intake, Relay

BOTH = pytest.mark.parametrize("kind", [Relay, Intake])
SECRET = "hunter2"  # noqa: S105


@pytest.mark.req("NEW-127")
@BOTH
@pytest.mark.parametrize(
    ("named", "said"),
    [
        (f"amqp://me:{SECRET}@host/queue", "of the scheme amqp://"),
        (f"kafka://me:{SECRET}@host:9092/topic", "the URI has an @"),
        ("kafka://host:9092", "names no topic"),
        ("kafka:///topic", "names no topic"),
        ("kafka://host:port/topic", "names no topic"),
        ("kafka://host:9092/to/pic", "names no topic"),
        (f"s3://key:{SECRET}@bucket/prefix", "names no bucket"),
        ("s3://", "names no bucket: its name is missing"),
        ("s3:///prefix", "names no bucket: its name is missing"),
        ("topic", "is no URI"),
        ("kafka://host:9092/" + "t" * 500, "at most 480 characters"),
    ],
)
def test_a_uri_that_names_nothing(session, kind, named, said):
    with pytest.raises(OntologiaError, match=said) as raised:
        kind(session, named)

    assert raised.value.hint or "characters" in said
    assert SECRET not in str(raised.value)


@pytest.mark.req("NEW-127")
@BOTH
def test_a_uri_is_text(session, kind):
    with pytest.raises((ConfigTypeError, AttributeError)):
        kind(session, 7)


@pytest.mark.req("NEW-127")
@BOTH
@pytest.mark.parametrize("extra", ["kafka", "s3"])
def test_an_extra_that_is_not_installed(session, kind, extra, monkeypatch):
    """The library is imported when something is opened, and not before."""
    library = {"kafka": "confluent_kafka", "s3": "obstore"}[extra]
    for name in [each for each in sys.modules if each.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    found = builtins.__import__

    def without(name, *rest):
        if name.partition(".")[0] == library:
            raise ImportError(f"No module named {name!r}")
        return found(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setitem(sys.modules, library, None)
    uri = {"kafka": "kafka://localhost:9092/t", "s3": "s3://bucket/t"}[extra]

    with pytest.raises((ConfigError, StoreOpenError)) as raised:
        kind(session, uri).run_until_empty()

    assert f"pip install 'ontologia[{extra}]'" in str(raised.value)


@pytest.mark.req("NEW-127")
@BOTH
def test_a_broker_that_is_not_there(session, kind, monkeypatch):
    monkeypatch.setattr("ontologia.relay.kafka.ASK_SECONDS", 0.2)

    with pytest.raises(ConnectionLostError, match="cannot be reached") as raised:
        kind(session, "kafka://127.0.0.1:9/topic").run_until_empty()

    # Whatever is there may also expect TLS, or is not where the URI says.
    assert "check the address, and security.protocol" in str(raised.value.hint)


@pytest.mark.req("NEW-127")
@BOTH
def test_a_topic_that_is_not_there(session, kind, topic):
    """And it is not made: a broker may do that for whoever asks for it."""
    for _ in range(2):
        with pytest.raises(BrokerError, match="there is no topic nowhere-else") as raised:
            kind(session, f"{topic.rpartition('/')[0]}/nowhere-else").run()
        assert "Create it" in str(raised.value)


@pytest.mark.req("NEW-127")
@BOTH
def test_a_bucket_that_is_not_there(session, kind, s3_uri):
    with pytest.raises(StoreOpenError, match="there is no bucket 'nowhere'"):
        kind(session, "s3://nowhere/prefix").run_until_empty()


@pytest.mark.req("NEW-127")
@BOTH
def test_wrong_credentials(session, kind, s3_uri, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)

    with pytest.raises(StoreOpenError, match="does not accept the credentials") as raised:
        kind(session, s3_uri).run_until_empty()

    assert SECRET not in str(raised.value)


@pytest.mark.req("NEW-127")
@BOTH
def test_options_of_kafka_are_never_shown(open_session, kind, topic):
    options = {"sasl.password": SECRET, "no.such.option": SECRET}
    if "kafka_options" not in OntologiaConfig.model_fields:
        pytest.skip("no such setting yet")
    session = open_session(settings={"kafka_options": options})

    with pytest.raises(ConfigError, match=r"no\.such\.option") as raised:
        kind(session, topic).run_until_empty()

    assert SECRET not in str(raised.value)
