"""A commit says what should be true; the difference is written, numbered, and never changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ontologia import Entity, Field, Session
from ontologia.errors import (
    BatchSizeExceededError,
    HeadMismatchError,
    InvalidValueError,
)
from ontologia.runtime.session import core_of
from ontologia_conformance.shop import Customer, Product, Subscription


def names(session):
    return [customer.name for customer in session.query().entities(Customer).collect()]


def ada(**fields):
    return Customer(**({"id": "c1", "name": "Ada"} | fields))


# -- what is written, and what is not -------------------------------------------------------------


@pytest.mark.req("ONT-174", "ONT-177", "SQL-009")
def test_new_and_changed_objects_are_written_and_identical_ones_are_not(session):
    session.ensure([ada(), Customer(id="c2", name="Bob")])
    first = session.commit()

    session.ensure([ada(), Customer(id="c2", name="Bob", tier="gold"), Customer(id="c3", name="C")])
    second = session.commit()

    assert (first, second, session.head) == (1, 2, 2)
    versions = session.query().entities(Customer).with_history().collect()
    assert [(v.meta().commit_id, v.id) for v in versions] == [
        (1, "c1"), (1, "c2"), (2, "c2"), (2, "c3"),
    ]  # fmt: skip


@pytest.mark.req("ONT-176")
def test_ensuring_what_is_already_true_makes_no_commit(session):
    everything = [ada(profile={"a": 1, "b": [True, None]}), Product(sku="p1", price=9.5)]
    everything.append(Subscription(left_key="c1", right_key="p1", seats=3))
    session.ensure(everything)
    session.commit()

    # The same profile, written down in another order.
    everything[0] = ada(profile={"b": [True, None], "a": 1})
    session.ensure(everything)

    assert session.commit() is None
    assert session.head == 1
    assert len(session.list_commits()) == 1


@pytest.mark.req("ONT-176")
def test_a_commit_of_nothing_is_none(session):
    assert session.commit() is None
    assert session.head == 0
    assert session.list_commits() == []


@pytest.mark.req("ONT-176")
def test_a_change_taken_back_before_the_commit_writes_nothing(session):
    session.ensure(ada())
    session.commit()

    session.ensure(ada(tier="gold"))
    session.ensure(ada())

    assert session.commit() is None


@pytest.mark.req("SQL-001")
def test_a_change_leaves_every_earlier_version_as_it_was(session):
    session.ensure(ada(tier="bronze"))
    session.commit()
    [before] = session.query().entities(Customer).with_history().collect()

    session.ensure(ada(tier="gold", name="Ada L."))
    session.commit()
    session.delete(ada())
    session.commit()

    oldest, *newer = session.query().entities(Customer).with_history().collect()
    assert (oldest, oldest.meta()) == (before, before.meta())
    assert [v.meta().commit_id for v in newer] == [2, 3]


@pytest.mark.req("ONT-084")
@pytest.mark.parametrize(
    "several",
    [list, tuple, iter, lambda objs: (o for o in objs)],
    ids=["list", "tuple", "iterator", "generator"],
)
def test_ensure_takes_one_object_or_any_iterable_and_returns_nothing(session, several):
    mixed = [
        ada(),
        Product(sku="p1", price=1),
        Subscription(left_key="c1", right_key="p1", seats=1),
    ]

    assert session.ensure(Customer(id="c2", name="Bob")) is None
    assert session.ensure(several(mixed)) is None

    assert session.query().entities(Customer).count() == 0  # queued, not written
    assert session.commit() == 1
    assert names(session) == ["Ada", "Bob"]
    assert session.query().relations(Subscription).count() == 1


def test_an_iterable_with_one_bad_object_queues_none_of_it(session):
    with pytest.raises(InvalidValueError, match="expected an entity or a relation"):
        session.ensure([ada(), "c2"])

    assert session.discard() == 0


def test_an_object_is_written_down_as_it_was_when_it_was_queued(session):
    customer = ada(profile={"city": "Paris"})
    session.ensure(customer)

    customer.name = "Grace"
    customer.profile["city"] = "Rome"
    session.commit()

    assert session.query().entities(Customer).collect() == [ada(profile={"city": "Paris"})]


@pytest.mark.req("SQL-104")
def test_the_same_key_twice_in_one_commit_is_one_version_with_the_last_value(session):
    session.ensure([ada(tier="bronze"), ada(tier="silver")])
    session.ensure(ada(tier="gold"))
    session.ensure([
        Subscription(left_key="c1", right_key="p1", seats=1),
        Subscription(left_key="c1", right_key="p1", seats=2),
    ])  # fmt: skip

    session.commit()

    [customer] = session.query().entities(Customer).with_history().collect()
    [subscription] = session.query().relations(Subscription).with_history().collect()
    assert (customer.tier, subscription.seats) == ("gold", 2)
    assert len(session.list_commit_changes(1)) == 2


def test_the_last_word_on_a_key_counts_whether_it_keeps_or_deletes(session):
    session.ensure([ada(), Customer(id="c2", name="Bob")])
    session.commit()

    session.ensure(ada(tier="gold"))
    session.delete(ada())
    session.delete(Customer(id="c2", name="Bob"))
    session.ensure(Customer(id="c2", name="Bob", tier="gold"))
    session.commit()

    found = session.query().entities(Customer).collect()
    assert [(c.id, c.tier) for c in found] == [("c2", "gold")]


# -- deletion -------------------------------------------------------------------------------------


def test_a_deleted_entity_is_absent_from_the_current_state(session):
    session.ensure([ada(), Customer(id="c2", name="Bob")])
    session.commit()

    session.delete(Customer(id="c1", name="whatever: only the key matters"))
    second = session.commit()

    assert second == 2
    assert names(session) == ["Bob"]
    assert session.query().entities(Customer).where(Customer.id == "c1").first() is None
    assert session.query().entities(Customer).count() == 1


def test_deleting_what_does_not_exist_writes_nothing(session):
    session.delete(ada())
    assert session.commit() is None

    session.ensure(ada())
    session.commit()
    session.delete(ada())
    session.commit()
    session.delete(ada())

    assert session.commit() is None
    assert session.head == 2


def test_a_deleted_object_can_be_ensured_again_and_lives(session):
    session.ensure(ada(tier="gold"))
    session.commit()
    session.delete(ada())
    session.commit()

    session.ensure(ada(tier="gold"))
    third = session.commit()

    assert third == 3
    [customer] = session.query().entities(Customer).collect()
    assert (customer.tier, customer.meta().commit_id) == ("gold", 3)
    assert session.list_commit_changes(3)[0]["change_type"] == "created"


def test_a_relation_can_be_deleted_and_revived_and_its_neighbours_stay(session):
    one, two = (Subscription(left_key="c1", right_key=key, seats=1) for key in ("p1", "p2"))
    session.ensure([one, two])
    session.commit()

    session.delete(one)
    session.commit()
    without = session.query().relations(Subscription).collect()
    session.ensure(one)
    session.commit()

    assert without == [two]
    assert session.query().relations(Subscription).collect() == [one, two]


def test_discard_drops_what_is_queued_and_says_how_many(session):
    session.ensure([ada(), ada(tier="gold"), Product(sku="p1", price=1)])
    session.delete(Product(sku="p2", price=1))

    assert session.discard() == 3  # three objects, however often they were named
    assert session.commit() is None
    assert session.discard() == 0


def test_leaving_the_with_block_commits_and_an_exception_does_not(uri):
    with Session(uri) as session:
        session.ensure(ada())

    def work_that_fails():
        with Session(uri) as session:
            session.ensure(Customer(id="c2", name="Bob"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work_that_fails()

    with Session(uri) as session:
        assert (names(session), session.head) == (["Ada"], 1)


# -- looking before writing -----------------------------------------------------------------------


@pytest.mark.req("NEW-044")
def test_a_dry_run_says_what_would_change_and_writes_nothing(session):
    session.ensure([ada(), Customer(id="c2", name="Bob"), Product(sku="p1", price=1)])
    session.commit()
    session.ensure([ada(tier="gold"), Customer(id="c3", name="Cy"), Product(sku="p1", price=1)])
    session.delete(Customer(id="c2", name="Bob"))

    delta = session.commit(dry_run=True)

    [created], [updated], [deleted] = delta.created, delta.updated, delta.deleted
    assert (created.key, created.fields["name"]) == ("c3", (None, "Cy"))
    assert (updated.type_name, updated.key) == ("Customer", "c1")
    assert updated.fields == {"tier": ("standard", "gold")}
    assert (deleted.key, deleted.fields["name"]) == ("c2", ("Bob", None))
    assert (session.head, names(session)) == (1, ["Ada", "Bob"])


@pytest.mark.req("NEW-044")
def test_a_dry_run_keeps_the_queue_and_the_commit_does_what_it_said(session):
    session.ensure(ada())
    promised = session.commit(dry_run=True)

    session.commit()

    assert session.diff(0, 1) == promised
    assert len(promised) == 1


@pytest.mark.req("NEW-044")
def test_a_dry_run_of_nothing_new_is_false(session):
    session.ensure(ada())
    session.commit()

    session.ensure(ada())

    assert not session.commit(dry_run=True)
    assert session.commit(dry_run=True) == session.diff(1, 1)


@pytest.mark.req("NEW-044")
@pytest.mark.parametrize(("before", "after"), [(True, 1), (1, 1.0)], ids=["true-1", "1-1.0"])
def test_a_dry_run_is_true_whenever_the_commit_would_write(session, before, after):
    session.ensure(ada(profile={"x": before}))
    session.commit()
    session.ensure(ada(profile={"x": after}))

    promised = session.commit(dry_run=True)
    written = session.commit()

    assert bool(promised) is (written is not None)
    assert len(promised.updated) == len(session.list_commit_changes(2))


def test_a_commit_goes_through_only_at_the_expected_head(session):
    session.ensure(ada())
    assert session.commit(expected_head=0) == 1

    session.ensure(ada(tier="gold"))
    with pytest.raises(HeadMismatchError) as caught:
        session.commit(expected_head=0)

    assert (caught.value.expected, caught.value.actual) == (0, 1)
    assert (session.head, names(session)) == (1, ["Ada"])
    assert session.commit(expected_head=1) == 2


def test_the_expected_head_is_checked_also_in_a_dry_run_and_with_nothing_queued(session):
    session.ensure(ada())
    session.commit()

    with pytest.raises(HeadMismatchError):
        session.commit(expected_head=7)
    with pytest.raises(HeadMismatchError):
        session.commit(expected_head=7, dry_run=True)
    assert session.commit(expected_head=1) is None


@pytest.mark.req("NEW-029")
def test_a_commit_that_fails_keeps_the_queue_under_what_is_queued_later(open_session):
    mine, other = open_session(), open_session()
    other.ensure(Product(sku="p1", price=1))
    other.commit()

    mine.ensure([ada(tier="bronze"), Customer(id="c2", name="Bob")])
    with pytest.raises(HeadMismatchError):
        mine.commit(expected_head=0)
    mine.ensure(ada(tier="gold"))
    mine.commit(expected_head=1)

    found = mine.query().entities(Customer).collect()
    assert [(c.id, c.tier) for c in found] == [("c1", "gold"), ("c2", "standard")]


@pytest.mark.req("NEW-029")
def test_what_is_queued_while_a_commit_runs_is_newer_than_what_that_writes(open_session):
    """A unit is for one thread; what another queues on it meanwhile is kept all the same."""
    session = open_session()
    unit = session.unit()
    unit.ensure([ada(tier="old"), Customer(id="c2", name="Bob")])
    write = core_of(session).commits.write

    def meanwhile(request):
        unit.ensure(ada(tier="new"))
        return write(request)

    core_of(session).commits.write = meanwhile
    assert unit.commit() == 1
    core_of(session).commits.write = write
    assert unit.commit() == 2
    found = session.query().entities(Customer).collect()
    assert [(c.id, c.tier) for c in found] == [("c1", "new"), ("c2", "standard")]


@pytest.mark.req("ONT-178", "NEW-029")
def test_a_batch_past_the_limit_is_refused_whole_and_stays_queued(open_session):
    session = open_session(settings={"max_batch_size": 3})
    session.ensure(Product(sku=f"p{n}", price=n) for n in range(4))

    with pytest.raises(BatchSizeExceededError, match=r"4 .* 3") as caught:
        session.commit()

    assert (caught.value.size, caught.value.limit) == (4, 3)
    assert "max_batch_size" in caught.value.hint
    assert session.head == 0
    assert session.discard() == 4


@pytest.mark.req("ONT-178")
def test_a_batch_at_the_limit_is_one_commit(open_session):
    session = open_session(settings={"max_batch_size": 3})
    session.ensure(Product(sku=f"p{n % 3}", price=n) for n in range(9))

    assert session.commit() == 1
    assert session.query().entities(Product).count() == 3
    assert open_session(settings={}).config.max_batch_size == 10_000


# -- looking back ---------------------------------------------------------------------------------


@pytest.mark.req("ONT-087")
@pytest.mark.parametrize(
    ("options", "namespace"),
    [
        ({}, "default"),
        ({"namespace": "orders"}, "orders"),
        ({"settings": {"default_namespace": "t"}}, "t"),
    ],
    ids=["default", "named", "configured"],
)
def test_a_commit_carries_the_namespace_of_its_session(open_session, options, namespace):
    session = open_session(**options)

    session.ensure(ada())
    session.commit()

    metadata = session.get_commit(1)["metadata"]
    assert metadata["namespace"] == namespace
    assert metadata["session_id"] == session.session_id


@pytest.mark.req("SQL-008")
def test_a_commit_is_dated_by_the_clock_of_the_session(session, clock):
    session.ensure(ada())
    session.commit()
    clock.advance(seconds=1.5)
    session.ensure(ada(tier="gold"))
    session.commit()

    first, second = session.get_commit(1)["created_at"], session.get_commit(2)["created_at"]

    assert (first.tzinfo, first) == (UTC, datetime(2026, 1, 1, tzinfo=UTC))
    assert second - first == timedelta(seconds=1.5)


def test_commits_are_listed_newest_first_a_page_at_a_time(session):
    for price in range(12):
        session.ensure(Product(sku="p1", price=price))
        session.commit()

    def ids(**options):
        return [commit["id"] for commit in session.list_commits(**options)]

    assert ids() == [12, 11, 10, 9, 8, 7, 6, 5, 4, 3]
    assert ids(limit=2) == [12, 11]
    assert ids(since=9) == [12, 11, 10]
    assert ids(since=0, limit=100) == list(range(12, 0, -1))
    assert ids(since=12) == ids(limit=0) == []


def test_one_commit_is_found_by_its_number_and_an_unknown_one_is_none(session):
    session.ensure(ada())
    session.commit()

    commit = session.get_commit(1)

    assert [commit] == session.list_commits()
    assert set(commit) == {"id", "created_at", "metadata"}
    assert (session.get_commit(0), session.get_commit(2)) == (None, None)


@pytest.mark.req("ONT-089", "ONT-090")
def test_the_changes_of_a_commit_are_named_and_their_values_found_as_of_it(session):
    session.ensure([ada(), Product(sku="p1", price=1), Product(sku="p2", price=2)])
    session.commit()
    session.ensure([ada(tier="gold"), Subscription(left_key="c1", right_key="p1", seats=3)])
    session.delete(Product(sku="p2", price=2))
    second = session.commit()
    session.ensure(ada(tier="lead"))
    session.commit()

    changes = session.list_commit_changes(second)

    assert sorted(changes, key=str) == sorted([
        {"entity_id": "Customer:c1", "relation_id": None, "change_type": "updated"},
        {"entity_id": "Product:p2", "relation_id": None, "change_type": "deleted"},
        {"entity_id": None, "relation_id": "Subscription:c1:p1", "change_type": "created"},
    ], key=str)  # fmt: skip
    then = session.query().entities(Customer).as_of(second).collect()
    assert [customer.tier for customer in then] == ["gold"]
    assert session.list_commit_changes(0) == session.list_commit_changes(99) == []


# -- the difference between two commits -----------------------------------------------------------


@pytest.fixture
def story(session):
    """c1 changes, c2 goes, c3 comes, p1 stays, and a subscription changes."""
    session.ensure([ada(), Customer(id="c2", name="Bob"), Product(sku="p1", price=1)])
    session.ensure(Subscription(left_key="c1", right_key="p1", seats=1))
    session.commit()
    session.ensure(ada(tier="silver"))
    session.commit()
    session.ensure([ada(tier="gold"), Customer(id="c3", name="Cy")])
    session.ensure(Subscription(left_key="c1", right_key="p1", seats=2))
    session.delete(Customer(id="c2", name="Bob"))
    session.commit()
    return session


@pytest.mark.req("NEW-043")
def test_a_diff_is_per_object_and_per_field_across_everything_in_between(story):
    delta = story.diff(1, 3)

    entity, relation = delta.updated
    assert (entity.kind, entity.key, entity.left_key) == ("entity", "c1", None)
    assert entity.fields == {"tier": ("standard", "gold")}
    assert (relation.kind, relation.key) == ("relation", None)
    assert (relation.left_key, relation.right_key, relation.instance_key) == ("c1", "p1", "")
    assert relation.fields == {"seats": (1, 2)}
    assert [change.key for change in delta.created] == ["c3"]
    assert [change.key for change in delta.deleted] == ["c2"]


@pytest.mark.req("NEW-043")
def test_a_diff_backwards_is_what_going_back_would_mean(story):
    there, back = story.diff(1, 3), story.diff(3, 1)

    assert [change.key for change in back.created] == ["c2"]
    assert [change.key for change in back.deleted] == ["c3"]
    assert back.created[0].fields["name"] == (None, "Bob")
    assert [c.fields for c in back.updated] == [
        {name: (after, before) for name, (before, after) in c.fields.items()} for c in there.updated
    ]


@pytest.mark.req("NEW-043")
def test_a_diff_from_zero_is_everything_and_of_a_commit_with_itself_nothing(story):
    everything = story.diff(0, 3)

    assert {(c.type_name, c.key or c.left_key) for c in everything.created} == {
        ("Customer", "c1"), ("Customer", "c3"), ("Product", "p1"), ("Subscription", "c1"),
    }  # fmt: skip
    assert not everything.updated
    assert not everything.deleted
    assert not story.diff(3, 3)


@pytest.mark.req("NEW-043")
@pytest.mark.parametrize("way", [(3, 5), (5, 3)], ids=["forwards", "backwards"])
def test_what_came_and_went_in_between_is_no_difference(story, way):
    story.ensure(Customer(id="c4", name="Di"))
    story.commit()
    story.delete(Customer(id="c4", name="Di"))
    story.commit()

    assert not story.diff(*way)


@pytest.mark.req("NEW-043")
def test_a_change_that_was_taken_back_is_no_difference(story):
    story.ensure(ada(tier="standard"))
    story.commit()

    assert "c1" not in [change.key for change in story.diff(1, 4).updated]
    assert [change.key for change in story.diff(3, 4).updated] == ["c1"]


@pytest.mark.req("NEW-043")
def test_a_diff_has_values_in_the_types_of_their_fields(session):
    class Meeting(Entity):
        id: Field[int] = Field(primary_key=True)
        at: Field[datetime]
        day: Field[timedelta | None] = None

    noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
    session.ensure(Meeting(id=1, at=noon))
    session.commit()
    session.ensure(Meeting(id=1, at=noon + timedelta(hours=1), day=timedelta(days=1)))
    session.commit()

    [change] = session.diff(1, 2).updated

    assert change.key == "1"
    assert change.fields == {
        "at": (noon, noon + timedelta(hours=1)),
        "day": (None, timedelta(days=1)),
    }


@pytest.mark.req("NEW-043")
def test_a_diff_of_a_type_that_the_session_does_not_know_has_its_json(open_session):
    class Deadline(Entity):
        id: Field[str]
        at: Field[datetime]

    writer = open_session()
    writer.ensure(Deadline(id="d1", at=datetime(2026, 5, 1, tzinfo=UTC)))
    writer.commit()

    [change] = open_session().diff(0, 1).created

    assert (change.type_name, change.key) == ("Deadline", "d1")
    assert change.fields["at"] == (None, "2026-05-01T00:00:00.000000+00:00")


@pytest.mark.parametrize("way", [(0, 2), (-1, 1), (1, "1")], ids=["future", "negative", "text"])
def test_a_diff_with_a_commit_that_does_not_exist_is_an_error(session, way):
    session.ensure(ada())
    session.commit()

    with pytest.raises(ValueError, match=r"no commit|commit numbers"):
        session.diff(*way)


def test_two_sessions_see_each_others_commits_in_one_numbering(open_session):
    one, two = open_session(), open_session()
    one.ensure(ada())
    one.commit()
    two.ensure(ada(tier="gold"))

    assert two.commit() == 2
    assert one.head == 2
    assert one.query().entities(Customer).first().tier == "gold"
