"""Every error with its exit code and its status, as `cli` and `commands` have them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TypeGuard

from ontologia import errors
from ontologia.cli.failures import EXIT_CODES
from ontologia.commands.problems import status_of
from ontologia.errors import OntologiaError
from tools.reference.between import with_made

_HEAD = """\
| error | meaning | exit code | HTTP |
|---|---|---|---|
"""


def errors_page(page: str) -> str:
    """The page with its table of errors."""
    rows = [_row(cls, depth) for cls, depth in tree(OntologiaError)]
    return with_made(page, _HEAD + "\n".join(rows))


def tree(cls: type[OntologiaError], depth: int = 0) -> Iterator[tuple[type[OntologiaError], int]]:
    """A class and those below it, in the order of `errors.py`, each with its depth."""
    yield cls, depth
    for name, below in vars(errors).items():
        # A second name of a class is no second class.
        if _is_error(below) and below.__bases__[0] is cls and below.__name__ == name:
            yield from tree(below, depth + 1)


def _is_error(value: object) -> TypeGuard[type[OntologiaError]]:
    return inspect.isclass(value) and issubclass(value, OntologiaError)


def exit_code_of(cls: type[OntologiaError]) -> int:
    """What `ontologia` ends with after such an error."""
    return next(code for kind, code in EXIT_CODES if issubclass(cls, kind))


def status_of_class(cls: type[OntologiaError]) -> int:
    """What a client is answered if a command's handler raises such an error."""
    return status_of(cls.__new__(cls))


def _row(cls: type[OntologiaError], depth: int) -> str:
    meaning = " ".join(inspect.cleandoc(cls.__doc__ or "").split())
    also = [f"`{base.__name__}`" for base in cls.__bases__ if base.__module__ == "builtins"]
    if depth and also:
        meaning += f" Also a {' and a '.join(also)}."
    return (
        f"| {'&emsp;' * depth}`{cls.__name__}` | {meaning} "
        f"| {exit_code_of(cls)} | {status_of_class(cls)} |"
    )
