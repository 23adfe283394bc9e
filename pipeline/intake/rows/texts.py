"""Rows of plain text: which of them are texts, and their content."""

from pipeline.chat.rows import BadRow
from pipeline.intake.rows.chats import TOOLS, Content, chat_of
from pipeline.intake.rows.marks import refuse_marks
from pipeline.intake.rows.markup import is_rendered
from pipeline.intake.rows.turns import turn
from pipeline.intake.rows.values import UNREAD, Value, is_blank, items, one_text
from pipeline.intake.wire.shapes import without_nulls

PUT_TOGETHER = "put the turns of a conversation into one row of messages"
# A text with one of these, or with a user and a time, is one message of a log.
SPEAKERS = (
    *("bot_id", "from", "from_id", "from_me", "is_user", "nick", "nickname", "role", "sender", "sender_id"),
    "speaker",
)
USERS = ("user", "user_id", "username")
TIMES = ("created_at", "date", "sent_at", "thread_ts", "time", "timestamp", "ts")
LABELS = ("label", "labels", "label_text", "class", "sentiment", "intent", "emotion")
READ_OF_TEXTS = frozenset(("text", "segments", "domain"))


def text_of(value: Value, field: str) -> Content:
    """Return the content of a text. If it is a rendered chat, the rule `markup` parses the turns, and the row
    may have a system text and tools next to it.
    """
    words = one_text(value[field], field)
    if is_rendered(words):
        return chat_of(value, [turn("assistant", words, field)])
    for key in filter(value.get, TOOLS):
        raise BadRow("unsupported_field", f"{key} {UNREAD}")
    return "text", {"messages": [], "segments": [{"text": words, "train": True}]}


def input_output(value: Value, field: str) -> Content:
    """Return the content of a text in segments, each of which is trained or not."""
    segments = []
    for number, item in enumerate(items(value[field], field), start=1):
        stated = without_nulls(item) if isinstance(item, dict) else {}
        train = stated.get("label", stated.get("train"))
        if not isinstance(train, bool):
            raise BadRow("bad_shape", f"segments {number} is not an object with text and a boolean label")
        refuse_marks(item, f"segments {number}", but=("train",))
        segments.append({"text": one_text(item.get("text"), f"segments {number}"), "train": train})
    return "text", {"messages": [], "segments": segments}


def left_out_of_text(value: Value) -> list[str]:
    """Return the keys next to a text that contain something and are not learned. A `domain` is for counts
    alone; a `category`, which is read as one, may be what the text is answered with.
    """
    return [key for key, item in value.items() if key not in READ_OF_TEXTS and not is_blank(item)]


def check_is_no_message(keys: set[str]) -> None:
    """Raise `BadRow` if a text is one message of a chat's log, which must not be trained without the others.

    If such rows are meant as texts, their file is named in `curate.formats`.
    """
    stated = sorted(keys.intersection(SPEAKERS))
    if not stated and not (keys.intersection(USERS) and keys.intersection(TIMES)):
        return
    program = "Slack's export" if keys.issuperset(("ts", "text")) else "a chat's log"
    names = ", ".join(stated or sorted(keys.intersection((*USERS, *TIMES))))
    raise BadRow(
        "unknown_format",
        f"looks like a message of {program} (text with {names}): {PUT_TOGETHER}, or name the file in "
        "curate.formats as text",
    )


def check_is_not_labelled(value: Value) -> None:
    """Raise `BadRow` if a text has a label next to it, which is not learned with the text alone. That of a
    rendered chat is a thumb.

    If such rows are meant as texts, their file is named in `curate.formats`.
    """
    label = next((key for key in LABELS if not is_blank(value.get(key))), None)
    text = value["text"]
    if label is not None and not (isinstance(text, str) and is_rendered(text)):
        raise BadRow(
            "unknown_format",
            f"{label} next to a text would not be learned: map {{user: text, assistant: {label}}} in "
            "curate.fields (`quench data check` proposes it), or name the file in curate.formats as text",
        )
