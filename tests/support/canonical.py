"""Hypothesis strategies for canonical rows, and what of a row is text."""

from typing import Any

from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from pipeline.chat.rows import json_schema, row_id

SCHEMA = Draft202012Validator(json_schema())

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"], include_characters="\t\n\r"), max_size=20)
WORD = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
CALLS = st.fixed_dictionaries(
    {
        "type": st.just("function"),
        "function": st.fixed_dictionaries(
            {"name": WORD, "arguments": st.dictionaries(TEXT, VALUES, max_size=3)}
        ),
    },
    optional={"id": WORD},
)
TOOLS = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.just("function"),
            "function": st.fixed_dictionaries(
                {"name": WORD}, optional={"description": TEXT, "parameters": VALUES}
            ),
        }
    ),
    min_size=1,
    max_size=2,
)
OUTPUTS = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user"]), "content": TEXT}, optional={"name": WORD}
)
RESULT = st.fixed_dictionaries(
    {"role": st.just("tool"), "content": TEXT}, optional={"tool_call_id": WORD, "name": WORD}
)
ANSWER = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": TEXT},
    optional={"reasoning_content": WORD, "name": WORD, "train": st.just(False)},
)
CALLING = st.fixed_dictionaries(
    {
        "role": st.just("assistant"),
        "content": st.just(""),
        "tool_calls": st.lists(CALLS, min_size=1, max_size=2),
    },
    optional={"name": WORD, "train": st.just(False)},
)
TURNS = st.lists(OUTPUTS | RESULT | ANSWER | CALLING, min_size=1, max_size=5)
SEGMENTS = st.lists(st.fixed_dictionaries({"text": TEXT, "train": st.booleans()}), max_size=3)


def rows(kind: str, **content: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Rows of one kind with an id, `content` beside their messages."""
    envelope = {"source": st.just("a.jsonl:1"), "kind": st.just(kind), "domain": st.just("a")}
    made = st.fixed_dictionaries(envelope | {"messages": st.just([]) if kind == "text" else TURNS} | content)
    return made.map(lambda row: {"id": row_id(row), **row})


def maybe_tools(kind: str, **content: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Rows of one kind, some of them with tools."""
    return rows(kind, **content) | rows(kind, tools=TOOLS, **content)


REWARD = st.floats(allow_nan=False, allow_infinity=False)
OTHERS = st.lists(TEXT, min_size=1, max_size=3, unique=True)
CHATS = (
    maybe_tools("chat")
    | rows("chat", reward=REWARD)
    | rows("chat", other_references=OTHERS).filter(
        lambda row: (
            row["messages"][-1]["role"] == "assistant"
            and row["messages"][-1]["content"] not in row["other_references"]
        )
    )
)
ROWS = (
    CHATS
    | maybe_tools("preference", chosen=TURNS, rejected=TURNS)
    | maybe_tools("feedback", label=st.booleans())
    | maybe_tools("prompt", answer=TEXT)
    | rows("prompt", answer=TEXT, other_references=OTHERS).filter(
        lambda row: row["answer"] not in row["other_references"]
    )
    | rows("text", segments=SEGMENTS)
)


def leaves(value: Any) -> list[str]:
    """Every string in a JSON value, keys too."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in (key, *leaves(item))]
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, list) else []


def check_row(row: dict[str, Any]) -> None:
    """Prove that a row is one of the published schema, its id that of its content."""
    SCHEMA.validate(row)
    assert row["id"] == row_id(row)
