"""Checks that pages and code read well: ``python -m tests.prose``. With ``--show`` prints all numbers and findings.

The limits stand in ``[tool.distill.prose]`` of ``pyproject.toml``. A page without an entry has the default limits.
"""

import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

from tests.prose.measure import Prose
from tests.prose.read import folder, markdown

ROOT = Path(__file__).parents[2]


def pages() -> list[str]:
    """The Markdown that people read, as paths from the root."""
    return sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def numbers(prose: Prose) -> dict[str, float]:
    """What a limit may be set for, by its name."""
    return {
        "mean_sentence": round(prose.mean_sentence, 1),
        "short_sentences": round(prose.short_sentences, 1),
        "semicolons": round(prose.semicolons, 1),
        "findings": len(prose.findings),
    }


def problems(name: str, prose: Prose, limits: Mapping[str, float]) -> list[str]:
    """One line for each number above its limit; findings with their words."""
    measured = numbers(prose)
    found = [
        f"{name}: {key} is {measured[key]}, the limit in pyproject.toml is {limit}."
        for key, limit in limits.items()
        if measured[key] > limit
    ]
    if measured["findings"] > limits["findings"]:
        found += [f"{name}: {finding.name}: {finding.excerpt}" for finding in prose.findings]
    return found


def main(show: bool) -> int:
    """Prints what is above its limit. The exit code is 1 if anything is."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["distill"]["prose"]
    texts = {page: markdown((ROOT / page).read_text(encoding="utf-8")) for page in pages()}
    texts |= {name: folder(ROOT / name) for name in settings["code"]}
    own = settings.get("pages", {})
    limits = {name: settings["limits"] | own.get(name, {}) for name in texts}
    found = [line for name, text in texts.items() for line in problems(name, text, limits[name])]
    found += [f"pyproject.toml: limits for {name}, which does not exist. Remove them." for name in own.keys() - texts]
    if show:
        found = [f"{name}: {numbers(text)}, {text.words} words" for name, text in texts.items()]
        found += [f"{name}: {f.name}: {f.excerpt}" for name, text in texts.items() for f in text.findings]
    sys.stdout.write("".join(f"{line}\n" for line in found))
    return 1 if found and not show else 0


if __name__ == "__main__":
    sys.exit(main("--show" in sys.argv))
