"""`ontologia export` and `ontologia import`: state out of one store and into another."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from itertools import count

import pytest

from ontologia import Entity, Field, OntologiaConfig, Session
from ontologia.errors import LockContentionError
from ontologia.runtime.transfer import import_state
from ontologia.runtime.transfer.importing import _Importing
from ontologia.runtime.transfer.lines import Header
from ontologia_conformance.query_world import ENTITIES, RELATIONS
from tests.integration.commands import ONTOLOGIA, at_a_terminal, invoke, process
from tests.integration.moving import fill
from tests.shop import Customer, Product, Subscription

names = count(1)


@pytest.fixture
def shop(uri):
    """A store of two commits: the second changes Ada and deletes the pen."""
    with Session(uri, entity_types=[Customer, Product], relation_types=[Subscription]) as session:
        session.ensure([Customer(id="c1", name="Ada"), Customer(id="c2", name="Bob")])
        session.ensure([Product(sku="pen", price=1.5), Product(sku="ink", price=3.0)])
        session.ensure(Subscription(left_key="c1", right_key="ink", seats=2))
        session.commit()
        session.ensure(Customer(id="c1", name="Ada Lovelace"))
        session.delete(Product(sku="pen", price=1.5))
        session.commit()
    return uri


@pytest.fixture
def empty(place):
    return lambda kind="sqlite": _made(place(kind))


def _made(uri):
    Session(uri).close()
    return uri


def exported(uri, *options):
    done = invoke("export", "--datastore-uri", uri, *options)
    assert done.exit_code == 0, done.stderr
    return done.stdout.splitlines(keepends=True)


def objects(uri, *options):
    return [json.loads(line) for line in exported(uri, *options)[1:]]


def head(uri):
    with Session(uri) as session:
        return session.head


def imported(uri, lines, *options):
    return invoke("import", "-", "--datastore-uri", uri, *options, stdin="".join(lines).encode())


# -- out --------------------------------------------------------------------------------------------


def test_the_first_line_says_what_the_file_is(shop):
    first = json.loads(exported(shop)[0])

    assert {name: first[name] for name in ("format", "version", "head", "objects")} == {
        "format": "ontologia-state",
        "version": 1,
        "head": 2,
        "objects": 4,
    }
    assert [(each["kind"], each["name"], each["version"]) for each in first["types"]] == [
        ("entity", "Customer", 1),
        ("entity", "Product", 1),
        ("relation", "Subscription", 1),
    ]
    assert first["types"][2]["schema"]["left"] == "Customer"


def test_every_other_line_is_an_object(shop):
    ada, _, ink, subscription = objects(shop)

    assert (ada["kind"], ada["type"]) == ("entity", "Customer")
    assert ada["key"] == "c1"
    assert ada["fields"]["name"] == "Ada Lovelace"
    assert ink["key"] == "ink"
    assert (subscription["left"], subscription["right"]) == ("c1", "ink")
    assert subscription["fields"]["seats"] == 2
    assert "instance" not in subscription


def test_only_the_types_that_are_asked_for_are_exported(shop):
    found = exported(shop, "--type", "Product", "--type", "Subscription")

    assert [each["name"] for each in json.loads(found[0])["types"]] == ["Product", "Subscription"]
    assert [json.loads(line)["type"] for line in found[1:]] == ["Product", "Subscription"]


def test_the_past_is_exported_as_it_was(shop):
    found = exported(shop, "--as-of", "1")

    first = json.loads(found[0])
    assert (first["head"], first["objects"]) == (1, 5)
    fields = {json.loads(line).get("key"): json.loads(line)["fields"] for line in found[1:]}
    assert fields["c1"]["name"] == "Ada"
    assert fields["pen"]["price"] == 1.5


def test_of_several_versions_the_last_until_then_counts(uri):
    with Session(uri) as session:
        for name, seats in (("first", 1), ("second", 2), ("third", 3)):
            session.ensure([Customer(id="c1", name=name), Product(sku="ink", price=seats)])
            session.ensure(Subscription(left_key="c1", right_key="ink", seats=seats))
            session.commit()
        session.delete(Product(sku="ink", price=3))
        session.delete(Subscription(left_key="c1", right_key="ink", seats=3))
        session.commit()

    second, fourth = exported(uri, "--as-of", "2"), exported(uri, "--as-of", "4")

    customer, product, subscription = [json.loads(line)["fields"] for line in second[1:]]
    assert (customer["name"], product["price"], subscription["seats"]) == ("second", 2.0, 2)
    assert json.loads(second[0])["objects"] == 3
    assert [json.loads(line)["fields"]["name"] for line in fourth[1:]] == ["third"]
    assert json.loads(fourth[0])["objects"] == 1


def test_the_past_before_a_migration_is_exported_in_the_schema_of_that_time(uri, empty):
    class Book(Entity):
        id: Field[str]
        title: Field[str]

    _with(uri, Book(id="b1", title="Ways"))

    class Book(Entity):
        id: Field[str]
        name: Field[str]

    steps = {("Book", 1): lambda fields: {"id": fields["id"], "name": fields["title"]}}
    with Session(uri, entity_types=[Book], upgraders=steps) as session:
        session.migrate(dry_run=False, force=True)
    target = empty()

    past = exported(uri, "--as-of", "1")
    done = imported(target, past)

    [book] = json.loads(past[0])["types"]
    assert (book["version"], sorted(book["schema"]["fields"])) == (1, ["id", "title"])
    assert [each["fields"]["name"] for each in objects(uri)] == ["Ways"]
    assert done.exit_code == 0, done.stderr
    assert objects(target)[0]["fields"] == {"id": "b1", "title": "Ways"}


@pytest.mark.thorough
def test_more_than_a_page_of_objects_is_exported_once_each_and_in_order(uri):
    with Session(uri) as session:
        session.ensure([Customer(id=f"c{n:05}", name="x") for n in range(2_345)])
        session.ensure(
            [Subscription(left_key="c1", right_key=f"p{n:05}", seats=n) for n in range(2_001)]
        )
        session.commit()

    for options in ((), ("--as-of", "1")):
        found = objects(uri, *options)
        keys = [each["key"] for each in found if each["kind"] == "entity"]
        assert keys == [f"c{n:05}" for n in range(2_345)]
        assert [each["fields"]["seats"] for each in found[2_345:]] == list(range(2_001))


def test_what_is_not_there_is_not_exported(shop):
    no_type = invoke("export", "--datastore-uri", shop, "--type", "Customr")
    no_commit = invoke("export", "--datastore-uri", shop, "--as-of", "9")

    assert (no_type.exit_code, no_commit.exit_code) == (4, 4)
    assert "Customer, Product, Subscription" in no_type.stderr
    assert "there is no commit 9; the store is at 2" in no_commit.stderr


def test_a_file_is_there_when_it_is_complete_and_not_before(shop, tmp_path, monkeypatch):
    target = tmp_path / "state.jsonl"
    target.write_text("the last export")

    def breaks(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("ontologia.runtime.transfer.exporting.object_line", breaks)
    broken_off = invoke("export", "--datastore-uri", shop, "-o", target)
    monkeypatch.undo()

    assert broken_off.exit_code == 130
    assert [path.name for path in tmp_path.glob("state*")] == ["state.jsonl"]
    assert target.read_text() == "the last export"

    done = invoke("export", "--datastore-uri", shop, "-o", target, "--json")

    assert json.loads(done.stdout)["objects"] == 4
    assert target.read_text() == "".join(exported(shop))


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_a_file_that_is_replaced_keeps_its_mode(shop, tmp_path, monkeypatch, mode):
    """Also while it is being written: its reader may have been meant to be one user alone."""
    target = tmp_path / "state.jsonl"
    target.write_text("the last export")
    target.chmod(mode)
    during = []
    write = Header.line

    def look(header):
        during.extend(map(mode_of, tmp_path.glob("*.part")))
        return write(header)

    monkeypatch.setattr(Header, "line", look)

    done = invoke("export", "--datastore-uri", shop, "-o", target)

    assert done.exit_code == 0, done.stderr
    assert target.read_text() != "the last export"
    assert (during, mode_of(target)) == ([mode], mode)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_a_new_file_has_the_mode_that_the_umask_leaves(shop, tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        invoke("export", "--datastore-uri", shop, "-o", tmp_path / "state.jsonl")
    finally:
        os.umask(before)

    assert mode_of(tmp_path / "state.jsonl") == mode


def test_a_file_that_cannot_be_written_is_an_error(shop, tmp_path):
    done = invoke("export", "--datastore-uri", shop, "-o", tmp_path / "none" / "state.jsonl")

    folder = invoke("export", "--datastore-uri", shop, "-o", tmp_path)

    assert (done.exit_code, folder.exit_code) == (1, 1)
    assert "cannot be written: No such file or directory" in done.stderr
    assert f"error: {tmp_path} cannot be written: Is a directory" in folder.stderr


def test_a_reader_that_has_seen_enough_is_no_error(shop):
    """As `ontologia export | head -1`."""
    with Session(shop) as session:
        session.ensure([Customer(id=f"many{n}", name="x" * 100) for n in range(5_000)])
    program = subprocess.Popen(
        [*ONTOLOGIA, "export", "--datastore-uri", shop],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )

    program.stdout.readline()
    program.stdout.close()
    said = program.stderr.read()
    program.stderr.close()

    assert program.wait() == 141
    assert said == b""


# -- and back ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["sqlite", "postgres"])
def test_what_is_exported_and_imported_elsewhere_is_the_same_state(uri, clock, empty, other):
    fill(uri, clock)
    target = empty(other)

    done = imported(target, exported(uri))

    assert done.exit_code == 0, done.stderr
    assert exported(target)[1:] == exported(uri)[1:]
    assert json.loads(exported(target)[0])["types"] == json.loads(exported(uri)[0])["types"]
    with (
        Session(target, entity_types=ENTITIES, relation_types=RELATIONS) as there,
        Session(uri, entity_types=ENTITIES, relation_types=RELATIONS) as here,
    ):
        there.validate()  # the program's own classes fit
        for cls in ENTITIES:
            found = there.query().entities(cls).collect()
            assert found == here.query().entities(cls).collect() != []
        for cls in RELATIONS:
            found = there.query().relations(cls).collect()
            assert found == here.query().relations(cls).collect() != []


@pytest.mark.thorough
def test_a_real_process_passes_state_from_one_to_the_other(shop, empty):
    target = empty()

    out = process("export", "--datastore-uri", shop)
    back = process("import", "-", "--datastore-uri", target, input=out.stdout)

    assert (out.returncode, back.returncode) == (0, 0), back.stderr
    assert out.stderr == b"exported 4 objects of 3 types at commit 2\n"
    assert back.stdout == (
        b"4 created, 0 updated, 0 unchanged, in commit 1\n"
        b"new types: Customer, Product, Subscription\n"
    )
    assert back.stderr == b""
    assert objects(target) == objects(shop)


@pytest.mark.thorough
def test_a_terminal_gets_a_bar(shop, tmp_path, empty):
    file = tmp_path / "state.jsonl"

    code, shown = at_a_terminal("export", "--datastore-uri", shop, "-o", file)
    imported_code, imported_shown = at_a_terminal("import", file, "--datastore-uri", empty())

    assert (code, imported_code) == (0, 0), imported_shown
    assert "exporting" in shown
    assert "━" in shown
    assert "checking" in imported_shown
    assert "4 created" in imported_shown


def test_the_commit_says_what_was_imported_by_whom_and_why(shop, empty, tmp_path):
    target, file = empty(), tmp_path / "state.jsonl"
    file.write_text("".join(exported(shop)))

    invoke("import", file, "--datastore-uri", target, "--reason", "moving house")

    with Session(target) as session:
        [commit] = session.list_commits()
    said = commit["metadata"]
    assert said["action"] == "import"
    assert "@" in said["operator"]
    assert said["reason"] == "moving house"
    assert said["arguments"] == {"source": "state.jsonl", "on_conflict": "fail"}
    assert said["counts"] == {"created": 4, "updated": 0, "unchanged": 0, "skipped": 0}


def test_importing_what_is_there_writes_nothing(shop):
    done = imported(shop, exported(shop), "--json")

    assert json.loads(done.stdout) == {
        "created": 0,
        "updated": 0,
        "unchanged": 4,
        "skipped": 0,
        "types": [],
        "commit_id": None,
        "dry_run": False,
    }
    assert head(shop) == 2


def test_an_import_of_more_than_a_commit_may_hold_is_one_commit(uri):
    config = OntologiaConfig(max_batch_size=10)
    lines = [exported(_with(uri, Customer(id="c0", name="x")))[0].encode()]
    first = json.loads(lines[0]) | {"objects": None}
    lines = [json.dumps(first).encode() + b"\n"]
    fields = objects(uri)[0]["fields"]
    lines += [
        json.dumps(
            {
                "kind": "entity",
                "type": "Customer",
                "key": f"n{n}",
                "fields": fields | {"id": f"n{n}"},
            }
        ).encode()
        for n in range(25_000)
    ]

    with Session(uri, config=config) as session:
        report = import_state(session, lines)

        assert (report.created, report.commit_id) == (25_000, 2)
        assert session.query().entities(Customer).count() == 25_001


def _with(uri, *things):
    with Session(uri) as session:
        session.ensure(things)
    return uri


# -- conflicts --------------------------------------------------------------------------------------


@pytest.fixture
def older(shop):
    """The state of the first commit, in which Ada has another name and there is a pen."""
    return exported(shop, "--as-of", "1")


def test_an_object_that_is_there_with_other_fields_is_a_conflict(shop, older):
    done = imported(shop, older)

    assert done.exit_code == 6
    assert "1 differ from what the store has, first Customer 'c1' in line 2" in done.stderr
    assert "--on-conflict replace" in done.stderr
    assert head(shop) == 2


def test_conflicts_can_be_left_as_they_are(shop, older):
    done = imported(shop, older, "--on-conflict", "skip")

    assert done.stdout == "1 created, 0 updated, 3 unchanged, 1 skipped, in commit 3\n"
    assert {each.get("key") for each in objects(shop)} == {"c1", "c2", "ink", "pen", None}
    assert objects(shop)[0]["fields"]["name"] == "Ada Lovelace"


def test_conflicts_can_be_replaced(shop, older):
    done = imported(shop, older, "--on-conflict", "replace")

    assert done.stdout == "1 created, 1 updated, 3 unchanged, in commit 3\n"
    assert objects(shop) == objects(shop, "--as-of", "1")


def test_a_dry_run_counts_and_writes_nothing(shop, older, empty):
    target = empty()

    done = imported(shop, older, "--on-conflict", "replace", "--dry-run")
    elsewhere = imported(target, older, "--dry-run")

    assert done.stdout == "1 created, 1 updated, 3 unchanged; nothing was written (dry run)\n"
    assert "new types: Customer, Product, Subscription" in elsewhere.stdout
    assert imported(shop, older, "--dry-run").exit_code == 6
    assert (head(shop), head(target)) == (2, 0)
    assert exported(target)[1:] == []
    assert json.loads(exported(target)[0])["types"] == []


def test_a_store_that_has_moved_on_is_left_as_it_is(shop, older):
    refused = imported(shop, older, "--on-conflict", "replace", "--expected-head", "1")
    done = imported(shop, older, "--on-conflict", "replace", "--expected-head", "2")

    assert refused.exit_code == 6
    assert "expected head 1, the store is at 2" in refused.stderr
    assert done.exit_code == 0


# -- files that are wrong -----------------------------------------------------------------------------


def line(**changes):
    said = {"kind": "entity", "type": "Customer", "key": "c9"}
    fields = {"id": "c9", "name": "Eve", "tier": "gold", "profile": {}}
    wrong = (
        {"fields": fields | changes["fields"]} if isinstance(changes.get("fields"), dict) else {}
    )
    return {**said, "fields": fields} | changes | wrong


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (line(fields={"name": 7}), "name: Input should be a valid string, got 7"),
        (line(fields={"name": None}), "name: Input should be a valid string, got None"),
        (line(fields={"x": 1}), "x is not a field"),
        (line(key="c8"), "Customer: the key is 'c8', and id is \"c9\""),
        (line(key=""), "key is the text of a key, got ''"),
        (line(key=9), "key is the text of a key, got 9"),
        (line(type="Nobody"), "there is no entity type Nobody"),
        (line(type=7), "type is the name of a type, got 7"),
        (line(kind="thing"), "kind is entity or relation, got 'thing'"),
        (line(fields=[1]), "fields is an object, got [1]"),
        (line(colour="red"), "a line of entity has no 'colour'"),
        (line(fields={"name": "\0"}), "U+0000"),
        ([1, 2], "a line is a JSON object, got [1, 2]"),
        (
            {"kind": "relation", "type": "Subscription", "left": "c1", "fields": {"seats": 1}},
            "right is the text of a key, got ''",
        ),
        (
            {"kind": "relation", "type": "Subscription", "left": "c1", "right": "ink"}
            | {"instance": "x", "fields": {"seats": 1}},
            "Subscription has no instance key",
        ),
    ],
)
def test_a_line_that_does_not_fit_is_named_and_nothing_is_written(shop, empty, wrong, said):
    target = empty()
    lines = [*exported(shop), json.dumps(wrong) + "\n"]

    done = imported(target, lines)

    assert done.exit_code == 1
    assert done.stderr.startswith("error: stdin, line 6: ")
    assert said in done.stderr
    assert "; nothing was written" in done.stderr
    assert (head(target), json.loads(exported(target)[0])["types"]) == (0, [])


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("", "this is no file of state"),
        ("{}\n", "this is no file of state"),
        ("not JSON\n", "not JSON"),
        ('{"format": "ontologia-state", "version": 2}\n', "version 2 of the format"),
        ('{"format": "ontologia-state", "version": 1}\n', "types is a list"),
        ('{"format":"ontologia-state","version":1,"types":[{}]}\n', "a type has a schema"),
        (
            '{"format":"ontologia-state","version":1,"types":[{"schema":{"kind":"entity"}}]}\n',
            "names are identifiers",
        ),
    ],
)
def test_a_file_that_is_none_of_state_is_refused(empty, first, said):
    done = imported(empty(), [first])

    assert done.exit_code == 1
    assert said in done.stderr
    assert "line 1" in done.stderr


@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["real", "dry"])
def test_a_line_with_a_key_that_is_too_long_is_named_in_a_dry_run_too(shop, empty, dry):
    first, *good = exported(shop, "--type", "Customer")
    long = json.dumps(line(key="x" * 2_001, fields={"id": "x" * 2_001})) + "\n"
    first = json.dumps(json.loads(first) | {"objects": len(good) + 1}) + "\n"
    target = empty()

    done = imported(target, [first, *good, long], *dry)

    assert done.exit_code == 1
    assert "line 4: the key of Customer" in done.stderr
    assert "2,001 bytes, and 2,000 are the most; nothing was written\n" in done.stderr
    assert head(target) == 0


def test_a_long_key_that_an_earlier_version_stored_can_be_imported_again(place, monkeypatch):
    source = place("sqlite")
    with monkeypatch.context() as earlier, Session(source) as session:
        earlier.setattr("ontologia.store.key_length.LONGEST_KEY", 10_000)
        session.ensure(Customer(id="x" * 2_001, name="Ada"))
        session.commit()
    lines = [each.replace('"Ada"', '"Ada L."') for each in exported(source)]

    done = imported(source, lines, "--on-conflict", "replace")

    assert done.exit_code == 0, done.stderr
    assert [each["fields"]["name"] for each in objects(source)] == ["Ada L."]


def test_a_file_that_is_not_complete_is_refused(shop, empty):
    target = empty()

    done = imported(target, exported(shop)[:-1])

    assert done.exit_code == 1
    assert "it has 4 objects, and has 3: it is not complete" in done.stderr
    assert head(target) == 0


def test_an_object_that_is_there_twice_is_refused(shop, empty):
    lines = exported(shop)

    done = imported(empty(), [*lines, lines[1]])

    assert done.exit_code == 1
    assert "line 6: Customer 'c1' was in an earlier line already" in done.stderr


def test_a_file_of_another_schema_is_refused_and_says_how_it_differs(uri, empty):
    target = empty()

    class Book(Entity):
        id: Field[str]
        title: Field[str]

    _with(uri, Book(id="b1", title="Ways"))

    class Book(Entity):
        id: Field[str]
        name: Field[str]

    _with(target, Book(id="b2", name="Means"))

    done = imported(target, exported(uri))

    assert done.exit_code == 1
    assert "line 2: Book: name is missing; title is not a field" in done.stderr
    assert "another schema: entity Book (stored version 1): +name, -title" in done.stderr


def test_a_file_that_is_not_there_is_not_found(shop, tmp_path):
    done = invoke("import", tmp_path / "none.jsonl", "--datastore-uri", shop)

    assert done.exit_code == 4
    assert "there is no file" in done.stderr


# -- classes of the program ---------------------------------------------------------------------------


@pytest.fixture
def models(tmp_path, monkeypatch):
    """A module with a class; its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(body):
        name = f"transfer_models_{next(names)}"
        text = "from ontologia import Entity, Field\n\n\nclass Customer(Entity):\n"
        (tmp_path / f"{name}.py").write_text(text + body)
        return name

    return write


def test_lines_are_checked_against_the_classes_of_a_program(shop, empty, models):
    target = empty()
    name = models("    id: Field[str]\n    name: Field[str]\n    age: Field[int] = 30\n")
    lines = exported(shop, "--type", "Customer")
    mine = json.loads(lines[1])["fields"]
    rest = sorted(mine.keys() - {"id", "name"})
    lines[1:] = [_without(line, rest) for line in lines[1:]]

    done = imported(target, lines, "--models", name)

    assert done.exit_code == 0, done.stderr
    assert [each["fields"]["age"] for each in objects(target)] == [30, 30]


def _without(line, names):
    data = json.loads(line)
    for name in names:
        del data["fields"][name]
    return json.dumps(data) + "\n"


def test_classes_that_are_not_the_stores_are_refused(shop, models):
    name = models("    id: Field[str]\n    age: Field[int] = 30\n")

    done = imported(shop, exported(shop), "--models", name)

    assert done.exit_code == 3
    assert done.stderr.startswith("error: the store has another schema than this program")
    assert head(shop) == 2


# -- interruptions ------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_ctrl_c_leaves_nothing_half_done(shop, empty, ask_store):
    target = empty()
    program = subprocess.Popen(
        [*ONTOLOGIA, "import", "-", "--datastore-uri", target],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    program.stdin.write("".join(exported(shop)).encode())
    program.stdin.flush()
    while not ask_store(target, "SELECT 1 FROM sessions WHERE metadata NOT LIKE '%stopped_at%'"):
        assert program.poll() is None
    os.kill(program.pid, signal.SIGINT)

    out, said = program.communicate()

    assert program.returncode == 130
    assert out == b""
    assert said == b"interrupted\n"
    assert (head(target), ask_store(target, "SELECT * FROM locks")) == (0, [])
    assert imported(target, exported(shop)).exit_code == 0


def test_an_interrupt_between_comparing_and_writing_gives_the_lease_back(
    shop, empty, monkeypatch, ask_store
):
    target = empty()

    def breaks(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("ontologia.runtime.transfer.targets.Targets.register", breaks)
    done = imported(target, exported(shop))
    monkeypatch.undo()

    assert done.exit_code == 130
    assert (head(target), ask_store(target, "SELECT * FROM locks")) == (0, [])
    assert ask_store(target, "SELECT * FROM schema_versions") == []


def test_others_wait_while_an_import_compares_and_writes(shop, older, monkeypatch):
    """What was compared must still be true when it is written."""
    planned, refused = _Importing.plan, []

    def then_somebody_commits(*arguments):
        found = planned(*arguments)
        with Session(shop, config=OntologiaConfig(lock_timeout_ms=20)) as other:
            other.ensure(Customer(id="c1", name="Eve"))
            with pytest.raises(LockContentionError) as caught:
                other.commit()
            refused.append(caught.value)
            other.discard()
        return found

    monkeypatch.setattr(_Importing, "plan", then_somebody_commits)
    done = imported(shop, older, "--on-conflict", "replace")

    assert done.exit_code == 0, done.stderr
    assert len(refused) == 1
    assert objects(shop)[0]["fields"]["name"] == "Ada"
