"""A connection that is cut at each turn of a short life of a store, before or after the server's.

A request that never arrived was not done; of an answer that never arrived, the session finds out
what it was. Either way a call that returned is kept, and one that raised can be made again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING

import pytest

from ontologia.errors import ConnectionLostError, StoreOpenError
from tests.faults.checker import problems_at_the_end
from tests.faults.children import points, show_figures
from tests.faults.figures import AGAIN, tally
from tests.faults.proxy import Direction, Proxy
from tests.faults.scenario import Scenario
from tests.servers import own_server

if TYPE_CHECKING:
    from ontologia_conformance.servers import Postgres

_schemas = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with own_server() as server:
        yield server


@pytest.fixture(scope="module")
def proxy(server: Postgres) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


def play(
    proxy: Proxy, server: Postgres, before: Callable[[str], None] = lambda _: None
) -> tuple[Scenario, list[str]]:
    """Play the scenario through the proxy, in a schema of its own; what is wrong in the end."""
    schema = f"cut_{next(_schemas)}"
    scenario = Scenario(f"{proxy.uri}&schema={schema}")
    scenario.before = before
    scenario.relief = proxy.heal
    scenario.play()
    promised = {"committed": scenario.committed, "announced": scenario.announced}
    return scenario, problems_at_the_end(f"{server.uri}?schema={schema}", **promised)


@pytest.mark.thorough
@pytest.mark.sampled
@pytest.mark.req("ONT-200", "NEW-060")
@pytest.mark.parametrize("half", [False, True], ids=["whole", "half"])
@pytest.mark.parametrize("direction", ["requests", "answers"])
def test_a_connection_cut_at_any_turn_loses_nothing_and_doubles_nothing(
    server: Postgres, proxy: Proxy, direction: Direction, half: bool
) -> None:
    """Those of a few calls, and 4 others; each of some 350 with ONTOLOGIA_TEST_SAMPLES=10."""
    began = time.monotonic()
    proxy.cut_at(direction, 0)
    seen: dict[str, int] = {}
    _, lost = play(proxy, server, lambda step: seen.update({step: proxy.seen[direction]}))
    numbers = points(proxy.seen[direction], 4)
    if not half:
        # Where a caller waits for the word that it is done.
        numbers = sorted({*numbers, *range(seen["commit"] + 1, seen["enqueue"] + 1)})

    cuts, refused = 0, 0
    for number in numbers:
        proxy.cut_at(direction, number, half=half)
        scenario, problems = play(proxy, server)
        cuts += proxy.cuts
        refused += len(scenario.refusals)
        lost += problems
        kinds = {type(refusal.error) for refusal in scenario.refusals}
        assert kinds <= {ConnectionLostError, StoreOpenError}

    told = "the server knew" if direction == "answers" else "the server did not know"
    tally(
        AGAIN,
        f"PostgreSQL: a connection cut at each turn, and {told}",
        tries=cuts,
        losses=len(lost),
    )
    show_figures(began=began, turns=len(numbers), cuts=cuts, refused=refused)
    assert lost == []
    assert cuts > 0
