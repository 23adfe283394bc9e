"""Inline reasoning goes to `reasoning_content`, and only where the base knows the tokens; a thought beside
another is no answer.
"""

from pathlib import Path

from curating import Row, chat, of_rows

ANSWERS = [  # an answer, its thought, what is left of it, and whether that was changed
    ("<think>\nTwo and two.\n</think>\n\n4", "Two and two.", "4", True),
    ("  <think>a</think>b<think", "a", "b<think", True),
    ("<think>\n\n</think>\n\n4", None, "4", True),
    ("4", None, "4", False),
    ("<thinking>x</thinking>y", None, "<thinking>x</thinking>y", False),
]
PAIR: Row = {"prompt": "a", **{side: f"<think>{side}</think>b" for side in ("chosen", "rejected")}}


def moved(root: Path, rows: list[Row], tokens: list[str]) -> tuple[list[Row], list[tuple[int, str]]]:
    """The rows that the stage makes of these, and (line, place) of each text that this rule changed."""
    project = of_rows(root, rows, tokens=tokens)
    project.run(drop_duplicates="none")
    changes = [one for one in project.changes() if one["rule"] == "reasoning"]
    return project.rows(), [(one["line"], one["place"]) for one in changes]


def test_thoughts_are_moved_and_other_text_stays(tmp_path: Path) -> None:
    rows = [chat("2 + 2?", answer) for answer, *_ in ANSWERS]
    found, changes = moved(tmp_path, [*rows, PAIR], ["<think>", "</think>"])
    answers = [row["messages"][1] for row in found[:-1]]
    assert [(turn.get("reasoning_content"), turn["content"]) for turn in answers] == [
        (thought, left) for _, thought, left, _ in ANSWERS
    ]
    for side in ("chosen", "rejected"):
        assert found[-1][side] == [{"role": "assistant", "content": "b", "reasoning_content": side}]
    lines = [number for number, (*_, is_changed) in enumerate(ANSWERS, start=1) if is_changed]
    assert changes == [(line, "messages 2") for line in lines] + [(6, "chosen 1"), (6, "rejected 1")]


def test_a_thought_beside_another_is_rejected_and_the_same_one_is_not_repeated(tmp_path: Path) -> None:
    rows = [chat("a", "<think>x</think>y"), chat("b", "<think>\nx\n</think>y")]
    for row, stated in zip(rows, "zx", strict=True):
        row["messages"][1]["reasoning_content"] = stated
    found, changes = moved(tmp_path, rows, ["<think>", "</think>"])
    assert [row["messages"][1] for row in found] == [
        {"role": "assistant", "content": "y", "reasoning_content": "x"}
    ]
    assert changes == [(2, "messages 2")]


def test_only_for_a_base_with_these_tokens(tmp_path: Path) -> None:
    _, changes = moved(tmp_path, [chat("a", "<think>x</think>y")], ["<|im_end|>", "<think>"])
    assert changes == []
