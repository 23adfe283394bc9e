"""quench data pairs with a real llama-server: the same run gives the same bytes, a killed one goes on, no
held-out row is asked, nothing is overwritten, and curate reads what was written.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from killed import kill_at
from make import quench, score_all_but_unsure
from tiny import tiny_gguf

from pipeline.chat.rows import row_id
from pipeline.config.params import Params
from pipeline.config.sections import Curate
from pipeline.core.jsonl import read_rows, write_rows
from pipeline.gguf.header import read_header
from pipeline.llamacpp.server import Server
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
ASKED = {"-k": 4, "--rows": 3, "--seed": 1}


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
    write_params(tmp_path, PARAMS)
    (tmp_path / "models/gguf").mkdir(parents=True)
    shutil.copy(model, tmp_path / "models/gguf/tiny-F16.gguf")
    (tmp_path / "data/raw").mkdir(parents=True)
    (tmp_path / "data/evaluation").mkdir()
    (tmp_path / "data/evaluation/mine.py").write_text(SHORT)
    write_rows(tmp_path / "data/final/train.jsonl", [chat(f"train {n}", "x") for n in range(6)])
    write_rows(tmp_path / "data/final/test.jsonl", [chat(f"test {n}", "x") for n in range(6)])
    return tmp_path


def write_params(root: Path, params: Params) -> None:
    (root / "params.yaml").write_text(yaml.safe_dump(params.model_dump(mode="json")))


def pairs(root: Path, name: str = "own.jsonl", **changed: object) -> Any:
    """Run `quench data pairs`; `changed` are options by their names."""
    names = {key: f"--{key.replace('_', '-')}" if len(key) > 1 else f"-{key}" for key in changed}
    options = ASKED | {names[key]: value for key, value in changed.items()}
    words = [word for option in options.items() for word in option]
    return quench("data", "pairs", root / "data/raw" / name, "F16", *words, "--root", root)


def run(root: Path, name: str = "own.jsonl", **changed: object) -> tuple[bytes, Row]:
    """The file, and its account."""
    done = pairs(root, name, **changed)
    assert done.exit_code == 0, done.output
    account = json.loads((root / f"reports/pairs/{name}.json").read_text())
    return (root / "data/raw" / name).read_bytes(), account


def run_writing(root: Path, name: str) -> None:
    """`run` that writes each row's answers as they come."""
    pytest.MonkeyPatch().setattr("pipeline.metrics.asking.KEEP_SECONDS", 0.0)
    run(root, name)


def test_best_and_worst_are_written_with_their_account_and_curate_reads_them(root: Path) -> None:
    account = run(root)[1]
    rows = list(read_rows(root / "data/raw/own.jsonl"))
    assert account["requests"] == 3
    assert account["pairs"] == len(rows) > 0
    assert account["pairs"] + sum(account["no_pair"].values()) == 3
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


def test_the_rows_own_answer_is_chosen_if_that_is_asked_for(root: Path) -> None:
    account = run(root, chosen="reference")[1]
    rows = list(read_rows(root / "data/raw/own.jsonl"))
    assert account["chosen"] == "reference"
    assert 0 < account["pairs"] == len(rows)
    for row in rows:
        assert row["chosen"] == [{"role": "assistant", "content": "x"}]
        assert row["meta"]["chosen_score"] == 0.5 > row["meta"]["rejected_score"]
    # it is not one of the sampled answers
    assert account["best_score"] < 0.5


@pytest.mark.slow
def test_the_same_run_and_one_that_was_killed_give_the_same_bytes(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, account = run(root)
    kept = next((root / "reports/pairs").glob("*.answers.jsonl"))
    answers = kept.read_bytes()
    kept.unlink()
    kill_at("pipeline.extras.pairs.answering:_ask", 2, run_writing, root, "again.jsonl")
    asked, post = [], Server.post

    def counted(server: Server, path: str, body: dict[str, Any]) -> Any:
        asked.append(path)
        return post(server, path, body)

    monkeypatch.setattr(Server, "post", counted)
    assert not (root / "data/raw/again.jsonl").exists()
    assert run(root, "again.jsonl") == (written, account)
    assert kept.read_bytes() == answers
    # the row that was answered before the kill is not asked again
    assert asked.count("/v1/chat/completions") == 2 * 4


def test_the_command_asks_as_its_options_say(root: Path) -> None:
    options = {"temperature": 0.75, "min_gap": 0.001}
    before, first = run(root, "before.jsonl", **options)
    # fewer pairs than requests
    equal = json.loads(before.splitlines()[0])["prompt"][-1]["content"]
    function = SHORT.replace("return ", f"return 0.5 if row['prompt'] == {equal!r} else ")
    (root / "data/evaluation/mine.py").write_text(function)
    done = pairs(root, "typed.jsonl", **options)
    assert done.exit_code == 0, done.output
    account = json.loads((root / "reports/pairs/typed.jsonl.json").read_text())
    said = {"model": "F16", "answers": 4, "requests": 3, "seed": 1, **options}
    assert account.items() >= said.items()
    assert account["no_pair"] == {"all_equal": 1} and account["pairs"] == first["pairs"] - 1 == 2
    target = root / "data/raw/typed.jsonl"
    assert target.read_bytes().splitlines() == before.splitlines()[1:]
    assert done.stdout.startswith(f"{target}: 2 pairs of 3 requests; no pair of: 1 all equal; ")


def test_another_seed_gives_other_answers(root: Path) -> None:
    run(root)
    run(root, "other.jsonl", seed=2)
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
    assert id in pairs(root, name).stderr
    assert (root / "data/raw/there.jsonl").read_text() == "mine"
    assert not (root / "reports").exists()


def test_without_a_scorer_rows_or_scores_that_differ_there_is_no_file(root: Path) -> None:
    def refused() -> str:
        done = pairs(root, k=2, rows=1)
        assert done.exit_code
        assert not list((root / "data/raw").iterdir())
        return str(done.stderr)

    write_params(root, Params.model_validate({"convert": {"name": "tiny"}, "evaluate": {"scorers": []}}))
    assert "Q-PAIRS-005" in refused()
    write_params(
        root, Params.model_validate({"convert": {"name": "tiny"}, "evaluate": {"scorers": ["tool_calls"]}})
    )
    assert "Q-PAIRS-006" in refused()
    write_params(root, PARAMS)
    (root / "data/evaluation/mine.py").write_text(SHORT.replace("1 / (1 + len(answer))", "0.5"))
    assert "Q-PAIRS-004" in refused()
    write_rows(root / "data/final/train.jsonl", [])
    assert "Q-PAIRS-003" in refused()


# ---- with a server that says what a test gives it


def answer(text: str, *, stopped: bool = True, **message: Any) -> Row:
    return {"message": {"content": text, **message}, "finish_reason": "stop" if stopped else "length"}


def answering(monkeypatch: pytest.MonkeyPatch, answers: dict[str, list[Row]]) -> None:
    """Have each question answered in turn by its own answers, and any other by those of ""."""
    asked: dict[str, Iterator[Row]] = {}

    def post(path: str, body: dict[str, Any]) -> Row:
        question = body["messages"][-1]["content"]
        of_it = asked.setdefault(question, iter(answers.get(question) or answers[""]))
        return {"choices": [next(of_it)]}

    @contextmanager
    def server(*_: Any) -> Iterator[Any]:
        yield SimpleNamespace(parallel=1, post=post)

    monkeypatch.setattr("pipeline.extras.pairs.answering.evaluated_server", server)


def test_each_request_is_asked_once_by_its_best_chat_and_prompts_are_asked_too(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = {"messages": [{"role": "user", "content": "q2"}], "answer": "four"}
    rows = [
        chat("q1", "bad", reward=0.1),
        chat("q1", "good", reward=0.9),
        chat("q3", "", tool=1) | {"messages": [*chat("q3", "")["messages"][:1]]},  # no answer
        {"id": "p" * 16, "source": "p:1", "kind": "prompt", "domain": "p", **prompt},
        {**chat("q4", "x"), "kind": "preference"},
    ]
    write_rows(root / "data/final/train.jsonl", rows)
    answering(monkeypatch, {"": [answer(text) for text in ("good", "bad", "four", "x")]})
    written, account = run(root, rows=10, scorer="exact_match")
    found = [json.loads(line) for line in written.splitlines()]
    chosen = {(row["prompt"][-1]["content"], row["chosen"][0]["content"]) for row in found}
    assert chosen == {("q1", "good"), ("q2", "four")}
    assert account["requests"] == 2


LEFT_OUT = {
    "cut_off": answer("cut", stopped=False),
    "calls_a_tool": answer("", tool_calls=[{}]),
    "empty": answer(" "),
    "not_measured": answer("?"),
    "unreadable": answer("\x1b"),
}
POINTS = "def short(reference, answer, row):\n    return {'a': 0.5, 'b': 0.9, 'c': 0.1}.get(answer, 1.0)\n"


@pytest.mark.parametrize(
    ("texts", "min_gap", "outcome"),
    [
        ("a", 0.0, "fewer_than_two"),
        ("aa", 0.0, "all_equal"),
        ("ab", 0.5, "gap_too_small"),
        ("abc", 0.2, None),
    ],
)
def test_answers_that_no_row_could_hold_are_half_of_no_pair(
    root: Path, monkeypatch: pytest.MonkeyPatch, texts: str, min_gap: float, outcome: str | None
) -> None:
    monkeypatch.setattr("pipeline.extras.pairs.choosing.score_answers", score_all_but_unsure)
    (root / "data/evaluation/mine.py").write_text(POINTS)
    write_rows(root / "data/final/train.jsonl", [chat("sound", "x"), chat("asked", "x")])
    usable = [answer(text) for text in texts]
    sound = [answer(text) for text in "bcabcabc"]
    answering(monkeypatch, {"sound": sound, "asked": [*usable, *LEFT_OUT.values()]})
    written, account = run(root, k=len(usable) + len(LEFT_OUT), min_gap=min_gap)
    assert account["answers_left_out"] == dict.fromkeys(sorted(LEFT_OUT), 1)
    assert account["no_pair"] == ({outcome: 1} if outcome else {})
    found = [json.loads(line) for line in written.splitlines()]
    pair = [tuple(row[side][0]["content"] for side in ("chosen", "rejected")) for row in found]
    assert pair == [("b", "c")] * (1 if outcome else 2)
