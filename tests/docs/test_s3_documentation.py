"""What the pages on events in a bucket say is so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ontologia.store.s3 import S3EventStore
from ontologia.store.s3.layout import Keys, marker_of
from tests.docs.test_documentation import DOCS

ROOT = DOCS.parent
PAGE = DOCS / "howto/s3.md"
REFERENCE = (DOCS / "reference/s3.md").read_text()


def test_the_programs_of_the_page_run(s3_uri: str, tmp_path: Path) -> None:
    page = tmp_path / "s3.md"
    page.write_text(PAGE.read_text().replace("s3://shop-events/events", s3_uri))

    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "tests/docs/pages.py"), str(page)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_reference_names_every_operation() -> None:
    public = [name for name in vars(S3EventStore) if not name.startswith("_")]
    programs = {"probe", "wake", "on_wake", "put", "uri"}  # for the package itself

    missing = [name for name in public if name not in programs and f"`{name}" not in REFERENCE]

    assert missing == []


def test_the_reference_has_every_folder() -> None:
    keys = Keys("<namespace>")
    folders = {each.rpartition("/")[2] for each in vars(keys).values()} - {"<namespace>"}
    named = set(re.findall(r"`<namespace>/([\w-]+)/", REFERENCE))

    assert named == {"lineage", "index"} | {
        each for each in folders if "." not in each and "%" not in each
    }


def test_the_order_of_a_marker_is_as_the_reference_says() -> None:
    assert "`2147483647 - priority` with ten digits" in REFERENCE
    pytest.importorskip("obstore")
    from ontologia.store.rows import EventRow

    row = EventRow("e", "n", "t", "{}", "2026-02-11T10:00:00.000000+00:00", 100, "e", 0)

    assert marker_of(row).name == "2147483547-20260211100000000000!e!t"
