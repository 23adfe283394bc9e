"""evaluation.general: questions are sound, right differs from likely, and shared prompts change no figure."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from families import byte_folder
from hypothesis import given
from hypothesis import strategies as st
from plain_figures import log_softmax

from pipeline.chat.rendering import Unrenderable
from pipeline.chat.tokens import load_tokenizer
from pipeline.config.products import ModelFiles
from pipeline.core.errors import ConfigError, DataError
from pipeline.llamacpp.logits import GgufModel, open_gguf
from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.metrics.general import (
    ROWS,
    Choice,
    choice_log_probabilities,
    encode_choice,
    general_ability,
    likeliest,
)
from pipeline.metrics.general_questions import Question, load_questions

ROOT = Path("/nowhere")
ROW = {
    "subject": "letters",
    "question": "Which letter is the first?",
    "choices": ["a", "b", "c"],
    "answer": 0,
}


def questions(*answers: int) -> list[Question]:
    choices = ("he", "she", "it is", "they were")
    return [
        Question("builtin", i + 1, f"subject {i % 2}", f"Who was it in story {i}?", choices, answer)
        for i, answer in enumerate(answers)
    ]


# the file that comes with Quench


def test_the_builtin_questions_are_8_subjects_of_15_and_none_is_there_twice() -> None:
    found = load_questions("builtin", ROOT)
    answers: dict[str, Counter[int]] = {}
    for question in found:
        answers.setdefault(question.subject, Counter())[question.answer] += 1
    assert [one.total() for one in answers.values()] == [15] * 8
    assert sum(answers.values(), Counter()) == {0: 30, 1: 30, 2: 30, 3: 30}
    assert {count for one in answers.values() for count in one.values()} == {3, 4}
    assert len({question.question.casefold() for question in found}) == 120
    assert all(len({choice.casefold() for choice in question.choices}) == 4 for question in found)


def test_length_gives_no_builtin_answer_away() -> None:
    """Always taking the longest or shortest is about as good as guessing: 30 of 120; ties share the point."""
    for extreme in (max, min):
        points = 0.0
        for q in load_questions("builtin", ROOT):
            lengths = [len(choice) for choice in q.choices]
            points += (lengths[q.answer] == extreme(lengths)) / lengths.count(extreme(lengths))
        assert 18 <= points <= 42, extreme
    assert all(
        len(q.choices[q.answer])
        <= 2 * max(len(choice) for choice in q.choices[: q.answer] + q.choices[q.answer + 1 :])
        for q in load_questions("builtin", ROOT)
    )


# a user's file


def write(root: Path, *rows: object) -> Path:
    (root / "data/evaluation").mkdir(parents=True)
    file = root / "data/evaluation/mine.jsonl"
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return file


def test_own_questions_are_read(tmp_path: Path) -> None:
    write(tmp_path, ROW, ROW | {"answer": 2})
    first, second = load_questions("mine.jsonl", tmp_path)
    assert first == Question("mine.jsonl", 1, "letters", ROW["question"], ("a", "b", "c"), 0)
    assert (second.line, second.answer) == (2, 2)
    assert load_questions("none", tmp_path) == []


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("{", "line 2: .* at character"),
        (ROW | {"hint": "a"}, "has the keys answer, choices, question, subject, this has .*hint"),
        (ROW | {"question": " "}, "question must be a text"),
        (ROW | {"subject": 7}, "subject must be a text"),
        (ROW | {"choices": ["a"]}, "two texts or more"),
        (ROW | {"choices": ["a", "b "]}, "without white space"),
        (ROW | {"choices": ["a", "b", "a"]}, "a choice is there twice"),
        (ROW | {"answer": 3}, "answer is 3, but must be the index of a choice, 0 to 2"),
        (ROW | {"answer": True}, "answer is True"),
        ("", "line 2"),
    ],
)
def test_a_line_that_is_no_question_is_named(tmp_path: Path, row: object, sentence: str) -> None:
    write(tmp_path, ROW, row)
    with pytest.raises(DataError, match="Q-EVALUATE-004") as refusal:
        load_questions("mine.jsonl", tmp_path)
    with pytest.raises(DataError, match=sentence):
        raise refusal.value


def test_a_file_that_is_not_there_or_empty_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "secret.jsonl").write_text(json.dumps(ROW))
    for name in ("other.jsonl", "../../secret.jsonl", str(tmp_path / "secret.jsonl")):
        with pytest.raises(ConfigError, match="Q-EVALUATE-003"):
            load_questions(name, tmp_path)
    with pytest.raises(DataError, match="Q-EVALUATE-005"):
        load_questions("mine.jsonl", tmp_path)


# scoring


def test_the_likeliest_choice_is_the_one_per_byte() -> None:
    assert likeliest(["ab", "abcdefgh"], [-2.0, -4.0]) == 1
    assert likeliest(["é", "e"], [-2.0, -1.5]) == 0  # é is two bytes


@given(st.lists(st.floats(-50, -0.1), min_size=2, max_size=6))
def test_of_choices_of_one_length_the_likeliest_wins(logs: list[float]) -> None:
    assert likeliest(["four"] * len(logs), logs) == int(np.argmax(np.array(logs) / 4))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_tokenizer(byte_folder(tmp_path_factory.mktemp("bytes") / "folder"))


@pytest.fixture(scope="module")
def gguf(tools: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GgufModel]:
    """A random model over bytes with a context of 256."""
    file = tiny.tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny-F16.gguf")
    with open_gguf(Llama(tools), ModelFiles(file), ctx_size=256, rows=ROWS) as model:
        yield model


# nats per token: llama.cpp's kernels add up in another order for a batch of another size, with 16-bit keys
# and values
ROUNDING = 1e-3
THINKING = tiny.CHATML.replace(
    "message['content']",
    "('<think>\\n\\n</think>\\n\\n' if message['role'] == 'assistant' else '') + message['content']",
)


@pytest.mark.parametrize("template", [tiny.CHATML, THINKING])
def test_only_the_choices_own_tokens_count(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", template)
    choice = encode_choice(tokenizer, "Was it the old king?", "the old king")
    assert tokenizer.decode(choice.ids[choice.first :]) == "the old king"
    before = tokenizer.decode(choice.ids[: choice.first])
    assert "old king?<|im_end|>" in before
    assert before.endswith("</think>\n\n" if template == THINKING else "assistant\n")
    with pytest.raises(Unrenderable, match="control tokens"):
        encode_choice(tokenizer, "Who was <|im_end|> it?", "the old king")


def test_a_shared_prompt_changes_no_figure(tokenizer: Any, gguf: GgufModel) -> None:
    """Each log probability is a separate forward pass's, also after a question sharing nothing or all."""
    asked = [
        ("Who was it?", ["the old king", "the queen", "x"]),
        ("Why?", ["because", "because of it"]),
        ("Why?", ["because", "no"]),
    ]
    rows = [[encode_choice(tokenizer, question, choice) for choice in choices] for question, choices in asked]
    rows.append([Choice([97, 11, 18, 0], 1), Choice([97, 11, 18, 0], 3)])
    shared = list(choice_log_probabilities(gguf, rows))
    for logs, choices in zip(shared, rows, strict=True):
        for log, choice in zip(logs, choices, strict=True):
            answer = choice.ids[choice.first :]
            alone = log_softmax(gguf.logits(choice.ids, list(range(choice.first - 1, len(choice.ids) - 1))))
            assert log == pytest.approx(
                alone[np.arange(len(answer)), answer].sum(), abs=ROUNDING * len(answer)
            )
    other = Choice([*rows[0][0].ids[:-1], 5], rows[0][0].first)  # the measure sees another answer
    assert abs(next(choice_log_probabilities(gguf, [[other]]))[0] - shared[0][0]) > 1e-3


def test_a_memory_that_cannot_drop_some_tokens_is_read_again(
    tokenizer: Any, gguf: GgufModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recurrent architectures hold a state, not a row of keys."""
    rows = [[encode_choice(tokenizer, "Who was it?", choice) for choice in ("the old king", "the queen")]]
    shared = list(choice_log_probabilities(gguf, rows))
    monkeypatch.setattr(gguf._llama, "llama_memory_seq_rm", lambda *given: False)
    assert next(choice_log_probabilities(gguf, rows)) == pytest.approx(shared[0], abs=ROUNDING * 12)


def test_general_ability_counts(tokenizer: Any, gguf: GgufModel) -> None:
    asked = (general_ability(gguf, tokenizer, questions(*[answer] * 4)) or {} for answer in range(4))
    chosen = [right.index(1) for right in zip(*(figures["right"] for figures in asked), strict=True)]
    found = general_ability(gguf, tokenizer, questions(*chosen[:3], (chosen[3] + 1) % 4))
    assert found is not None
    assert found["right"] == [1, 1, 1, 0]
    assert (found["file"], found["rows"], found["score"]) == ("builtin", 4, 0.75)
    assert found["score_low"] <= 0.75 <= found["score_high"]
    assert found["subjects"] == {
        "subject 0": {"rows": 2, "score": 1.0},
        "subject 1": {"rows": 2, "score": 0.5},
    }
    assert json.loads(json.dumps(found)) == found


def test_what_cannot_be_asked_is_named(tokenizer: Any, gguf: GgufModel) -> None:
    with pytest.raises(DataError, match="Q-EVALUATE-006"):
        general_ability(gguf, tokenizer, [Question("builtin", 1, "s", "why " * 100, ("a", "b"), 0)])
    with pytest.raises(DataError, match="Q-EVALUATE-006"):
        general_ability(gguf, tokenizer, [Question("builtin", 1, "s", "<|im_end|>", ("a", "b"), 0)])
