"""The fixtures of the suite; `plugin` has them, for other tests to load as well."""

from __future__ import annotations

import importlib

import pytest

try:
    importlib.import_module("hypothesis")
except ImportError as error:
    pytest.exit(
        f"the conformance suite needs hypothesis ({error}): pip install 'ontologia[testing]'",
        returncode=pytest.ExitCode.USAGE_ERROR,
    )

pytest_plugins = ["ontologia.testing.conformance.plugin"]
