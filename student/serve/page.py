"""The page for people."""

from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files
from re import DOTALL, findall

from student.serve.http import Reply


@cache
def page() -> Reply:
    """The page, which runs its own script and style and nothing else, and talks to nobody but this server."""
    style = files("pipeline.report").joinpath("style.css").read_text(encoding="utf-8")
    html = files("student.serve").joinpath("page.html").read_text(encoding="utf-8").replace("{{ style }}", style)
    policy = {
        "default-src": "'none'",
        "connect-src": "'self'",
        "img-src": "data:",
        "style-src": _hashes(html, "style"),
        "script-src": _hashes(html, "script"),
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    headers = {
        "content-security-policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "vary": "accept",
    }
    return Reply(html.encode(), "text/html; charset=utf-8", headers=headers)


def _hashes(html: str, tag: str) -> str:
    """What the policy calls the contents of these tags."""
    contents = findall(f"<{tag}>(.*?)</{tag}>", html, DOTALL)
    return " ".join(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in contents)
