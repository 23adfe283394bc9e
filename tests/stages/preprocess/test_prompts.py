"""train.train_on_prompt: every token is learned but what is held back, and the proof knows it."""

from pathlib import Path
from typing import Any

import proving
import pytest
from proving import chat, load_bases

from pipeline.chat.tokens import IGNORED, Encoded
from pipeline.core.errors import DataError
from pipeline.llamacpp.tools import Toolchain
from pipeline.stages.preprocess.stretches import Base


@pytest.fixture(scope="module")
def bases(tools: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Base]:
    return load_bases(tmp_path_factory.mktemp("bases"), tools)


TEXT = {
    "id": "0123456789abcdef",
    "kind": "text",
    "segments": [{"text": "Asked. ", "train": False}, {"text": "Told.", "train": True}],
}


def proven(folder: Path, base: Base, rows: list[Any], change: Any = None) -> list[tuple[str, Encoded]]:
    """Encode with prompts, write and prove `rows`; what was written."""
    return proving.proven(folder, base, rows, change, prompts=True)[0]


def masked(base: Base, one: Encoded) -> str:
    hidden = [token for token, label in zip(one.ids, one.labels, strict=True) if label == IGNORED]
    return str(base.plain.decode(hidden, skip_special_tokens=False))


@pytest.mark.parametrize("name", ["smollm", "qwen3"])
def test_everything_is_learned_but_turns_that_are_held_back(
    name: str, bases: dict[str, Base], tmp_path: Path
) -> None:
    base, held = bases[name], chat("First?", "Not this.", "Second?", "But this.")
    held["messages"][1]["train"] = False
    written = dict(proven(tmp_path, base, [chat("Asked?", "Told."), held, TEXT]))
    for row, one in written.items():
        assert ("Not this." in masked(base, one)) == (row == held["id"])
        assert all(word not in masked(base, one) for word in ("Asked", "First", "Second", "But this", "Told"))


def test_of_an_unfolded_chat_no_prompt_is_learned_twice(bases: dict[str, Base], tmp_path: Path) -> None:
    base, row = bases["qwen3"], chat("First?", "Yes.", "Second?", "No.")
    for turn in (1, 3):
        row["messages"][turn]["reasoning_content"] = f"Thought {turn}."
    first, second = (one for _, one in proven(tmp_path, base, [row]))
    assert masked(base, first) == ""
    assert "First?" in masked(base, second) and "No." not in masked(base, second)


@pytest.mark.parametrize("prompts", [False, True])
@pytest.mark.parametrize("name", ["smollm", "qwen3"])
@pytest.mark.parametrize("said", [("First?", "One, then"), ("First?", "No.", "Second?", "Two, then")])
def test_an_answer_whose_end_was_cut_off_does_not_teach_to_stop(
    name: str, prompts: bool, said: tuple[str, ...], bases: dict[str, Base], tmp_path: Path
) -> None:
    base, whole, cut = bases[name], chat(*said), chat(*said)
    cut["messages"][-1]["cut"] = "end"
    (tmp_path / "whole").mkdir()
    expected, _ = proving.proven(tmp_path / "whole", base, [whole], prompts=prompts)
    found, _ = proving.proven(tmp_path, base, [cut], prompts=prompts)
    end = max(place for place, token in enumerate(found[-1][1].ids) if token == base.tokenizer.eos_token_id)
    for (_, one), (_, other) in zip(found, expected, strict=True):
        is_last = one is found[-1][1]
        assert one.ids == other.ids
        assert not is_last or other.labels[end] == base.tokenizer.eos_token_id
        labels = [IGNORED if is_last and place == end else label for place, label in enumerate(other.labels)]
        assert one.labels == labels


def test_an_end_that_was_cut_off_is_not_taught_beside_turns_that_are_held_back(
    bases: dict[str, Base], tmp_path: Path
) -> None:
    base, row = bases["smollm"], chat("First?", "Not this.", "Second?", "Two, then")
    row["messages"][1]["train"] = False
    row["messages"][3]["cut"] = "end"
    [(_, one)] = proven(tmp_path, base, [row])
    assert masked(base, one).count("<|im_end|>") == 2 and "Not this." in masked(base, one)
    assert not any(words in masked(base, one) for words in ("First", "Second", "Two, then"))


def test_an_end_that_is_taught_after_a_cut_is_found(bases: dict[str, Base], tmp_path: Path) -> None:
    row = chat("First?", "One, two, and then")
    row["messages"][1]["cut"] = "end"

    def teach(found: list[tuple[str, Encoded]]) -> list[tuple[str, Encoded]]:
        eos = bases["smollm"].tokenizer.eos_token_id
        labels = [
            [token if token == eos else label for token, label in zip(one.ids, one.labels, strict=True)]
            for _, one in found
        ]
        return [(name, Encoded(one.ids, new)) for (name, one), new in zip(found, labels, strict=True)]

    with pytest.raises(DataError, match=r"Q-PREPROCESS-01[12]"):
        proven(tmp_path, bases["smollm"], [row], teach)


def test_a_prompt_that_is_not_learned_is_found(bases: dict[str, Base], tmp_path: Path) -> None:
    def forget(found: list[tuple[str, Encoded]]) -> list[tuple[str, Encoded]]:
        return [(name, Encoded(one.ids, [IGNORED, IGNORED, *one.labels[2:]])) for name, one in found]

    with pytest.raises(DataError, match="Q-PREPROCESS-012"):
        proven(tmp_path, bases["smollm"], [chat("Asked?", "Told.")], forget)
