"""`ontologia doctor`: what is wrong with a store, and what helps."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from ontologia.cli.call import Call, core_of
from ontologia.cli.operator import Reason, operator
from ontologia.cli.output import harmless, progress, say, show_json

if TYPE_CHECKING:
    from ontologia.runtime.session import Session
    from ontologia.store.findings import Finding

_STYLES = {"error": "bold red", "warning": "yellow", "info": "dim"}


def doctor(
    call: Call,
    repair: Annotated[
        bool, typer.Option("--repair", help="Make again what is derived, then look once more.")
    ] = False,
    reason: Reason = None,
) -> None:
    """Look for what is wrong with a store, and say what helps.

    Reads the whole history and all retained events; others may work meanwhile. Exit code 1 if
    there are errors. --repair makes again, in one transaction, what can be made again: current
    state from history, what waits for whom from events, claims and subscriptions; it drops expired
    locks and sessions that died long ago. The commit it leaves says what was mended.

    Example: ontologia doctor --datastore-uri sqlite:///app.db
    """
    if repair:
        with call.writing() as session:
            _repair(call, session, reason)
            errors = _show(call, _found(session))
    else:
        if reason is not None:
            raise typer.BadParameter("--reason belongs to --repair", param_hint="--reason")
        with call.reading() as session:
            errors = _show(call, _found(session))
    if errors:
        raise typer.Exit(1)


def _found(session: Session) -> Generator[Finding]:
    from ontologia.store.doctor import examine

    with progress("looking for:") as told:
        core = core_of(session)
        yield from examine(core.store, core.clock, core.config, told)


def _repair(call: Call, session: Session, reason: str | None) -> None:
    from ontologia.runtime.operator import Operator

    by = Operator(session, operator(), reason=reason)
    mended = by.repair()
    commit = by.recorded[-1] if by.recorded else None
    if call.json:
        show_json({"repaired": mended, "commit": commit})
    elif commit is None:
        say("Nothing was to be repaired.")
    else:
        counts = ", ".join(f"{name} {count:,}" for name, count in mended.items())
        say(f"Repaired: {counts}. Commit {commit} says so.")


def _show(call: Call, findings: Iterable[Finding]) -> int:
    """Print them as they come; how many are errors."""
    from dataclasses import asdict

    counts = {"error": 0, "warning": 0, "info": 0}
    for finding in findings:
        counts[finding.severity] += 1
        if call.json:
            show_json(asdict(finding))
        else:
            _print(finding)
    if not call.json:
        if any(counts.values()):
            listed = (
                f"{n} {kind}{'' if n == 1 or kind == 'info' else 's'}"
                for kind, n in counts.items()
                if n
            )
            say(", ".join(listed) + ".")
        else:
            say("Nothing is wrong.")
    return counts["error"]


def _print(finding: Finding) -> None:
    from rich.console import Console
    from rich.text import Text

    line = Text(f"{finding.severity:<8}", style=_STYLES[finding.severity])
    line.append(harmless(f"{finding.what} ({finding.where}"), style="default")
    line.append(f": {finding.count:,})" if finding.count != 1 else ")", style="default")
    console = Console(soft_wrap=True)
    console.print(line)
    console.print(Text(harmless(f"        {finding.remedy}"), style="dim"))
