"""Put the pages of the site together, and build it: python -m tools.site

The home page is README.md, so that there is one; CHANGELOG.md and its like come from the root, too.
The pages of the API and of the options of the command line are made here, from the code. All of it,
and what is in `docs/`, is put into build/docs; `zensical.toml` says how it looks.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.reference import DOCS
from tools.reference.api import api_pages
from tools.reference.options import options_page

ROOT = DOCS.parent
BUILD = ROOT / "build"
FROM_ROOT = {
    "index.md": "README.md",
    "project/changelog.md": "CHANGELOG.md",
    "project/contributing.md": "CONTRIBUTING.md",
    "project/security.md": "SECURITY.md",
}


def build() -> int:
    """Build the site; the exit code, which is not 0 if there was anything to warn of."""
    gather(BUILD / "docs")
    if found := problems(BUILD / "docs"):
        sys.stderr.write("".join(f"error: {problem}\n" for problem in found))
        return 1
    zensical = str(Path(sys.executable).with_name("zensical"))
    command = [zensical, "build", "--clean", "--strict"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode  # noqa: S603


def gather(folder: Path) -> None:
    """Put every page of the site into a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS, folder)
    for name, text in made_pages().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")


def made_pages() -> dict[str, str]:
    """The pages that are not in `docs/`, by their place in the site."""
    return {
        **{name: from_root(name, source) for name, source in FROM_ROOT.items()},
        **api_pages(),
        "reference/options.md": options_page(),
        "decisions/index.md": _decisions(),
    }


def from_root(name: str, source: str) -> str:
    """A page of the root as one of the site: its links lead to pages, or are words."""
    up = "../" * name.count("/")
    pages = {source: target for target, source in FROM_ROOT.items()}

    def link(match: re.Match[str]) -> str:
        words, target = match[1], match[2]
        path, mark, part = target.partition("#")
        if re.match(r"\w+:", target) or not path:
            return match[0]
        if path in pages:
            return f"{words}({up}{pages[path]}{mark}{part})"
        if path.startswith("docs/") and (ROOT / path).is_file():
            return f"{words}({up}{path.removeprefix('docs/')}{mark}{part})"
        if path.rstrip("/") == "docs/decisions":
            return f"{words}({up}decisions/index.md)"
        return words[1:-1]  # a folder, or a file that only a checkout has

    text = re.sub(r"(\[[^\]]*\])\(([^)\s]+)\)", link, (ROOT / source).read_text("utf-8"))
    return re.sub(r'((?:src|srcset)=")docs/', rf"\1{up}", text)


def problems(folder: Path) -> list[str]:
    """Pages that the navigation names and that are not there, and the other way round."""
    named = {*_paths(tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]["nav"])}
    there = {str(page.relative_to(folder)) for page in folder.rglob("*.md")}
    listed = {page for page in there if page.startswith("decisions/0")}
    return [
        *(f"zensical.toml names {page}, which is not there" for page in sorted(named - there)),
        *(f"zensical.toml does not name {page}" for page in sorted(there - named - listed)),
    ]


def _paths(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for below in nav.values() if isinstance(nav, dict) else nav:
            yield from _paths(below)


def _decisions() -> str:
    lines = ["# Decisions", "", "What was decided, and what it costs.", ""]
    for page in sorted((DOCS / "decisions").glob("*.md")):
        title = page.read_text("utf-8").partition("\n")[0].lstrip("# ")
        lines.append(f"- [{title}]({page.name})")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(build())
