"""How fast a page of ``distill export --html`` is in Chromium: ``python -m tests.benchmarks.html FILE.html TEXTS.txt``.

Times are of the page's thread on the processor, so that a busy machine matters little.
"""

import json
import sys
import tempfile
from pathlib import Path

from pipeline import console
from tests.helpers.browser import PROGRAM, Tab, browser_tab

REPEATS = 5


def busy_s(tab: Tab) -> float:
    """Seconds that the page's thread has worked since the page was opened."""
    metrics = tab.do("Performance.getMetrics")["metrics"]
    return next(float(metric["value"]) for metric in metrics if metric["name"] == "TaskDuration")


def opened_s(tab: Tab, page: Path, text: str) -> float:
    """Seconds from the file to the first answer."""
    tab.open(page.resolve().as_uri(), 1000)
    tab.until("run")
    tab.value(f"backend.student.predict([{json.dumps(text)}])")
    return busy_s(tab)


def answered_s(tab: Tab) -> float:
    """Seconds for all texts."""
    before = busy_s(tab)
    tab.value("backend.student.logits(texts).length")
    return busy_s(tab) - before


def main(page: Path, texts: list[str]) -> None:
    """Prints the best of some repetitions."""
    if PROGRAM is None:
        raise SystemExit("this benchmark needs Chromium or Google Chrome on the PATH")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, browser_tab(Path(folder)) as tab:
        tab.do("Performance.enable", timeDomain="threadTicks")
        opened = min(opened_s(tab, page, texts[0]) for _ in range(REPEATS))
        tab.value(f"window.texts = {json.dumps(texts)}")
        answered = min(answered_s(tab) for _ in range(REPEATS))
    measured = {"ms to the first answer": 1e3 * opened, "sentences a second": len(texts) / answered}
    console.print_pairs(str(page), measured)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]).read_text(encoding="utf-8").splitlines())
