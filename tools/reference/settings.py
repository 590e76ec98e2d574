"""Every setting with its default and what it means, as `OntologiaConfig` has them."""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise

from ontologia import OntologiaConfig
from tools.reference.between import with_made

_HEAD = """\
| setting | default | meaning |
|---|---|---|
"""
# What stands for a default of None.
_NONE = {
    **dict.fromkeys(("datastore_uri", "archive_uri", "kafka_bootstrap_servers"), "none"),
    **dict.fromkeys(("clock", "random"), "the machine's"),
}


def settings_page(page: str) -> str:
    """The page with its table of settings."""
    said = meanings()
    rows = [
        f"| `{name}` | {_default(name, field.default)} | {said[name]} |"
        for name, field in OntologiaConfig.model_fields.items()
    ]
    return with_made(page, _HEAD + "\n".join(rows))


def meanings() -> dict[str, str]:
    """The text under each setting in its class."""
    cls = ast.parse(textwrap.dedent(inspect.getsource(OntologiaConfig))).body[0]
    body = cls.body if isinstance(cls, ast.ClassDef) else []
    found = {}
    for setting, text in pairwise(body):
        match setting, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                value=ast.Constant(value=str(said))
            ):
                found[name] = " ".join(said.split())
    return found


def _default(name: str, value: object) -> str:
    if value is None:
        return _NONE[name]
    return str(value) if isinstance(value, int) else f"`{value}`"
