"""What a user can import: these names, documented, and nothing heavy with them."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import subprocess
import sys

import pytest

import ontologia
from ontologia import errors
from ontologia.clock import Clock
from ontologia.errors import OntologiaError

PUBLIC = [
    "ontologia",
    "ontologia.actors",
    "ontologia.commands",
    "ontologia.migration",
    "ontologia.query",
    "ontologia.queues",
    "ontologia.testing",
]
MODULES = [
    "ontologia",
    *(found.name for found in pkgutil.walk_packages(ontologia.__path__, "ontologia.")),
]
OPTIONAL = [
    "h11",
    "hypothesis",
    "psycopg",
    "psycopg_pool",
    "pytest",
    "rich",
    "starlette",
    "typer",
    "uvicorn",
    "yaml",
]


def _public():
    """Everything a public package exports, and every error."""
    found = {
        f"{name}.{each}": getattr(importlib.import_module(name), each)
        for name in PUBLIC
        for each in importlib.import_module(name).__all__
    }
    return found | {
        f"ontologia.errors.{name}": value
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, OntologiaError)
    }


def _documented(name, value):
    doc = getattr(value, "__doc__", None)
    # A dataclass without a docstring gets its signature for one.
    return bool(doc) and not doc.startswith(f"{name}(")


def _methods(cls):
    for name, value in vars(cls).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if not name.startswith("_") and inspect.isfunction(function):
            yield name, function


@pytest.mark.parametrize("name", PUBLIC)
def test_what_a_package_exports_is_sorted_and_there(name):
    module = importlib.import_module(name)

    assert module.__all__ == sorted(set(module.__all__))
    assert [each for each in module.__all__ if not hasattr(module, each)] == []


def test_the_front_door_has_what_stands_in_public_signatures():
    wanted = {"Entity", "Field", "OntologiaConfig", "Relation", "Session", "left", "right"}

    assert wanted | {"load_upgraders", "upgrader"} <= set(ontologia.__all__)


@pytest.mark.req("ONT-001")
def test_the_names_of_the_event_bus_are_there():
    from ontologia import (  # noqa: F401
        Entity,
        Event,
        EventLoopLimitError,
        EventStore,
        Field,
        HandlerContext,
        LeaseExpiredError,
        OntologiaConfig,
        Relation,
        Schedule,
        Session,
        on_event,
    )


@pytest.mark.req("EDE-012")
def test_the_names_of_commands_and_queues_are_there():
    from ontologia.commands import (  # noqa: F401
        Command,
        CommandBus,
        DomainEvent,
        DomainModel,
        Env,
        RecordSet,
        Registry,
        api,
    )
    from ontologia.queues import (  # noqa: F401
        EventDelivery,
        EventQueue,
        EventWorker,
        InMemoryEventQueue,
        RetryPolicy,
        StoreEventQueue,
        open_queue,
    )

    assert {"model", "on_command", "on_event", "hook"} <= set(vars(api))


@pytest.mark.req("ONT-004")
@pytest.mark.parametrize(
    "name", ["Ontology", "on_commit", "on_commit_entity", "on_schedule", "CommitContext"]
)
def test_the_names_of_old_are_gone(name):
    with pytest.raises(ImportError, match=name):
        exec(f"from ontologia import {name}")  # noqa: S102


def test_every_module_says_what_it_is():
    silent = [name for name in MODULES if not importlib.import_module(name).__doc__]

    assert len(MODULES) > 30
    assert silent == []


def test_everything_public_has_a_docstring():
    public = _public()

    assert [name for name, it in public.items() if not _documented(name.split(".")[-1], it)] == []


def test_every_method_of_a_public_class_has_a_docstring():
    silent = [
        f"{place}.{name}"
        for place, cls in _public().items()
        if inspect.isclass(cls)
        for name, function in _methods(cls)
        # What a clock promises is said once, by Clock.
        if not function.__doc__ and not hasattr(Clock, name)
    ]

    assert silent == []


def _loaded_by(statement):
    done = subprocess.run(
        [sys.executable, "-c", f"{statement}; import json, sys; print(json.dumps([*sys.modules]))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_what_is_not_asked_for_is_not_loaded():
    nothing, types = _loaded_by("import ontologia"), _loaded_by("from ontologia import Entity")

    assert [name for name in ("pydantic", "apsw", "orjson") if name in nothing] == []
    assert "ontologia.errors" in nothing
    assert "ontologia.schema.entity" in types
    assert "ontologia.runtime.session" not in types


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'ontologia' has no attribute 'Sesion'"):
        ontologia.Sesion  # noqa: B018
    assert {"Session", "OntologiaConfig"} <= set(dir(ontologia))


@pytest.mark.req("NEW-005")
def test_importing_the_package_loads_no_optional_dependency():
    loaded = _loaded_by("from ontologia import *")

    assert "ontologia.runtime.session" in loaded
    assert [name for name in OPTIONAL if name in loaded] == []
    assert "ontologia.testing" not in loaded


def test_using_a_session_loads_no_optional_dependency_and_warns_of_nothing(tmp_path):
    program = (
        "import json, sys\n"
        "from ontologia import Entity, Field, Session\n"
        "class Customer(Entity):\n"
        "    id: Field[str]\n"
        "with Session('app.db') as session:\n"
        "    session.ensure(Customer(id='c1'))\n"
        "    session.commit()\n"
        "    assert session.query().entities(Customer).collect() == [Customer(id='c1')]\n"
        "print(json.dumps(list(sys.modules)))\n"
    )

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stderr == ""
    assert [name for name in OPTIONAL if name in json.loads(done.stdout)] == []
