"""The error tree: as drawn, with messages that say what helps."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from ontologia import errors
from ontologia.errors import (
    BatchSizeExceededError,
    ConfigError,
    EndpointDeleted,
    HeadMismatchError,
    LockContentionError,
    MissingUpgraderError,
    OntologiaError,
)

CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and value.__module__ == "ontologia.errors" and value.__name__ == name
}


def _drawn():
    """Parent by name, as the drawing at the top of the module has it."""
    parents, above = {}, []
    for line in errors.__doc__.splitlines():
        if match := re.match(r"^(|[│├└─ ]+)([A-Z][a-z]+[A-Z]\w+)\b", line):
            depth = len(match[1]) // 4
            above = [*above[:depth], match[2]]
            parents[match[2]] = above[depth - 1] if depth else None
    return parents


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes():
    real = {
        name: next((base.__name__ for base in cls.__bases__ if base in CLASSES.values()), None)
        for name, cls in CLASSES.items()
    }

    assert len(real) > 20
    assert _drawn() == real


def test_every_error_has_one_root_and_a_sentence():
    assert all(issubclass(cls, OntologiaError) for cls in CLASSES.values())
    assert [name for name, cls in CLASSES.items() if not (cls.__doc__ or "").endswith(".")] == []


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("ConfigError", ValueError),
        ("DefinitionError", TypeError),
        ("InvalidValueError", ValueError),
        ("QueryError", ValueError),
        ("QueryTypeError", TypeError),
        ("SessionClosedError", RuntimeError),
        ("BatchSizeExceededError", ValueError),
        ("LockContentionError", TimeoutError),
        ("DatabaseError", RuntimeError),
    ],
)
def test_an_error_is_also_the_builtin_a_caller_would_expect(name, builtin):
    assert issubclass(CLASSES[name], builtin)


def test_the_hint_is_printed_under_the_message_and_kept_apart():
    error = ConfigError("lease must be positive, got -5", hint="Give milliseconds.")

    assert str(error) == "lease must be positive, got -5\n  hint: Give milliseconds."
    assert error.hint == "Give milliseconds."
    assert error.args == ("lease must be positive, got -5",)


def test_without_a_hint_the_message_stands_alone():
    error = ConfigError("lease must be positive, got -5")

    assert str(error) == "lease must be positive, got -5"
    assert error.hint is None


def test_a_hint_given_to_one_error_is_not_the_next_one_s():
    ConfigError("one", hint="Only here.")

    assert ConfigError("two").hint is None
    assert ConfigError.hint is None


def test_facts_are_attributes():
    batch = BatchSizeExceededError(12, 10)
    head = HeadMismatchError(expected=3, actual=5)
    lock = LockContentionError("session s1", 1234.56)
    end = EndpointDeleted("Owns:a:b", "left", "Person", "a")
    step = MissingUpgraderError("Customer", iter([1, 3]))

    assert (batch.size, batch.limit) == (12, 10)
    assert (head.expected, head.actual) == (3, 5)
    assert (lock.holder, round(lock.waited_ms)) == ("session s1", 1235)
    assert (end.relation, end.side, end.type_name, end.key) == ("Owns:a:b", "left", "Person", "a")
    assert (step.type_name, step.missing_versions) == ("Customer", [1, 3])


def test_a_message_says_what_happened_and_what_was_left_behind():
    assert "12 objects are queued and max_batch_size is 10" in str(BatchSizeExceededError(12, 10))
    assert "expected head 3, the store is at 5" in str(HeadMismatchError(expected=3, actual=5))
    assert '@upgrader("Customer", from_version=1)' in str(MissingUpgraderError("Customer", [1, 3]))
    for error in (
        BatchSizeExceededError(12, 10),
        HeadMismatchError(expected=3, actual=5),
        LockContentionError("session s1", 10),
        MissingUpgraderError("Customer", [1]),
    ):
        assert "nothing was written" in str(error)


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("no", hint="yes"),
        BatchSizeExceededError(12, 10),
        HeadMismatchError(expected=3, actual=5),
        LockContentionError("session s1", 10.0),
        EndpointDeleted("Owns:a:b", "left", "Person", "a"),
        MissingUpgraderError("Customer", [1]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_crosses_a_process_boundary(error):
    back = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)
