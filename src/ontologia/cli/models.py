"""`--models MODULE`: the classes of a program, for commands that can do more with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ontologia.runtime.modules import Contents

Models = Annotated[
    str | None,
    typer.Option("--models", metavar="MODULE", help="The module that defines the types."),
]
Upgraders = Annotated[
    list[str] | None,
    typer.Option(
        "--upgraders",
        metavar="MODULE",
        help="A module with upgraders, for what older versions of a type wrote; may be repeated.",
    ),
]


def load_upgraders(modules: list[str] | None) -> None:
    """Import modules, which registers the upgraders they have."""
    for module in modules or ():
        load_models(module)


def load_models(target: str) -> Contents:
    """What a module has; the working directory is looked at first."""
    import os
    import sys

    from ontologia.runtime.modules import load_module

    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    return load_module(target)
