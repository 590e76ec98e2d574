"""The first five minutes: the script a new user writes."""

from __future__ import annotations

import pytest

from ontologia import Session, left
from tests.shop import Customer, Product, Subscription


@pytest.mark.req("ONT-002", "ONT-174", "SQL-033")
def test_the_script_on_the_front_page_does_what_its_comments_say(uri):
    with Session(uri, entity_types=[Customer, Product], relation_types=[Subscription]) as session:
        session.ensure([Customer(id="c1", name="Ada"), Product(sku="p1", price=9.5)])
        session.ensure(Subscription(left_key="c1", right_key="p1", seats=3))
        first = session.commit()
        session.ensure(Customer(id="c1", name="Ada", tier="gold"))
        second = session.commit()
        gold = session.query().entities(Customer).where(Customer.tier == "gold")
        then = session.query().relations(Subscription).where(left(Subscription).tier == "gold")

        assert (first, second) == (1, 2)
        assert [customer.name for customer in gold.collect()] == ["Ada"]
        assert then.as_of(first).collect() == []
        [change] = session.diff(1, 2).updated
        assert change.fields == {"tier": ("standard", "gold")}
