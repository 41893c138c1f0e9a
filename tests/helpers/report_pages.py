"""What a browser would make of a report, for the tests."""

import re
from html.parser import HTMLParser


class Parsed(HTMLParser):
    """The tags of a page, and its tables by their titles, as rows of texts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.drawn: list[str] = []  # the texts of the drawings
        self._title = ""
        self._where: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "meta":
            return
        self._where.append(tag)
        if tag == "h3":
            self._title = ""
        if tag == "table":
            self.tables[self._title] = []
        if tag == "tr":
            self.tables[self._title].append([])
        if tag in ("td", "th"):
            self.tables[self._title][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._where.pop() == tag, f"</{tag}> ends nothing"

    def handle_data(self, data: str) -> None:
        if self._where[-1:] == ["h3"]:
            self._title += data
        if self._where[-1:] in (["td"], ["th"]):
            self.tables[self._title][-1][-1] += data
        if self._where[-1:] in (["text"], ["tspan"]):
            self.drawn.append(data)


def needs_nothing_else(html: str) -> bool:
    """Whether a page runs no script and refers to nothing outside itself."""
    tags = Parsed(html).tags
    references = [value or "" for _, attrs in tags for name, value in attrs.items() if name.endswith(("href", "src"))]
    handlers = [name for _, attrs in tags for name in attrs if name.startswith("on")]
    foreign = {"script", "link", "iframe", "img", "object", "embed"} & {tag for tag, _ in tags}
    urls = re.findall(r"url\((?!#)|@import", html)
    return not (foreign or handlers or urls or [ref for ref in references if not ref.startswith("#")])
