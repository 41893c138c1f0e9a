"""The page for people."""

from functools import cache
from importlib.resources import files

from distill.apps.serve.http import Reply
from student.page.compose import compose, hashes

FOOTER = 'Texts go to this server and nowhere else. For programs: <a href="openapi.json">the API</a>.'


@cache
def page() -> Reply:
    """The page, which runs its own script and style and nothing else, and talks to nobody but this server."""
    backend = files("distill.apps.serve").joinpath("server.js").read_text(encoding="utf-8")
    html = compose("distill serve", backend, FOOTER)
    policy = {
        "default-src": "'none'",
        "connect-src": "'self'",
        "img-src": "data:",
        "style-src": hashes(html, "style"),
        "script-src": hashes(html, "script"),
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
