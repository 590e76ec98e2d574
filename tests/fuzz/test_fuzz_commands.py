"""The command line: whatever it is told, it ends with a documented exit code and a plain word."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typer.main import get_command

from ontologia.cli.main import app
from tests.fuzz.strategies import ANYTHING, TEXT, examples
from tests.fuzz.targets import READING, arguments


def options(command: list[str]) -> list[str]:
    """Every option of a command."""
    found = get_command(app)
    for name in command:
        found = getattr(found, "commands", {}).get(name, found)
    return [option for each in found.params for option in each.opts if option.startswith("-")]


WORDS = st.sampled_from(
    [
        *("Fuzzed", "FuzzedLink", "1", "0", "-1", "1:ü", "text eq a", "data.a.b gt 0", "text:desc"),
        *("default", "fuzzed.event", "1h", "2026-01-01", "entity", "sqlite", ".", "-", "--"),
    ]
)


@st.composite
def commands(draw, number):
    """A command, and arguments of which some make sense to it."""
    known = st.sampled_from([*options(READING[number]), "--json", "--debug", "--namespace"])
    word = WORDS | TEXT | ANYTHING.map(repr)
    flag = known | st.tuples(known, word).map("=".join)
    given = draw(st.lists(word | flag | word, max_size=5))
    text = "\n".join(["x" * number, *(each.replace("\n", " ") for each in given)])
    return text.encode(errors="surrogatepass")


@pytest.mark.parametrize("number", range(len(READING)), ids=[" ".join(each) for each in READING])
@examples(6)
@given(data=st.data())
def test_a_reading_command_ends_well_whatever_it_is_told(number, data):
    arguments(data.draw(commands(number)))


@examples(25)
@given(st.binary(max_size=60))
@example(b"")
@example(b"\nFuzzed\n--filter\ntext eq \xff")
def test_bytes_that_are_no_text_are_told_to_it(data):
    arguments(data)
