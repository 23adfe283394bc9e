"""quench data pairs with a real llama-server: the same run gives the same bytes, a killed one goes on, no
held-out row is asked, nothing is overwritten, and curate reads what was written.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from killed import kill_at
from make import quench
from tiny import tiny_gguf

from pipeline.chat.rows import row_id
from pipeline.commands.pairs import answering
from pipeline.commands.pairs.answering import training_requests
from pipeline.commands.pairs.choosing import pair_of, problem_of
from pipeline.commands.pairs.command import Options, make
from pipeline.commands.project import Project
from pipeline.config.params import Params
from pipeline.config.sections import Curate
from pipeline.core.errors import QuenchError
from pipeline.core.jsonl import read_rows, write_rows
from pipeline.gguf.header import read_header
from pipeline.stages.curate.stage import curate

Row = dict[str, Any]
PARAMS = Params.model_validate(
    {
        "convert": {"name": "tiny", "type": "F16"},
        "evaluate": {
            "scorers": ["python:mine.py:short"],
            "max_new_tokens": 300,
        },
    }
)
SHORT = "def short(reference, answer, row):\n    return 1 / (1 + len(answer))\n"
ASKED = Options(answers=4, rows=3, seed=1)


def chat(question: str, answer: str, **more: Any) -> Row:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    row = {"source": "a.jsonl:1", "kind": "chat", "domain": "a", "messages": turns} | more
    return {"id": row_id(row), **row}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random, and loud so that it does not repeat itself; its bytes that are no letters are words."""
    folder = tmp_path_factory.mktemp("asked")
    tokens = read_header(tiny_gguf(folder / "bytes.gguf")).fields["tokenizer.ggml.tokens"]
    words = [word if len(word) > 1 or word.isascii() else f"w{n}" for n, word in enumerate(tokens)]
    loud = {"blk.0.ffn_norm.weight": np.full(32, 20, np.float32)}
    return tiny_gguf(folder / "tiny.gguf", tensors=loud, tokenizer__ggml__tokens=words)


@pytest.fixture
def root(model: Path, tmp_path: Path) -> Path:
    """A project with a model, training rows, and held-out rows that nobody may ask."""
    (tmp_path / "models/gguf").mkdir(parents=True)
    shutil.copy(model, tmp_path / "models/gguf/tiny-F16.gguf")
    (tmp_path / "data/raw").mkdir(parents=True)
    (tmp_path / "data/evaluation").mkdir()
    (tmp_path / "data/evaluation/mine.py").write_text(SHORT)
    write_rows(tmp_path / "data/final/train.jsonl", [chat(f"train {n}", "x") for n in range(6)])
    write_rows(tmp_path / "data/final/test.jsonl", [chat(f"test {n}", "x") for n in range(6)])
    return tmp_path


def run(root: Path, name: str = "own.jsonl", asked: Options = ASKED) -> tuple[bytes, Row]:
    target = root / "data/raw" / name
    account = make(Project(PARAMS, root), target, "F16", asked)
    return target.read_bytes(), account


def run_writing(root: Path, name: str) -> None:
    """`run` that writes each row's answers as they come."""
    pytest.MonkeyPatch().setattr("pipeline.metrics.answers.KEEP_SECONDS", 0.0)
    run(root, name)


def test_best_and_worst_are_written_with_their_account_and_curate_reads_them(root: Path) -> None:
    account = run(root)[1]
    rows = list(read_rows(root / "data/raw/own.jsonl"))
    assert account["requests"] == 3
    assert account["pairs"] == len(rows) > 0
    assert account["pairs"] + sum(account["no_pair"].values()) == 3
    assert json.loads((root / "reports/pairs/own.jsonl.json").read_text()) == account
    assert account["files"].keys() == {"tiny-F16.gguf"}
    assert account["best_score"] > account["mean_score"] > account["worst_score"]
    for row in rows:
        better, worse = (row[side][0]["content"] for side in ("chosen", "rejected"))
        assert len(better) < len(worse)
        assert row["meta"]["chosen_score"] > row["meta"]["rejected_score"]
        assert row["prompt"][-1]["content"].startswith("train ")
    assert sorted(path.suffix for path in (root / "reports/pairs").iterdir()) == [".json", ".jsonl"]
    (root / "models/base.json").write_text('{"added_tokens": []}')
    report = curate(root, Curate(test_fraction=0.0, val_fraction=0.0, near_threshold=1.0))
    assert report.formats == {"preference": len(rows)}
    assert report.rows_kept == len(rows)


@pytest.mark.slow
def test_the_same_run_and_one_that_was_killed_give_the_same_bytes(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, account = run(root)
    kept = next((root / "reports/pairs").glob("*.answers.jsonl"))
    answers = kept.read_bytes()
    kept.unlink()
    kill_at("pipeline.commands.pairs.answering:_ask", 2, run_writing, root, "again.jsonl")
    asked, ask = [], answering._ask

    def answer(server: Any, pool: Any, row: Row, *more: Any) -> Any:
        asked.append(row["id"])
        return ask(server, pool, row, *more)

    monkeypatch.setattr(answering, "_ask", answer)
    assert not (root / "data/raw/again.jsonl").exists()
    assert run(root, "again.jsonl") == (written, account)
    assert kept.read_bytes() == answers
    assert len(asked) == 2  # the row that was answered before the kill is not asked again


def test_the_command_asks_as_its_options_say(root: Path) -> None:
    (root / "params.yaml").write_text(yaml.safe_dump(PARAMS.model_dump(mode="json")))
    options = {"-k": 4, "--rows": 3, "--seed": 1, "--temperature": 0.75, "--min-gap": 0.001}
    words = [word for option in options.items() for word in option]
    equal = training_requests(root, 3, 1)[0]["messages"][-2]["content"]  # fewer pairs than requests
    function = SHORT.replace("return ", f"return 0.5 if row['prompt'] == {equal!r} else ")
    (root / "data/evaluation/mine.py").write_text(function)
    target = root / "data/raw/typed.jsonl"
    done = quench("data", "pairs", target, "F16", *words, "--root", root)
    assert done.exit_code == 0, done.output
    asked = Options(answers=4, rows=3, seed=1, temperature=0.75, min_gap=0.001)
    written, account = run(root, asked=asked)
    assert target.read_bytes() == written
    assert json.loads((root / "reports/pairs/typed.jsonl.json").read_text()) == account
    assert account["no_pair"] == {"all_equal": 1} and account["pairs"] == 2
    assert done.stdout.startswith(f"{target}: 2 pairs of 3 requests; no pair of: 1 all equal; ")


def test_another_seed_gives_other_answers(root: Path) -> None:
    run(root)
    run(root, "other.jsonl", Options(answers=4, rows=3, seed=2))
    first, second = (set(path.read_text()) for path in (root / "reports/pairs").glob("*.answers.jsonl"))
    assert first != second


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("own.json", "Q-PAIRS-001"),
        ("../own.jsonl", "Q-PAIRS-001"),
        (".own.jsonl", "Q-PAIRS-001"),
        (".hidden/own.jsonl", "Q-PAIRS-001"),
        ("there.jsonl", "Q-PAIRS-002"),
    ],
)
def test_a_file_that_can_not_be_written_is_refused_before_anything_is_asked(
    root: Path, name: str, id: str
) -> None:
    (root / "data/raw/there.jsonl").write_text("mine")
    with pytest.raises(QuenchError, match=id):
        make(Project(PARAMS, root), root / "data/raw" / name, "F16", ASKED)
    assert (root / "data/raw/there.jsonl").read_text() == "mine"
    assert not (root / "reports").exists()


def test_without_a_scorer_rows_or_scores_that_differ_there_is_no_file(root: Path) -> None:
    evaluate = PARAMS.evaluating.model_copy(update={"scorers": []})
    without = PARAMS.model_copy(update={"evaluate": evaluate})

    def refused(params: Params = PARAMS) -> str:
        asked = Options(answers=2, rows=1, seed=1)
        with pytest.raises(QuenchError) as error:
            make(Project(params, root), root / "data/raw/own.jsonl", "F16", asked)
        assert not list((root / "data/raw").iterdir())
        return error.value.id

    assert refused(without) == "Q-PAIRS-005"
    (root / "data/evaluation/mine.py").write_text(SHORT.replace("1 / (1 + len(answer))", "0.5"))
    assert refused() == "Q-PAIRS-004"
    write_rows(root / "data/final/train.jsonl", [])
    assert refused() == "Q-PAIRS-003"


def test_each_request_is_asked_once_by_its_best_chat_and_prompts_are_asked_too(tmp_path: Path) -> None:
    prompt = {"messages": [{"role": "user", "content": "q2"}], "answer": "four"}
    rows = [
        chat("q1", "bad", reward=0.1),
        chat("q1", "good", reward=0.9),
        chat("q3", "", tool=1) | {"messages": [*chat("q3", "")["messages"][:1]]},  # no answer
        {"id": "p" * 16, "source": "p:1", "kind": "prompt", "domain": "p", **prompt},
        {**chat("q4", "x"), "kind": "preference"},
    ]
    write_rows(tmp_path / "data/final/train.jsonl", rows)
    found = training_requests(tmp_path, 10, 0)
    assert {(row["messages"][-2]["content"], row["messages"][-1]["content"]) for row in found} == {
        ("q1", "good"),
        ("q2", "four"),
    }


def answer(text: str, score: float | None, **more: Any) -> Row:
    turn = {"role": "assistant", "content": text}
    return {"turn": turn, "answer": text, "score": score, "stopped": True, "calls": False} | more


def test_answers_that_no_row_could_hold_are_half_of_no_pair() -> None:
    left_out = {
        "cut_off": answer("a", 1.0, stopped=False),
        "calls_a_tool": answer("", 1.0, calls=True),
        "empty": answer(" ", 1.0),
        "not_measured": answer("a", None),
        "unreadable": answer("a\x1b", 1.0),
    }
    assert {name: problem_of(one) for name, one in left_out.items()} == {name: name for name in left_out}
    row = chat("q", "r")
    assert pair_of(row, [answer("a", 0.5), *left_out.values()], 0) == "fewer_than_two"
    assert pair_of(row, [answer("a", 0.5), answer("b", 0.5)], 0) == "all_equal"
    assert pair_of(row, [answer("a", 0.5), answer("b", 0.6)], 0.2) == "gap_too_small"
    pair = pair_of(row, [answer("a", 0.5), answer("b", 0.9), answer("c", 0.1), *left_out.values()], 0.2)
    assert isinstance(pair, dict)
    assert [pair[side][0]["content"] for side in ("chosen", "rejected")] == ["b", "c"]
