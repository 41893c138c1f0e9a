"""May a set's texts be passed on? Only a licence that is known to allow it counts."""

import re

OPEN = re.compile(r"\b(CC0|CC[ -]BY(-SA)?|Apache|MIT|BSD|GFDL|public domain|ODC-By|PDDL)\b", re.IGNORECASE)
DOUBTS = re.compile(
    r"\b(other|unknown|terms|non[- ]?commercial|NC|ND|internal|research|not|only|proprietary)\b", re.IGNORECASE
)


def is_open(licence: str) -> bool:
    """Whether a licence, as manifests write it, lets everybody pass the texts on."""
    return bool(OPEN.search(licence)) and not DOUBTS.search(licence)
