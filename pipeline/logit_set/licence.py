"""May a set's texts be passed on? Only a licence that is known to allow it keeps us quiet."""

import re

OPEN = re.compile(r"\b(CC0|CC[ -]BY(-SA)?|Apache|MIT|BSD|GFDL|public domain|ODC-By|PDDL)\b", re.IGNORECASE)
DOUBTS = re.compile(r"\b(other|unknown|terms|non-?commercial|NC|ND|internal|research|not)\b", re.IGNORECASE)


def redistribution_warning(licence: str) -> str | None:
    """What to think of before the texts are passed on; None where the licence allows it."""
    if OPEN.search(licence) and not DOUBTS.search(licence):
        return None
    return (
        f"whether its texts may be passed on is unclear (licence: {licence}); make sure that they may, "
        "or leave them out with `distill push --without-text`"
    )
