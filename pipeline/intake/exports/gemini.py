"""Gemini's activity from Google Takeout: My Activity → Gemini Apps as JSON, MyActivity.json.

Google publishes no schema. The one read here is the one that public readers of real exports describe up to
September 2026: an array of activities, the newest first, each with `header`, `title` ("Prompted …"), `time`,
`products` and the answer as HTML in `safeHtmlItem`. There is no id of a conversation, so each exchange is a
row.
"""

import re
from collections.abc import Iterator
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.core.text import quoted
from pipeline.intake.exports.answers import user_turn
from pipeline.intake.exports.export import Export, Head, Notes, each_record
from pipeline.intake.exports.markdown import markdown_of
from pipeline.intake.exports.view import objects

NAMES = ("gemini", "bard")
PROMPTED = re.compile(r"(?:Prompted with: |Asked (?:Gemini|Bard): |Prompted |Asked |Said )")
OTHERS = (  # activities that are not prompts
    *(
        "Added",
        "Answered",
        "Branched",
        "Cleared",
        "Created",
        "Deleted",
        "Edited",
        "Exported",
        "Gave",
        "Pinned",
    ),
    *("Renamed", "Searched", "Selected", "Shared", "Updated", "Used", "Viewed", "Visited"),
)
ATTACHED = re.compile(r"\s*Attached (\d+) files?\.?\s*$")


def is_head(head: Head) -> bool:
    """Return True if a record is an activity in Gemini."""
    return any(_is_activity(value) for value in head.objects())


def _is_activity(value: dict[str, Any]) -> bool:
    labels = [value.get("header")]
    products = value.get("products")
    labels += products if isinstance(products, list) else []
    is_named = any(
        isinstance(label, str) and any(name in label.lower() for name in NAMES) for label in labels
    )
    return is_named and isinstance(value.get("title"), str) and "time" in value


def rows_of(value: dict[str, Any], notes: Notes) -> Iterator[dict[str, Any]]:
    """Yield the exchange of an activity."""
    if not _is_activity(value):
        if isinstance(value.get("title"), str) and "header" in value:
            notes["activities_of_other_products"] += 1
            return
        raise BadLine("bad_shape", "an activity of Gemini has header, title and time")
    title = value["title"]
    begun = PROMPTED.match(title)
    answer = _answer(value)
    if begun is None and title.startswith(tuple(f"{verb} " for verb in OTHERS)):
        notes["activities_not_prompts"] += 1
        return
    if not answer:
        notes["prompts_without_answer"] += 1
        return
    if begun is None:
        raise BadLine(
            "unsupported_field",
            f"the title {quoted(title[:30])} begins with none of Prompted, Asked and Said: set the account's "
            "language to English and export again",
        )
    words = title[begun.end() :]
    names = _attached(value)
    attached = ATTACHED.search(words)
    if attached:
        words = words[: attached.start()]
        names = names or ["unnamed"] * int(attached[1])
    yield {"messages": [*user_turn(words, names, notes), {"role": "assistant", "content": answer}]}


def _answer(value: dict[str, Any]) -> str:
    items = [item.get("html") for item in objects(value.get("safeHtmlItem"))]
    return "\n\n".join(filter(None, (markdown_of(html) for html in items if isinstance(html, str))))


def _attached(value: dict[str, Any]) -> list[str]:
    """Return the names of the files that were attached."""
    files = value.get("attachedFiles")
    names = [name for name in files if isinstance(name, str)] if isinstance(files, list) else []
    image = value.get("imageFile")
    return [*names, image] if isinstance(image, str) else names


EXPORT = Export("gemini", is_head, each_record(rows_of))
