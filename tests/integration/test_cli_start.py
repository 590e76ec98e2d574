"""How the program begins and ends: what it is told, how it breaks off, and its exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from ontologia import Session, errors
from ontologia.cli.failures import EXIT_CODES
from tests.integration.commands import ONTOLOGIA, ROOT, invoke, process
from tests.shop import Customer


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A store in the working directory that is not the default one; its URI."""
    monkeypatch.chdir(tmp_path)
    with Session("shop.db") as session:
        session.ensure(Customer(id="c1", name="Ada"))
    return "sqlite:///shop.db"


@pytest.fixture
def module(tmp_path):
    """Write a module into the working directory; its name."""

    def write(text, name="starting"):
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


# -- which store ------------------------------------------------------------------------------------


def test_what_stands_after_the_command_counts_more(shop):
    done = invoke("--datastore-uri", "none.db", "info", "--datastore-uri", shop, "--json")

    assert json.loads(done.stdout)["head"] == 1
    assert json.loads(invoke("--json", "--datastore-uri", shop, "info").stdout)["head"] == 1


def test_an_option_counts_more_than_the_environment_and_that_more_than_a_file(
    shop, tmp_path, monkeypatch
):
    (tmp_path / "ontologia.toml").write_text('datastore_uri = "shop.db"')
    assert invoke("info").exit_code == 0

    monkeypatch.setenv("ONTOLOGIA_DATASTORE_URI", "none.db")
    assert invoke("info").exit_code == 4
    assert invoke("info", "--datastore-uri", shop).exit_code == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--datastore-uri", "", "info"], 2),
        (["info", "--datastore-uri", ""], 2),
        (["commits", "--datastore-uri", ""], 2),
        (["info", "--namespace", ""], 2),
        (["init", ""], 5),
    ],
)
def test_a_variable_that_was_not_set_does_not_mean_the_default(shop, tmp_path, words, code):
    """`--datastore-uri "$STORE"` must not fall on an app.db that happens to be here."""
    if words[0] != "init":
        Session("app.db").close()

    done = invoke(*words)

    assert done.exit_code == code
    assert (tmp_path / "app.db").exists() == (words[0] != "init")


def test_an_empty_variable_of_the_environment_is_no_default_either(shop, tmp_path, monkeypatch):
    monkeypatch.setenv("ONTOLOGIA_DATASTORE_URI", "")

    assert (invoke("info").exit_code, invoke("init").exit_code) == (5, 5)
    assert not (tmp_path / "app.db").exists()


def test_no_store_at_all_is_said_with_what_helps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    done = invoke("info")

    assert done.exit_code == 4
    assert "ontologia init makes a store" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_version_is_said():
    assert re.fullmatch(r"ontologia \d+\.\d+\.\d+\n", invoke("--version").stdout)


def test_a_shell_is_told_how_a_word_can_end():
    asked = {
        "_ONTOLOGIA_COMPLETE": "complete_bash",
        "COMP_WORDS": "ontologia exp",
        "COMP_CWORD": "1",
    }
    program = "import sys; from ontologia.cli.start import main; sys.argv[0] = 'ontologia'; main()"

    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **asked},
        capture_output=True,
        check=True,
    )

    assert done.stdout.split() == [b"export"]


# -- interrupts -------------------------------------------------------------------------------------


def test_an_interrupt_within_code_made_from_text_is_an_interrupt_like_any_other(shop, module):
    """As in a dataclass that is just being imported: Python would end by the signal."""
    models = module("exec('raise KeyboardInterrupt')")

    done = process("migrate", "--models", models, "--datastore-uri", shop)

    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"interrupted\n")


def test_an_interrupt_that_python_wraps_is_an_interrupt_like_any_other(shop):
    """As while a class with fields is made."""
    program = (
        "import ontologia.cli.info as info\n"
        "class Field:\n"
        "    def __set_name__(self, *_):\n"
        "        raise KeyboardInterrupt\n"
        "info._facts = lambda session: type('Customer', (), {'id': Field()})\n"
        "from ontologia.cli.start import main\n"
        "main()\n"
    )
    call = [sys.executable, "-c", program, "info", "--datastore-uri", shop]

    done = subprocess.run(call, capture_output=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"interrupted\n")


def test_an_interrupt_while_the_commands_are_loaded_has_no_traceback(shop, tmp_path, module):
    module("raise KeyboardInterrupt", name="typer")

    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])

    done = process("info", env={**os.environ, "PYTHONPATH": path})

    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"interrupted\n")


@pytest.mark.parametrize(("type_name", "code"), [("Customer", 3), ("Novelty", 0)])
def test_an_interrupt_after_the_end_changes_nothing(shop, module, type_name, code):
    models = module(
        "import atexit, os, signal\n"
        "from ontologia import Entity, Field\n"
        f"class {type_name}(Entity):\n"
        "    id: Field[str]\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
    )

    done = process("migrate", "--models", models, "--datastore-uri", shop)

    assert (done.returncode, done.stderr) == (code, b"")
    assert done.stdout


# -- errors -----------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_debug_shows_where_an_error_comes_from_and_the_exit_code_stays(shop):
    plain = process("info", "--datastore-uri", "none.db")
    before = process("--debug", "info", "--datastore-uri", "none.db")
    after = process("info", "--datastore-uri", "none.db", "--debug")

    assert (plain.returncode, before.returncode, after.returncode) == (4, 4, 4)
    assert b"Traceback" not in plain.stderr
    assert before.stderr.startswith(b"Traceback")
    assert before.stderr.endswith(plain.stderr)
    assert after.stderr == before.stderr


@pytest.mark.thorough
def test_an_error_that_nobody_expected_has_no_traceback_either(shop):
    program = (
        "import ontologia.cli.info as info, sys\n"
        "info._facts = lambda session: 1 / 0\n"
        "from ontologia.cli.start import main\n"
        "main()\n"
    )
    call = [sys.executable, "-c", program, "info", "--datastore-uri", shop]

    done = subprocess.run(call, capture_output=True, check=False)
    debugged = subprocess.run([*call, "--debug"], capture_output=True, check=False)

    assert (done.returncode, debugged.returncode) == (1, 1)
    first, second = done.stderr.decode().splitlines()
    assert first == "error: ZeroDivisionError: division by zero"
    assert second == "  hint: --debug shows where it comes from."
    assert debugged.stderr.startswith(b"Traceback")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["info", "export", "query entities Customer", "--help"])
def test_a_full_disk_is_a_message(shop, command, unbuffered):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*ONTOLOGIA, *command.split()],
            env={**os.environ, "ONTOLOGIA_DATASTORE_URI": shop, "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )

    assert done.returncode == 1
    assert b"error: [Errno 28] No space left on device\n" in done.stderr
    assert b"Traceback" not in done.stderr


def test_an_output_that_lacks_a_letter_gets_its_number(shop):
    done = process(
        *("why", "Customer", "c1", "--datastore-uri", shop),
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].startswith(rb"\u2514\u2500 set by commit 1 ")


def test_an_output_that_is_closed_is_no_error(shop):
    done = subprocess.run(
        ["sh", "-c", '"$@" >&- 2>&-', "sh", *ONTOLOGIA, "info", "--datastore-uri", shop],
        check=False,
    )

    assert done.returncode == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.StateConflictError("Order", "o1"), 6),
        (errors.RecordExists("Order", "o1"), 6),
        (errors.LockLostError("ontology_write", "s1"), 6),
        (errors.LeaseExpiredError("ship", "e1"), 6),
        (errors.CommandHandlerNotFound("nobody carries out order.place"), 4),
        (errors.RecordNotFound("Order", ["o1"]), 4),
    ],
    ids=lambda given: type(given).__name__,
)
def test_a_conflict_and_what_is_not_there_have_codes_of_their_own(error, code, monkeypatch):
    """A script tries again what collided with somebody else, and nothing that would fail again."""

    def collide(*_, **__):
        raise error

    monkeypatch.setattr("ontologia.cli.call.Call.reading", collide)

    done = invoke("commits")

    assert done.exit_code == code
    assert done.stderr.startswith(f"error: {error.args[0]}\n")


def test_every_exit_code_is_in_the_manual():
    manual = (ROOT / "docs/reference/cli.md").read_text()
    table = manual.partition("| exit code | |")[2].partition("\n\n")[0]

    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}

    assert listed == {0, 2, 130, 141} | {code for _, code in EXIT_CODES}
