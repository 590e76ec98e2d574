"""Look for known vulnerabilities of what is installed here: python -m tools.audit

pip-audit asks the advisory service of PyPI. Where that cannot be reached, does not answer in time or knows
none of the packages, a line says so: being offline is no finding. A pip-audit that is missing or
crashes for another reason is a failure.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence

_PATIENCE = 120.0  # seconds
_OFFLINE = re.compile(r"Could not connect|ConnectionError|Timeout\b|ServiceError")
"""What pip-audit says in the last lines where its service cannot be reached, or is broken."""
_AUDIT = (
    *(sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off"),
    *("--skip-editable", "--timeout", "5"),
)


def audit(command: Sequence[str] = _AUDIT) -> int:
    """Say what is vulnerable; the exit code, which is 1 if anything is, or if pip-audit failed."""
    try:
        done = subprocess.run(  # noqa: S603
            command, check=False, capture_output=True, text=True, timeout=_PATIENCE
        )
    except subprocess.TimeoutExpired:
        return _skipped(f"no answer within {_PATIENCE:g} s")
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (json.JSONDecodeError, KeyError, TypeError):
        said = done.stderr.strip() or "nothing"
        if _OFFLINE.search("".join(said.splitlines(keepends=True)[-3:])):
            return _skipped("the advisory service cannot be reached")
        sys.stderr.write(f"audit: pip-audit gave no report, exit code {done.returncode}: {said}\n")
        return 1
    asked = [each for each in found if "skip_reason" not in each]
    if not asked:
        return _skipped(f"the advisory service knows none of {len(found)} packages")
    vulnerable = [each for each in asked if each["vulns"]]
    for each in vulnerable:
        ids = ", ".join(one["id"] for one in each["vulns"])
        fixed = sorted({version for one in each["vulns"] for version in one["fix_versions"]})
        sys.stderr.write(f"{each['name']} {each['version']}: {ids}; fixed in {fixed}\n")
    sys.stdout.write(f"audit: {len(vulnerable)} of {len(asked)} packages are vulnerable\n")
    return 1 if vulnerable else 0


def _skipped(why: str) -> int:
    sys.stdout.write(f"audit: skipped, nothing was looked for: {why}\n")
    return 0


if __name__ == "__main__":
    sys.exit(audit())
