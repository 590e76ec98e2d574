"""The past: the state after any commit, and every version that ever was."""

from __future__ import annotations

import pytest

from ontologia import Entity, Field, left
from ontologia.query import count, sum
from ontologia_conformance.shop import Customer, Product, Subscription


class Part(Entity):
    number: Field[int] = Field(primary_key=True)
    name: Field[str] = ""


def tiers(query):
    return [(c.id, c.tier) for c in query.collect()]


@pytest.fixture
def past(session):
    """ada: bronze, silver, deleted, gold; bob: joins at 2 and stays; cy: joins at 5."""
    for step in (
        [Customer(id="ada", name="Ada", tier="bronze")],
        [Customer(id="ada", name="Ada", tier="silver"), Customer(id="bob", name="Bob")],
        None,
        [Customer(id="ada", name="Ada", tier="gold")],
        [Customer(id="cy", name="Cy", tier="silver")],
    ):
        if step is None:
            session.delete(Customer(id="ada", name="Ada"))
        else:
            session.ensure(step)
        session.commit()
    return session


STATES = [
    (0, []),
    (1, [("ada", "bronze")]),
    (2, [("ada", "silver"), ("bob", "standard")]),
    (3, [("bob", "standard")]),
    (4, [("ada", "gold"), ("bob", "standard")]),
    (5, [("ada", "gold"), ("bob", "standard"), ("cy", "silver")]),
]
VERSIONS = [
    ("ada", "bronze", 1, False),
    ("ada", "silver", 2, False),
    ("bob", "standard", 2, False),
    ("ada", "silver", 3, True),
    ("ada", "gold", 4, False),
    ("cy", "silver", 5, False),
]


def versions(query):
    return [(c.id, c.tier, c.meta().commit_id, c.meta().deleted) for c in query.collect()]


# -- as_of ----------------------------------------------------------------------------------------


@pytest.mark.req("SQL-028", "SQL-029", "ONT-090")
@pytest.mark.parametrize(("commit_id", "state"), STATES)
def test_the_state_after_a_commit_has_the_newest_version_of_each_key_until_then(
    past, commit_id, state
):
    then = past.query().entities(Customer).as_of(commit_id)

    assert tiers(then) == state
    assert then.count() == len(state)
    assert tiers(then.order_by(Customer.id.desc())) == state[::-1]


@pytest.mark.req("SQL-028", "SQL-115")
@pytest.mark.parametrize(("commit_id", "state"), STATES)
def test_a_point_read_of_the_past_agrees_with_the_whole_of_it(past, commit_id, state):
    then = past.query().entities(Customer).as_of(commit_id)

    for key in ("ada", "bob", "cy", "nobody"):
        assert tiers(then.where(Customer.id == key)) == [pair for pair in state if pair[0] == key]
    assert tiers(then.where(Customer.id.in_(["cy", "ada", "ada"]))) == [
        pair for pair in state if pair[0] != "bob"
    ]


@pytest.mark.req("SQL-029")
def test_commit_zero_is_the_empty_state_and_not_the_current_one(past):
    before = past.query().entities(Customer).as_of(0)

    assert (before.collect(), before.first(), before.count()) == ([], None, 0)
    assert before.where(Customer.id == "ada").collect() == []
    assert past.query().entities(Customer).count() == 3


@pytest.mark.req("SQL-028")
def test_a_commit_that_is_not_there_yet_is_the_current_state(past):
    now = past.query().entities(Customer)

    assert tiers(now.as_of(99)) == tiers(now)
    assert tiers(now.as_of(past.head)) == tiers(now)


@pytest.mark.req("SQL-028", "SQL-033")
def test_conditions_are_asked_of_the_version_of_that_time(past):
    silver = past.query().entities(Customer).where(Customer.tier == "silver")

    found = [[c.id for c in silver.as_of(n).collect()] for n in range(6)]

    assert found == [[], [], ["ada"], [], [], ["cy"]]
    assert silver.as_of(2).where(Customer.id == "ada").first().meta().commit_id == 2
    assert silver.as_of(1).where(Customer.id == "ada").first() is None
    mixed = (
        past.query()
        .entities(Customer)
        .where((Customer.id == "ada") | (Customer.tier == "standard"))
    )
    assert tiers(mixed.as_of(3)) == [("bob", "standard")]


@pytest.mark.req("SQL-028")
def test_an_object_of_the_past_says_which_commit_wrote_it(past):
    ada, bob = past.query().entities(Customer).as_of(4).collect()

    assert (ada.meta().commit_id, bob.meta().commit_id) == (4, 2)
    assert (ada.meta().key, ada.meta().deleted) == ("ada", False)


@pytest.mark.req("SQL-028")
def test_the_past_does_not_change_when_the_present_does(past):
    then = past.query().entities(Customer).as_of(2)
    before = then.collect()

    past.ensure(Customer(id="ada", name="Somebody else", tier="none"))
    past.delete(Customer(id="bob", name="Bob"))
    past.commit()

    assert then.collect() == before


def test_order_and_page_of_the_past(past):
    then = past.query().entities(Customer).as_of(5)

    assert tiers(then.order_by(Customer.tier, Customer.id.desc()).limit(2)) == [
        ("ada", "gold"), ("cy", "silver"),
    ]  # fmt: skip
    assert tiers(then.offset(2)) == [("cy", "silver")]
    assert then.order_by(Customer.name.desc()).first().id == "cy"


def test_keys_that_are_numbers_are_found_in_the_past(session):
    session.ensure([Part(number=2, name="b"), Part(number=10, name="j")])
    session.commit()
    session.ensure(Part(number=10, name="k"))
    session.commit()
    then = session.query().entities(Part).as_of(1)

    assert [part.name for part in then.where(Part.number == 10).collect()] == ["j"]
    assert [part.name for part in then.where(Part.number.in_([10, 3])).collect()] == ["j"]
    assert [part.number for part in then.order_by(Part.number).collect()] == [2, 10]
    assert then.where(Part.number > 2).count() == 1


# -- with_history and history_since ---------------------------------------------------------------


@pytest.mark.req("SQL-030", "SQL-001")
def test_history_is_every_version_in_the_order_of_commits_with_deletions(past):
    assert versions(past.query().entities(Customer).with_history()) == VERSIONS


@pytest.mark.req("SQL-030")
def test_a_deletion_shows_the_fields_before_it(past):
    query = past.query().entities(Customer).with_history()

    [gone] = [version for version in query.collect() if version.meta().deleted]

    assert gone == Customer(id="ada", name="Ada", tier="silver")
    assert (gone.meta().commit_id, gone.meta().key) == (3, "ada")


@pytest.mark.req("SQL-031")
@pytest.mark.parametrize("since", range(7))
def test_history_since_has_the_versions_after_that_commit(past, since):
    found = versions(past.query().entities(Customer).history_since(since))

    assert found == [version for version in VERSIONS if version[2] > since]


@pytest.mark.req("SQL-030", "SQL-033")
def test_conditions_on_history_are_asked_of_each_version(past):
    query = past.query().entities(Customer).with_history()

    silver = query.where(Customer.tier == "silver")
    ada = query.where(Customer.id == "ada")

    assert versions(silver) == [v for v in VERSIONS if v[1] == "silver"]
    assert [v[2:] for v in versions(ada)] == [(1, False), (2, False), (3, True), (4, False)]
    assert versions(ada.where(~(Customer.tier == "silver"))) == [VERSIONS[0], VERSIONS[4]]
    since = past.query().entities(Customer).history_since(2)
    assert versions(since.where(Customer.id == "ada")) == [
        VERSIONS[3], VERSIONS[4],
    ]  # fmt: skip


@pytest.mark.req("SQL-030", "SQL-031")
def test_history_may_end_at_a_commit(past):
    query = past.query().entities(Customer)

    assert versions(query.with_history().as_of(3)) == VERSIONS[:4]
    assert versions(query.history_since(1).as_of(3)) == VERSIONS[1:4]
    assert versions(query.with_history().as_of(0)) == []


def test_history_can_be_ordered_paged_and_counted(past):
    query = past.query().entities(Customer).with_history()

    by_tier = query.order_by(Customer.tier.desc())
    assert [v[1:3] for v in versions(by_tier)] == [
        ("standard", 2), ("silver", 2), ("silver", 3), ("silver", 5), ("gold", 4), ("bronze", 1),
    ]  # fmt: skip
    assert versions(query.limit(2).offset(1)) == VERSIONS[1:3]
    assert query.first().tier == "bronze"
    assert query.where(Customer.tier == "silver").count() == 3
    assert [row["n"] for row in query.group_by(Customer.id).agg(n=count())] == [4, 1, 1]


def test_a_key_deleted_twice_shows_each_deletion_with_what_it_took_away(session):
    for number in (1, 2):
        session.ensure(Customer(id="ada", name="Ada", tier=f"t{number}"))
        session.commit()
        session.delete(Customer(id="ada", name="Ada"))
        session.commit()

    found = versions(session.query().entities(Customer).with_history())

    assert found == [
        ("ada", "t1", 1, False), ("ada", "t1", 2, True),
        ("ada", "t2", 3, False), ("ada", "t2", 4, True),
    ]  # fmt: skip


# -- relations ------------------------------------------------------------------------------------


@pytest.fixture
def orders(session):
    """ada-pen: 1, 5, deleted; ada-ink: from 2 on. ada is gold until 3."""
    pen = {"left_key": "ada", "right_key": "pen"}
    session.ensure([Customer(id="ada", name="Ada", tier="gold"), Product(sku="pen", price=1)])
    session.ensure(Subscription(**pen, seats=1))
    session.commit()
    session.ensure(Subscription(**pen, seats=5))
    session.ensure(Subscription(left_key="ada", right_key="ink", seats=7))
    session.commit()
    session.ensure(Customer(id="ada", name="Ada", tier="basic"))
    session.delete(Subscription(**pen, seats=0))
    session.commit()
    return session


@pytest.mark.req("SQL-038")
def test_relations_have_a_state_after_every_commit(orders):
    query = orders.query().relations(Subscription)

    found = [[(r.right_key, r.seats) for r in query.as_of(n).collect()] for n in range(4)]

    assert found == [[], [("pen", 1)], [("ink", 7), ("pen", 5)], [("ink", 7)]]
    assert [query.as_of(n).sum(Subscription.seats) for n in range(4)] == [None, 1.0, 12.0, 7.0]
    assert query.where(Subscription.right_key == "pen").as_of(2).first().seats == 5
    assert query.where(Subscription.seats > 5).as_of(2).count() == 1


@pytest.mark.req("SQL-038", "SQL-030", "SQL-031")
def test_relations_have_a_history_with_deletions(orders):
    def seats(query):
        return [
            (r.right_key, r.seats, r.meta().commit_id, r.meta().deleted) for r in query.collect()
        ]

    query = orders.query().relations(Subscription)
    everything = [
        ("pen", 1, 1, False), ("ink", 7, 2, False), ("pen", 5, 2, False), ("pen", 5, 3, True),
    ]  # fmt: skip

    assert seats(query.with_history()) == everything
    assert seats(query.history_since(1)) == everything[1:]
    assert seats(query.history_since(3)) == []
    assert seats(query.with_history().where(Subscription.seats == 5)) == everything[2:]
    assert seats(query.with_history().as_of(2)) == everything[:3]


@pytest.mark.req("SQL-038", "SQL-037")
def test_conditions_on_ends_and_groups_see_the_state_of_that_time(orders):
    gold = orders.query().relations(Subscription).where(left(Subscription).tier == "gold")

    assert [gold.as_of(n).count() for n in range(4)] == [0, 1, 2, 0]
    by_tier = orders.query().relations(Subscription).as_of(2).group_by(left(Subscription).tier)
    assert by_tier.agg(seats=sum(Subscription.seats)) == [{"left.tier": "gold", "seats": 12.0}]
    assert [r.left.tier for r in gold.as_of(2).collect()] == ["gold", "gold"]
