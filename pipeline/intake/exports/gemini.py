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
from pipeline.intake.exports.export import Export, Notes, any_record, each_record
from pipeline.intake.exports.markdown import markdown_of
from pipeline.intake.exports.view import View, texts

PROMPTED = re.compile(r"(?:Prompted with: |Asked (?:Gemini|Bard): |Prompted |Asked |Said )")
ATTACHED = re.compile(r"\s*Attached (\d+) files?\.?\s*$")


def _is_activity(value: View) -> bool:
    labels = texts(value.get("header"), *value.array("products")).lower()
    return ("gemini" in labels or "bard" in labels) and value.has("title", str) and "time" in value


# Verbs of activities that are not prompts.
OTHERS = (
    *("Added", "Answered", "Branched", "Cleared", "Created", "Deleted", "Edited", "Exported", "Gave"),
    *("Pinned", "Renamed", "Searched", "Selected", "Shared", "Updated", "Used", "Viewed", "Visited"),
)


def rows_of(value: View, notes: Notes) -> Iterator[dict[str, Any]]:
    """Yield the exchange of an activity."""
    if not _is_activity(value):
        if value.has("title", str) and "header" in value:
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


def _answer(value: View) -> str:
    return texts(*(markdown_of(item.text("html")) for item in value.objects("safeHtmlItem")))


def _attached(value: View) -> list[str]:
    """Return the names of the files that were attached."""
    names = [*value.array("attachedFiles"), value.get("imageFile")]
    return [name for name in names if isinstance(name, str)]


EXPORT = Export("gemini", any_record(_is_activity), each_record(rows_of))
