"""axe-core, which finds what is not accessible. Of tests alone; its licence is beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

HERE = Path(__file__).parent
SCRIPT = HERE / "axe-4.14.1.min.js"
_ASK = """async () => {
  const found = await axe.run(document, { resultTypes: ["violations"] });
  return found.violations.filter((each) => ["serious", "critical"].includes(each.impact));
}"""


def violations(page: Page) -> list[str]:
    """What is serious or critical on a page: the rule, and the elements that break it."""
    page.evaluate(SCRIPT.read_text())
    found: list[dict[str, Any]] = page.evaluate(_ASK)
    return [
        f"{each['id']}: {each['help']}: {node['html'][:200]} ({node['failureSummary']})"
        for each in found
        for node in each["nodes"][:3]
    ]
