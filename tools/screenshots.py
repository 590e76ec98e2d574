"""Pictures of the console for the README and the docs: python -m tools.screenshots [FOLDER]

Chromium looks at the shop of `ontologia demo`, as the tests in tests/browser do. Each page is taken in
light and in dark, 1280 px wide.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from types import MappingProxyType

from playwright.sync_api import Page, sync_playwright
from tests.browser.world import NAMESPACE, launch, serving, tell_shop

from ontologia import OntologiaConfig, Session
from ontologia.cli import demo_shop
from ontologia.cli.demo_shop import UNLUCKY, Customer, Order, OrderPlaced, Placed
from ontologia.runtime.views.reading import ReadingSession
from ontologia.testing import ManualClock
from ontologia.web.console.sampler import Sampler

FOLDER = Path("docs/images")
_MINUTES = 50  # that the charts show
_LOOKS = 4  # of the sampler in a minute
MOST = 200_000  # bytes of a picture
_HEIGHT = 800


def _attempt(page: Page) -> None:
    _event(page)
    attempts = page.get_by_role("region", name="Failed attempts").get_by_role("row")
    attempts.nth(1).get_by_role("link", name="1", exact=True).click()


def _event(page: Page) -> None:
    page.goto("/dead-letters")
    letters = page.get_by_role("region", name="Dead letters")
    letters.get_by_role("row").nth(1).get_by_role("link").first.click()


def _graph(page: Page) -> None:
    _event(page)
    page.get_by_role("link", name="Graph").click()


def _object(page: Page) -> None:
    page.goto("/search?q=o-3")
    page.get_by_role("heading", name="o-3").wait_for()


PICTURES: Mapping[str, Callable[[Page], object]] = MappingProxyType(
    {
        "overview": lambda page: page.goto("/"),
        "dead-letters": lambda page: page.goto("/dead-letters"),
        "attempt": _attempt,
        "graph": _graph,
        "object": _object,
    }
)


def _work(uri: str, config: OntologiaConfig, clock: ManualClock, sampler: Sampler) -> None:
    """An hour of the shop, on its own clock: orders come in waves, and handlers follow."""
    chance = Random(4)  # noqa: S311 - orders of a picture
    handlers = [demo_shop.charge, demo_shop.apologise, demo_shop.count_stock]  # ship is paused
    with Session(uri, NAMESPACE, entity_types=[Customer, Order], config=config) as session:
        number = 100
        for minute in range(_MINUTES):
            for _ in range(_LOOKS):
                for _ in range(chance.randint(0, 2 + (minute // 12) % 3)):
                    number += 1
                    session.ensure(Order(id=f"o-{number}", item="a lamp", cents=4_900))
                    session.ensure(Placed(left_key="dora", right_key=f"o-{number}"))
                    unlucky = chance.random() < 0.06
                    session.commit(
                        event=OrderPlaced(order_id=UNLUCKY if unlucky else f"o-{number}")
                    )
                sampler.sample()
                clock.advance(seconds=chance.uniform(0.05, 0.9))
                session.run(handlers, max_iterations=1)
                clock.advance(seconds=60 / _LOOKS)
                sampler.sample()


def take(folder: Path) -> list[Path]:
    """Take all pictures; the files that were written."""
    folder.mkdir(parents=True, exist_ok=True)
    taken: list[Path] = []
    with tempfile.TemporaryDirectory() as made, sync_playwright() as playwright:
        path, library = Path(made) / "shop.db", Path(made) / "lib"
        library.symlink_to(Path("src").resolve())  # so that no picture shows where this clone is
        tell_shop(path, library)
        browser = launch(playwright)
        uri, clock = f"sqlite:///{path}", ManualClock(datetime.now(UTC))
        config = OntologiaConfig(clock=clock)
        with (
            ReadingSession(uri, NAMESPACE, config=config) as session,
            serving(session, browser, models="ontologia.cli.demo_shop") as desk,
        ):
            _work(uri, config, clock, desk.console.samplers.of(session))
            for scheme in ("light", "dark"):
                size = {"width": 1280, "height": _HEIGHT}
                page = desk.browse(color_scheme=scheme, viewport=size).page
                for name, show in PICTURES.items():
                    show(page)
                    page.wait_for_load_state("load")
                    taken.append(folder / f"console-{name}-{scheme}.png")
                    page.screenshot(path=taken[-1])
            complaints = desk.close_pages()
        browser.close()
    large = [each.name for each in taken if each.stat().st_size > MOST]
    if complaints or large:
        raise SystemExit(f"complaints: {complaints}; larger than {MOST:,} bytes: {large}")
    return taken


if __name__ == "__main__":
    for each in take(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER):
        sys.stdout.write(f"{each} {each.stat().st_size:,} bytes\n")
