"""A template probe holds nothing of what is said, and is the same whatever is said."""

import json
import re
from typing import Any

from canonical import CHATS, leaves
from hypothesis import given

from pipeline.chat.rows import edit_texts
from pipeline.chat.template_probe import KEYWORDS, probe, shown

OURS = KEYWORDS | {"role", "content", "reasoning_content", "tool_calls", "tool_call_id", "id", "arguments"}
OURS |= {"system", "user", "assistant", "tool", ""}


@given(CHATS)
def test_nothing_said_is_left(row: dict[str, Any]) -> None:
    messages, tools = probe(row["messages"], row.get("tools"))
    assert {leaf for leaf in leaves([messages, tools]) if not re.fullmatch(r"[qas]\d{8}", leaf)} <= OURS
    assert [message["role"] for message in messages] == [message["role"] for message in row["messages"]]
    stand_ins = [stand_in for _, stand_in in shown(messages, tools) if stand_in[0] != "a"]
    assert len(set(stand_ins)) == len(stand_ins)  # one each, so that none is shown in another's place


@given(CHATS)
def test_other_words_have_the_same_probe(row: dict[str, Any]) -> None:
    """So that it is rendered once for all conversations of its shape."""
    other = edit_texts(row, lambda place, text: f"{text}." if text.strip() and place != "tools" else text)
    assert json.dumps(probe(other["messages"], other.get("tools"))) == json.dumps(
        probe(row["messages"], row.get("tools"))
    )
