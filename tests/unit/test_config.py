"""A setting comes from a keyword, else the environment, else a file, else its default."""

from __future__ import annotations

import json
import os
import random
import traceback

import pytest

from ontologia import OntologiaConfig, Session
from ontologia.errors import ConfigError
from ontologia.testing import ManualClock

OTHER = {
    "auto_migrate": "compatible",
    "datastore_uri": "sqlite:///other.db",
    "archive_uri": "s3://bucket/archive",
    "default_namespace": "tenant-a",
    "lock_timeout_ms": 1,
    "migration_lock_timeout_ms": 2,
    "migration_at_once": 29,
    "migration_wait_for_old_sessions_ms": 30,
    "statement_timeout_ms": 21,
    "lock_lease_ms": 3,
    "commit_max_retries": 4,
    "max_batch_size": 5,
    "event_poll_interval_ms": 6,
    "event_claim_limit": 7,
    "max_events_per_iteration": 8,
    "event_claim_lease_ms": 9,
    "ack_batch_size": 10,
    "event_retention_ms": 11,
    "event_gc_interval_ms": 12,
    "session_heartbeat_interval_ms": 13,
    "session_ttl_ms": 14,
    "event_max_attempts": 15,
    "event_max_conflicts": 28,
    "event_backoff_base_ms": 16,
    "event_backoff_max_ms": 17,
    "max_event_chain_depth": 18,
    "handler_durability": "ack",
    "keep_tracebacks": False,
    "max_payload_bytes": 19,
    "shutdown_grace_ms": 20,
    "shutdown_command_grace_ms": 6_000,
    "max_abandoned_threads": 3,
    "max_connections": 100,
    "max_connections_per_peer": 10,
    "default_message_broker_provider": "inmemory",
    "kafka_bootstrap_servers": "broker:9092",
    "kafka_topic": "shop",
    "kafka_options": {"sasl.password": "correct horse"},
    "clock": ManualClock(),
    "random": random.Random(1),
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty working directory and an environment without settings."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.upper().startswith("ONTOLOGIA_"):
            monkeypatch.delenv(name)
    return tmp_path


def _files(folder, *, own=None, project=None):
    if own is not None:
        (folder / "ontologia.toml").write_text(own)
    if project is not None:
        (folder / "pyproject.toml").write_text(project)


@pytest.mark.req("ONT-101")
def test_the_defaults_are_those_of_the_documents():
    config = OntologiaConfig()

    assert config.default_namespace == "default"
    assert (config.lock_timeout_ms, config.migration_lock_timeout_ms) == (5_000, 10_000)
    assert (config.lock_lease_ms, config.commit_max_retries) == (30_000, 3)
    assert config.statement_timeout_ms == 600_000
    assert config.max_batch_size == 10_000


@pytest.mark.req(*(f"ONT-{n}" for n in range(102, 112)))
def test_the_defaults_of_the_event_bus_are_those_of_the_document():
    config = OntologiaConfig()

    assert config.event_poll_interval_ms == 1000
    assert config.event_claim_limit == 100
    assert config.max_events_per_iteration == 1000
    assert config.event_claim_lease_ms == 30_000
    assert config.event_retention_ms == 7 * 24 * 3600 * 1000
    assert (config.session_heartbeat_interval_ms, config.session_ttl_ms) == (5_000, 60_000)
    assert config.event_max_attempts == 10
    assert (config.event_backoff_base_ms, config.event_backoff_max_ms) == (250, 30_000)
    assert config.max_event_chain_depth == 20
    assert config.keep_tracebacks is True


@pytest.mark.req("ONT-112")
def test_there_is_no_limit_on_the_events_of_a_run():
    with pytest.raises(ConfigError, match="max_events_per_run is not a setting"):
        OntologiaConfig(max_events_per_run=5)


@pytest.mark.req("ONT-113")
@pytest.mark.parametrize("name", OntologiaConfig.model_fields)
def test_every_setting_can_be_given_by_keyword(name):
    given = OTHER[name]

    config = OntologiaConfig(**{name: given})

    assert getattr(config, name) == given
    assert getattr(OntologiaConfig(), name) != given


def test_each_place_gives_way_to_the_one_before_it(folder, monkeypatch):
    seen = [OntologiaConfig().max_batch_size]

    _files(folder, project="[tool.ontologia]\nmax_batch_size = 4\nlock_timeout_ms = 44")
    seen.append(OntologiaConfig().max_batch_size)
    _files(folder, own="max_batch_size = 3")
    seen.append(OntologiaConfig().max_batch_size)
    monkeypatch.setenv("ONTOLOGIA_MAX_BATCH_SIZE", "2")
    seen.append(OntologiaConfig().max_batch_size)
    seen.append(OntologiaConfig(max_batch_size=1).max_batch_size)

    assert seen == [10_000, 4, 3, 2, 1]
    assert OntologiaConfig(max_batch_size=1).lock_timeout_ms == 44


def test_a_project_without_the_table_changes_nothing(folder):
    _files(folder, project="[project]\nname = 'shop'\n[tool.other]\nmax_batch_size = 4")

    assert OntologiaConfig() == OntologiaConfig(max_batch_size=10_000)


def test_a_file_in_a_parent_directory_is_not_read(folder, monkeypatch):
    _files(folder, own="max_batch_size = 3", project="[tool.ontologia]\nmax_batch_size = 4")
    (folder / "deeper").mkdir()

    monkeypatch.chdir(folder / "deeper")

    assert OntologiaConfig().max_batch_size == 10_000


def test_an_unknown_keyword_is_an_error_that_names_the_nearest():
    with pytest.raises(
        ConfigError, match=r"^max_batch is not a setting; did you mean max_batch_size"
    ):
        OntologiaConfig(max_batch=5)


def test_an_unknown_variable_is_an_error_that_names_the_nearest(monkeypatch):
    monkeypatch.setenv("ONTOLOGIA_LOCK_TIMEOUT", "5")

    with pytest.raises(
        ConfigError, match=r"^ONTOLOGIA_LOCK_TIMEOUT is not a setting; did you mean lock_timeout_ms"
    ):
        OntologiaConfig()


@pytest.mark.parametrize("place", ["own", "project"])
def test_an_unknown_name_in_a_file_is_an_error_that_names_the_nearest(folder, place):
    line = "default_namespce = 'x'"
    _files(folder, **{place: line if place == "own" else f"[tool.ontologia]\n{line}"})

    with pytest.raises(
        ConfigError, match="default_namespce is not a setting; did you mean default_namespace"
    ):
        OntologiaConfig()


def test_a_name_like_no_other_gets_no_guess():
    with pytest.raises(ConfigError) as caught:
        OntologiaConfig(zzz=5)

    assert str(caught.value) == "zzz is not a setting"


def test_variables_of_the_test_suite_are_not_settings(monkeypatch):
    monkeypatch.setenv("ONTOLOGIA_TEST_POSTGRES", "postgresql://localhost/test")

    assert OntologiaConfig() == OntologiaConfig()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_batch_size", 0),
        ("max_batch_size", "many"),
        ("max_batch_size", 1.5),
        ("max_batch_size", None),
        ("lock_timeout_ms", -1),
        ("migration_lock_timeout_ms", -1),
        ("statement_timeout_ms", -1),
        ("lock_lease_ms", 0),
        ("commit_max_retries", -1),
        ("default_namespace", ""),
        ("default_namespace", "x" * 201),
        ("default_namespace", 5),
        ("random", 5),
    ],
)
def test_a_value_a_setting_cannot_have_is_an_error_that_names_both(name, value):
    with pytest.raises(ConfigError) as caught:
        OntologiaConfig(**{name: value})

    assert str(caught.value).startswith(f"{name}: ")
    assert repr(value) in str(caught.value)


def test_a_bad_value_in_the_environment_or_a_file_is_an_error(folder, monkeypatch):
    _files(folder, own="max_batch_size = 'many'")
    with pytest.raises(ConfigError, match=r"max_batch_size: .*'many'"):
        OntologiaConfig()

    monkeypatch.setenv("ONTOLOGIA_MAX_BATCH_SIZE", "none")
    with pytest.raises(ConfigError, match=r"max_batch_size: .*'none'"):
        OntologiaConfig()


@pytest.mark.parametrize("place", ["own", "project"])
def test_a_file_that_is_not_toml_is_an_error_that_names_the_file(folder, place):
    _files(folder, **{place: "[tool.ontologia\nmax_batch_size ="})

    with pytest.raises(
        ConfigError, match=r"ontologia.toml" if place == "own" else "pyproject.toml"
    ):
        OntologiaConfig()


def test_a_table_that_is_no_table_is_an_error(folder):
    _files(folder, project="[tool]\nontologia = 5")

    with pytest.raises(ConfigError, match="ontologia"):
        OntologiaConfig()


def test_several_mistakes_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        OntologiaConfig(max_batch_size=0, lock_lease_ms=-1, typo=1)

    assert all(name in str(caught.value) for name in ("max_batch_size", "lock_lease_ms", "typo"))


def test_settings_do_not_change_once_made():
    config = OntologiaConfig()

    with pytest.raises(ValueError, match="frozen"):
        config.max_batch_size = 5
    assert config.max_batch_size == 10_000


def test_a_clock_must_be_a_clock():
    with pytest.raises(ConfigError, match=r"clock must have now\(\), monotonic\(\) and sleep\(\)"):
        OntologiaConfig(clock=5)


def test_a_session_runs_on_the_clock_and_the_randomness_it_is_given():
    def open_once(seed):
        config = OntologiaConfig(clock=ManualClock(), random=random.Random(seed))
        with Session("sqlite://", config=config) as session:
            return session.session_id

    assert open_once(1) == open_once(1)
    assert open_once(1) != open_once(2)


# -- options that may be secret -------------------------------------------------------------------

_HIDDEN = "correct horse"


@pytest.mark.req("EDE-049")
def test_options_are_a_table_in_a_file_and_json_text_in_the_environment(folder, monkeypatch):
    options = {"sasl.password": _HIDDEN, "session.timeout.ms": 6000, "enable.metrics.push": False}

    _files(
        folder,
        own=f'[kafka_options]\n"sasl.password" = "{_HIDDEN}"\n"session.timeout.ms" = 6000\n'
        '"enable.metrics.push" = false',
    )
    assert OntologiaConfig().kafka_options == options

    _files(folder, own="")
    monkeypatch.setenv("ONTOLOGIA_KAFKA_OPTIONS", json.dumps(options))
    config = OntologiaConfig()
    assert config.kafka_options == options
    assert _HIDDEN not in repr(config) + str(config)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"sasl.password={_HIDDEN}", "kafka_options: the text is not JSON"),
        (f'["{_HIDDEN}"]', "kafka_options: a table"),
        (f'{{"sasl.password": ["{_HIDDEN}"]}}', "sasl.password is no text"),
    ],
)
def test_what_is_wrong_with_options_is_said_without_them(monkeypatch, text, words):
    monkeypatch.setenv("ONTOLOGIA_KAFKA_OPTIONS", text)

    with pytest.raises(ConfigError, match=words) as raised:
        OntologiaConfig()

    assert _HIDDEN not in "".join(traceback.format_exception(raised.value))
