"""An HTML page as a browser sees it, for tests; as lines of text, to be held against a file."""

import re
from html.parser import HTMLParser

VOID = {"meta", "br", "link", "img", "hr", "input"}


class Page(HTMLParser):
    """The page as a browser sees it: tags in order, ids, text (no scripts); unbalanced tags are an error."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(str(html))  # of `Markup` too, which would escape what is added to it
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["script"]:
            self.text += data


def assert_accessible(page: Page) -> None:
    """Ids are unique, references have one, drawings are images, tables have a caption and scoped headings."""
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    names = [name for _, each in page.tags for name in (each.get("aria-labelledby") or "").split()]
    links = [each.get("href") or "" for _, each in page.tags]
    assert {*names, *(link[1:] for link in links if link.startswith("#"))} <= set(ids)
    tags = [tag for tag, _ in page.tags]
    assert tags.count("caption") == tags.count("table")
    assert all(attributes.get("role") == "img" for tag, attributes in page.tags if tag == "svg")
    assert all(attributes.get("scope") for tag, attributes in page.tags if tag == "th")


SILENT = {"script", "style", "option", "text"}  # of drawings what they are called and say, not their ticks
INLINE = {"a", "abbr", "b", "br", "code", "em", "i", "kbd", "mark", "small", "span", "strong", "sub", "sup"}
INLINE |= {"td", "th", "use"} | SILENT


class _Lines(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.line = ""
        self.silent = 0  # elements around this place whose text nobody reads
        self.feed(html)
        self.end_line()

    def end_line(self) -> None:
        if line := re.sub(r"\s+", " ", self.line).strip():
            self.lines.append(line.removeprefix("| "))
        self.line = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.silent += tag in SILENT
        if tag not in INLINE:
            self.end_line()
        if tag in ("h2", "h3"):
            self.line = f"{'#' * int(tag[1])} "
        if tag in ("td", "th"):
            self.line += " | "
        if tag in ("small", "br", "span"):
            self.line += " "

    def handle_endtag(self, tag: str) -> None:
        if tag in ("strong", "b"):
            self.line += " "
        self.silent -= tag in SILENT
        if tag not in INLINE:
            self.end_line()

    def handle_data(self, data: str) -> None:
        if not self.silent:
            self.line += data


def lines_of(html: str) -> str:
    """Return the text, a line per paragraph, heading, drawing label or table row (cells split by `|`)."""
    return "\n".join(_Lines(html).lines) + "\n"


def section_of(html: str, name: str) -> str:
    """The HTML of one section of a page."""
    start = html.index(f'<section aria-labelledby="{name}"')
    return html[start : html.index("</section>", start) + len("</section>")]
