"""Run pytest, and run the tests that fail once more, alone: python -m tools.again pytest ...

Many tests start processes, kill them and wait for them beside the processes of other tests. On a machine
that stalls for a second, one of them may fail although the code is right. A failure of the code fails
again. At most `_MOST` tests are run again, after a run that came to its end; they are named, also if
they pass then, because a test that depends on the machine is to be mended.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

_FAILED = 1  # pytest's exit code after a run with failures
_MOST = 4
_LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")

Run = Callable[[Sequence[str]], int]


def again(command: Sequence[str], run: Run = subprocess.call, folder: Path = Path()) -> int:
    """The exit code of pytest; that of the second run if there was one."""
    failed = folder / _LAST_FAILED
    failed.unlink(missing_ok=True)
    code = run(command)
    if code != _FAILED or not failed.exists():
        return code
    tests = [test for test in json.loads(failed.read_text()) if "::" in test]
    if not 0 < len(tests) <= _MOST:
        return code
    names = "".join(f"  {test}\n" for test in tests)
    _say(f"again: run alone, because they failed beside others:\n{names}")
    code = run([command[0], "-q", "-p", "no:cacheprovider", *tests])
    if code == 0:
        _say(f"again: these depend on the machine, and are to be mended:\n{names}")
    return code


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(again(sys.argv[1:]))
