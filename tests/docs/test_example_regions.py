"""The example of two regions, through a real bucket."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ontologia.store.s3.bucket import Bucket

EXAMPLE = Path(__file__).parent.parent.parent / "examples/regions/regions.py"


def test_an_order_goes_there_and_its_answer_comes_back(tmp_path, s3_uri):
    Bucket(s3_uri).put("made", b"{}")

    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLE],
        cwd=tmp_path,
        env=os.environ | {"REGIONS_URI": s3_uri},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert [line.strip() for line in done.stdout.splitlines()] == [
        "The shop takes an order; the relay carries it.",
        "1 stored, 0 known already",
        "the warehouse packs o1",
        "The answer comes back; the order itself does not.",
        "1 stored, 1 known already",
        "the shop hears that o1 is packed, hop 1",
    ]
