"""The part of a page that is made, between two marks; the rest is written by hand."""

from __future__ import annotations

_BEGIN = "<!-- made from the code by `python -m tools.reference`: change it there -->\n"
_END = "<!-- end of what is made -->\n"


def with_made(page: str, made: str, *, opening: str = "") -> str:
    """The page with its part made anew; one without marks gets them at its end.

    `opening` is what a page that is not there yet begins with.
    """
    before, mark, rest = page.partition(_BEGIN)
    after = rest.partition(_END)[2] if mark else ""
    return f"{before or opening}{_BEGIN}\n{made.strip()}\n\n{_END}{after}"
