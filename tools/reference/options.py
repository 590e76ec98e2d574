"""Every command with its usage, arguments and options, as `--help` has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from ontologia.cli.main import app

_HEAD = """\
# Commands and options

Made from the program itself: what `--help` shows after each command. [The command line](cli.md) tells
what they are for, with examples of what they print.
"""
_EVERYWHERE = {"--datastore-uri", "--namespace", "--json", "--debug"}


def options_page() -> str:
    """The page, with a section for each command."""
    root = typer.main.get_command(app)
    context = root.context_class(root, info_name="ontologia")
    common = [_row(p, context) for p in root.params if _EVERYWHERE & {*p.opts}]
    parts = [_HEAD, "## Before every command, or after it", _table(common)]
    parts += [_section(command, inner) for command, inner in commands(root, context)]
    return "\n\n".join(parts) + "\n"


def commands(group: Any, context: Any) -> Iterator[tuple[Any, Any]]:
    """Every command that does something, each with its context, in the order of the names."""
    for name, command in sorted(group.commands.items()):
        inner = command.context_class(command, info_name=name, parent=context)
        if not hasattr(command, "commands") or command.invoke_without_command:
            yield command, inner
        if hasattr(command, "commands"):
            yield from commands(command, inner)


def _section(command: Any, context: Any) -> str:
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [f"## {context.command_path}", f"```text\n{usage}\n```", _prose(command.help or "")]
    rows = [_row(p, context) for p in command.params if not _EVERYWHERE & {*p.opts}]
    return "\n\n".join([*parts, _table([row for row in rows if row])]).rstrip()


def _prose(help_text: str) -> str:
    """The help with its example as code; paragraphs are lines that were broken for the source."""
    told, _, example = help_text.partition("Example: ")
    return told.strip() + (f"\n\n```sh\n{example.strip()}\n```" if example else "")


def _row(parameter: Any, context: Any) -> str:
    record = parameter.get_help_record(context)
    if record is None:
        return ""
    names, meaning = record
    return f"| `{names}` | {' '.join(meaning.split())} |".replace("||", "|")


def _table(rows: list[str]) -> str:
    return "| | |\n|---|---|\n" + "\n".join(rows) if rows else ""
