"""The page on which people try a student, put together. It runs its own scripts and styles and nothing else."""

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from re import DOTALL, findall


def compose(kind: str, backend: str, footer: str, data: str = "") -> str:
    """The page as HTML.

    Args:
        kind: its title.
        backend: JavaScript that defines ``backend``, which the page calls. See ``distill/apps/serve/server.js``.
        footer: its last line, HTML.
        data: tags that stand before its script.
    """
    parts = {"kind": kind, "backend": backend, "footer": footer, "data": data}
    parts["style"] = files("student.page").joinpath("style.css").read_text(encoding="utf-8")
    html = files("student.page").joinpath("page.html").read_text(encoding="utf-8")
    for name, part in parts.items():
        # Plain replacement is enough for five parts, and Jinja would take the braces of CSS and JavaScript.
        html = html.replace("{{ " + name + " }}", part)
    return html


def hashes(html: str, tag: str) -> str:
    """Returns the names of these tags' contents in a content security policy. Tags with only data need no name."""
    contents = findall(f'<{tag}(?: id="[a-z]+")?>(.*?)</{tag}>', html, DOTALL)
    return " ".join(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in contents)
