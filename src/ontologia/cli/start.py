"""The way into the program, and out of it: with its own exit code, whenever an interrupt comes.

Nothing is imported at the top that takes time: Ctrl+C while the commands are being loaded is an
interrupt like any other.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
CLOSED_PIPE = 141  # what a program gets that is ended by SIGPIPE


def main() -> NoReturn:
    """Run the command that the process was started with."""
    _prepare_output()
    try:
        code = _run()
    except KeyboardInterrupt:  # before a command began, or after it ended
        sys.stderr.write("interrupted\n")
        code = INTERRUPTED
    _settle(code)
    sys.exit(code)


def version() -> str:
    """What `--version` says."""
    from ontologia import __version__

    return f"ontologia {__version__}"


def _tell_version() -> int:
    try:
        os.write(sys.stdout.fileno(), f"{version()}\n".encode())
    except BrokenPipeError:  # whoever was reading has seen enough
        return CLOSED_PIPE
    return 0


def _run() -> int:
    try:
        if sys.argv[1:] == ["--version"]:  # scripts ask for it, and no command is needed
            return _tell_version()
        from ontologia.cli.main import app

        app()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told without a traceback
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise error.__cause__ from None  # Python 3.11 wraps one that comes in a __set_name__
        from ontologia.cli.failures import give_up

        return give_up(error)
    return 0


def _prepare_output() -> None:
    """What is stored may be in any script: a terminal that lacks a letter gets its number."""
    if sys.stdout is None:  # closed by whoever started the program
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _settle(code: int) -> None:
    """All is done and said: an interrupt from here on changes nothing about how it ended."""

    def end(_number: int, _frame: FrameType | None) -> None:
        os._exit(code)

    signal.signal(signal.SIGINT, end)
    # Python remembers an interrupt within code that it made from text, as dataclasses are, also if
    # it was caught, and would end `python -m ontologia` by that signal. New text makes it forget.
    exec("")  # noqa: S102
