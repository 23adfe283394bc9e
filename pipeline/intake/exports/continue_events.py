"""Continue's development data: `~/.continue/dev_data/**/*.jsonl`, an event a line.

After continuedev/continue `packages/config-yaml/src/schemas/data` (`chatInteraction`, `chatFeedback`; 0.2.0,
2025-03 to 2026-10). The prompt is the text that `formatChatMessages` makes of the messages: for each the role
in angle brackets on a line, the content, and an empty line.
"""

import re
from collections.abc import Iterator
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.intake.exports.export import Export, Notes, any_record, each_record
from pipeline.intake.exports.view import View
from pipeline.intake.wire.draft import Draft

ROLE = re.compile(r"^<(system|user|assistant|tool|thinking)>\n", re.MULTILINE)


def _is_event(value: View) -> bool:
    """Return True for an event with the version of its schema."""
    return {"eventName", "schema"} <= value.keys()


# Types of events that are counted by their name.
OTHERS = (
    *("autocomplete", "editInteraction", "editOutcome", "nextEditOutcome", "nextEditWithHistory"),
    *("quickEdit", "tokensGenerated", "toolUsage"),
)


def rows_of(event: View, notes: Notes) -> Iterator[dict[str, Any]]:
    """Yield the row of a chat's answer; other events are counted. Raises `BadLine` without its text."""
    name = event.get("eventName")
    if name not in ("chatInteraction", "chatFeedback"):
        notes[f"events_{name}" if name in OTHERS else "events_of_other_types"] += 1
        return
    if not event.has("prompt", str) or not event.has("completion", str):
        raise BadLine("bad_shape", f"an event {name} has a text prompt and a text completion, as of 0.2.0")
    answer = {"role": "assistant", "content": event["completion"]}
    row: dict[str, Any] = {"messages": [*_turns(event["prompt"]), answer]}
    if name == "chatFeedback":
        if not event.has("feedback", bool):
            notes["thumbs_missing"] += 1
            return
        row["kto_tag"] = event["feedback"]
    yield row


def _turns(prompt: str) -> list[dict[str, Any]]:
    """Return the turns of a prompt. One without roles is the user's.

    Raises `BadLine` if tools were used, because the text describes their calls in words.
    """
    nothing, *pieces = ROLE.split(prompt)
    if nothing.strip() or not pieces:
        return [{"role": "user", "content": prompt}]
    draft = Draft()
    for role, text in zip(pieces[::2], pieces[1::2], strict=True):
        words = text.rstrip("\n")
        if role == "tool":
            raise BadLine("unsupported_field", "calls of tools are not in this log: give the sessions' files")
        if role == "thinking":
            draft.answer(reasoning=words)
        elif role == "assistant":
            draft.answer(words)
        else:
            draft.say(role, words)
    return draft.turns


EXPORT = Export("continue_events", any_record(_is_event), each_record(rows_of), has_rows=True)
