"""What a message must name: flags, files, rows, keys, values; how it is worded is no matter of most tests."""

import re


def naming(*things: object) -> str:
    """A pattern of messages that name all of these things, in whatever order."""
    return "(?s)" + "".join(f"(?=.*{re.escape(str(thing))})" for thing in things)
