"""A page for each public package, with what its `__all__` names; mkdocstrings has the rest."""

from __future__ import annotations

import inspect
from importlib import import_module

from ontologia.errors import OntologiaError

PACKAGES = (
    "ontologia",
    "ontologia.query",
    "ontologia.commands",
    "ontologia.queues",
    "ontologia.relay",
    "ontologia.extensions",
    "ontologia.actors",
    "ontologia.migration",
    "ontologia.testing",
    "ontologia.errors",
)


def api_pages() -> dict[str, str]:
    """The pages, each under its place in the site."""
    return {f"reference/api/{name}.md": api_page(name) for name in PACKAGES}


def api_page(package: str) -> str:
    """One package: what it says of itself, and each of its names."""
    told = inspect.cleandoc(import_module(package).__doc__ or "")
    parts = [f"# {package}", f"```text\n{told}\n```"]
    parts += [f"::: {package}.{name}" for name in public_names(package)]
    return "\n\n".join(parts) + "\n"


def public_names(package: str) -> list[str]:
    """What a package exports; a module without `__all__` exports its errors."""
    module = import_module(package)
    exported = getattr(module, "__all__", None)
    if exported is not None:
        return [name for name in exported if not name.startswith("_")]
    return [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, OntologiaError)
    ]
