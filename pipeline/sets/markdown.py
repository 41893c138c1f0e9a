"""Text of a record fit for the card: whoever wrote it, it is no markup."""

import html
from textwrap import shorten

from pipeline.untrusted import visible


def plain(text: str) -> str:
    """Text for a line: it stays on the line."""
    return html.escape(visible(" ".join(text.split())), quote=False).replace("[", "\\[")


def code(text: str) -> str:
    """Text to stand between backticks."""
    return html.escape(visible(" ".join(text.split())), quote=False).replace("`", "'")


def cell(sentences: tuple[str, ...]) -> str:
    """Sentences for a cell of a table: neither columns nor links of their own, and not too long."""
    text = visible(" ".join(" ‖ ".join(sentences).split()))
    safe = html.escape(shorten(text, 300, placeholder=" …"), quote=False)
    return safe.replace("|", "\\|").replace("](", "]\\(")
