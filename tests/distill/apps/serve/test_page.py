import re
from base64 import b64encode
from hashlib import sha256

import pytest

from distill.apps.serve.page import page

HTML = page().body.decode()
POLICY = dict(part.split(" ", 1) for part in page().headers["content-security-policy"].split("; "))


def test_the_policy_lets_nothing_in_but_the_pages_own_script_and_style_and_its_own_server() -> None:
    assert POLICY["default-src"] == "'none'"
    assert POLICY["connect-src"] == "'self'"
    assert not re.search(r"unsafe|http|\*", page().headers["content-security-policy"])


@pytest.mark.parametrize(("tag", "number"), [("style", 2), ("script", 1)])
def test_the_policy_names_what_is_in_the_page(tag: str, number: int) -> None:
    contents = [part.split(f"</{tag}>")[0] for part in HTML.split(f"<{tag}>")[1:]]
    assert len(contents) == number
    assert POLICY[f"{tag}-src"].split() == [
        f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'" for content in contents
    ]


def test_texts_never_become_markup() -> None:
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|\bon\w+=\"", HTML)
    assert "{{" not in HTML


def test_it_names_nothing_elsewhere() -> None:
    assert not re.search(r"(src|href)=\"(?!data:,|openapi\.json)|url\(|@import|https?:", HTML)
