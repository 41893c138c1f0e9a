"""Text of somebody else's, made fit to be shown."""

import re

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # all but tab and line feed


def visible(text: str) -> str:
    """The text with its control characters spelt out, so that none of them reaches a terminal."""
    return CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)
