"""What the console serves: the vendored script is the published one, and all of it is small."""

from __future__ import annotations

import gzip
import hashlib
from importlib.resources import files
from pathlib import Path

STATIC = Path(str(files("ontologia.web.console"))) / "static"
VENDORED = {
    # package/dist/idiomorph.min.js of https://registry.npmjs.org/idiomorph/-/idiomorph-0.8.0.tgz
    "idiomorph-0.8.0.min.js": "4cbd535caf7663a51eda9bce6595371c384fc430d54b8d414e29a61167f19f96",
}


def test_vendored_scripts_are_as_they_were_published():
    scripts = (STATIC / "vendor").glob("*.js")
    found = {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in scripts}
    assert found == VENDORED
    licence = (STATIC / "vendor" / "idiomorph-LICENSE.txt").read_text()
    assert licence.startswith("Zero-Clause BSD")


def test_all_scripts_together_are_small():
    scripts = [each.read_bytes() for each in STATIC.rglob("*.js")]
    assert sum(map(len, scripts)) < 60_000
    assert sum(len(gzip.compress(each)) for each in scripts) < 20_000


def test_nothing_is_asked_of_another_host():
    for path in STATIC.rglob("*"):
        if path.suffix in (".js", ".css"):
            text = path.read_text()
            assert "://" not in text.replace("http://www.w3.org/", ""), path.name
            assert "@import" not in text
