"""`python -m tests.fuzz TARGET... [--seconds N]`: atheris looks for what breaks an entrance.

It draws bytes, sees which lines of the package they reached, and goes on from those that reached new
ones. Each target runs in a process of its own, since a finding ends it, and says where it wrote the
bytes. Those go to `corpus/TARGET/`, under a name that says what they are, with what mends it. Needs
`pip install 'ontologia[fuzz]'`; without it nothing is done, and that is said.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
_LONGEST = 4096  # bytes of one input
_PATIENCE = 30  # seconds for one input, after which it is a hang


def main() -> int:
    """Fuzz the targets that are named, one after the other; 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if find_spec("atheris") is None:
        print("SKIPPED: atheris is not here; pip install 'ontologia[fuzz]'")  # noqa: T201
        return 0
    if chosen.inside:
        _fuzz(chosen.targets[0], chosen.seconds)
    return max([_in_a_process(each, chosen.seconds) for each in chosen.targets or _all()])


def _all() -> list[str]:
    from tests.fuzz.targets import TARGETS

    return list(TARGETS)


def _in_a_process(target: str, seconds: int) -> int:
    command = [sys.executable, "-m", "tests.fuzz", target, "--seconds", str(seconds), "--inside"]
    return min(1, subprocess.run(command, check=False).returncode)


def _fuzz(target: str, seconds: int) -> None:
    import atheris  # type: ignore[import-not-found]

    with atheris.instrument_imports(include=["ontologia"]):
        from tests.fuzz.targets import TARGETS
    seeds = HERE / "corpus" / target
    grown = Path(tempfile.gettempdir()) / "ontologia-fuzz" / target  # what it learned is kept
    found = grown.with_name(f"{target}-found")
    for folder in (grown, found):
        folder.mkdir(parents=True, exist_ok=True)
    atheris.Setup(
        [
            *("fuzz", str(grown), *([str(seeds)] if seeds.exists() else [])),
            *(f"-max_total_time={seconds}", f"-max_len={_LONGEST}", f"-timeout={_PATIENCE}"),
            *(f"-artifact_prefix={found}/", "-print_final_stats=1", "-verbosity=1"),
        ],
        TARGETS[target],
    )
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
