"""`python -m tools.audit`: red for a vulnerability or a crash, and never for being offline."""

from __future__ import annotations

import json
import sys

import pytest
from tools.audit import audit


def reporting(text):
    """A program that prints this, as pip-audit does its report."""
    return [sys.executable, "-c", "import sys; print(sys.argv[1])", text]


def report(*vulnerabilities, **more):
    found = {"name": "h11", "version": "0.14", "vulns": list(vulnerabilities), **more}
    return json.dumps({"dependencies": [found]})


@pytest.mark.parametrize(
    "said",
    [
        "ERROR: Could not connect to the feed\nERROR: Tip: another service",
        "Traceback\nrequests.exceptions.ConnectionError: no route",
        "Traceback\nrequests.exceptions.ReadTimeout: 5 seconds",
    ],
)
def test_a_machine_that_is_offline_is_told_so_and_nothing_is_red(capsys, said):
    failing = [sys.executable, "-c", "import sys; sys.exit(sys.argv[1])", said]

    assert audit(failing) == 0
    assert "audit: skipped, nothing was looked for" in capsys.readouterr().out


def test_a_service_that_knows_nothing_is_told_so_and_nothing_is_red(capsys):
    assert audit(reporting(report(skip_reason="not found"))) == 0
    assert "knows none of 1 packages" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (reporting("not JSON"), "exit code 0: nothing"),
        ([sys.executable, "-m", "no_pip_audit_here"], "No module named no_pip_audit_here"),
        ([sys.executable, "-c", "raise RuntimeError('a crash')"], "RuntimeError: a crash"),
    ],
)
def test_a_pip_audit_without_a_report_is_red(capsys, command, said):
    assert audit(command) == 1
    assert said in capsys.readouterr().err


def test_a_vulnerability_is_red(capsys):
    vulnerability = {"id": "CVE-2025-43859", "fix_versions": ["0.16.0"]}

    assert audit(reporting(report(vulnerability))) == 1
    assert "h11 0.14: CVE-2025-43859; fixed in ['0.16.0']" in capsys.readouterr().err


def test_no_vulnerability_is_green(capsys):
    assert audit(reporting(report())) == 0
    assert "0 of 1 packages are vulnerable" in capsys.readouterr().out
