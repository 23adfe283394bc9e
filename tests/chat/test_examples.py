"""pipeline.chat.examples: chats that can stand before a question, and where they are put."""

from pathlib import Path
from typing import Any

from pipeline.chat.examples import example_rows, is_example, with_examples
from pipeline.chat.tokens import encodable, load_tokenizer
from pipeline.core.jsonl import write_rows

SYSTEM = {"role": "system", "content": "Be brief."}
ASK = {"role": "user", "content": "1+1?"}
ANSWER = {"role": "assistant", "content": "2"}
CALL = ANSWER | {"tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {}}}]}
RESULT = {"role": "tool", "content": "2"}


def row(name: str, *messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": name, "messages": list(messages)} | more


def test_chats_in_words_are_examples() -> None:
    assert is_example(row("a", ASK, ANSWER))
    assert is_example(row("a", SYSTEM, ASK, ANSWER, ASK, ANSWER))
    assert not is_example(row("a", ANSWER))
    assert not is_example(row("a", ASK, ANSWER, ASK))
    assert not is_example(row("a", ASK, ANSWER, tools=[{"name": "add"}]))
    assert not is_example(row("a", ASK, CALL, RESULT, ANSWER))


def test_examples_stand_between_the_system_prompt_and_the_question() -> None:
    other = {"role": "user", "content": "2+2?"}
    asked = with_examples(
        row("a", SYSTEM, ASK, ANSWER), [row("b", {**SYSTEM, "content": "?"}, other, ANSWER)]
    )
    assert asked == row("a", SYSTEM, other, ANSWER, ASK, ANSWER)
    assert with_examples(row("a", ASK, ANSWER), []) == row("a", ASK, ANSWER)


def test_examples_are_short_enough(finished: Path, tmp_path: Path) -> None:
    long = {"role": "user", "content": "1+1? " * 200}
    file = tmp_path / "train.jsonl"
    write_rows(file, [row("long", long, ANSWER), *[row(f"short{i}", ASK, ANSWER) for i in range(3)]])
    tokenizer = load_tokenizer(finished / "models/adapter")
    two = example_rows(tokenizer, file, 2, 128)
    assert len(two) == 2
    assert all(example["id"].startswith("short") for example in two)
    (one,) = encodable(tokenizer, two[:1], 128)
    tokens = len(one.ids)
    assert len(example_rows(tokenizer, file, 3, 2 * tokens)) == 2
    assert example_rows(tokenizer, file, 2, 4) == []
