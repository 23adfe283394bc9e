"""quench judge with a real llama-server: the same bytes under two names can't be told apart, a broken file
loses, answers are kept, and what can't be judged is refused by its id.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from gguf_edit import change_rows, change_type
from killed import kill_at
from make import quench
from tiny import tiny_gguf

from pipeline.config.params import Params
from pipeline.config.products import ModelFiles
from pipeline.core.jsonl import read_rows, write_rows
from pipeline.core.units import MEMORY_GB
from pipeline.gguf.header import read_header
from pipeline.llamacpp.server import serving
from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.metrics.asking import answer_row

ROWS = 8  # with as many, all one way, p is 0.008
CTX = 256
PARAMS = Params.model_validate(
    {
        "evaluate": {"scorers": ["exact_match"], "max_new_tokens": 8, "perplexity_rows": 4},
        "serve": {"ctx_size": CTX},
    }
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its feed-forward layer is loud: else a random model with tied embeddings repeats its last token."""
    loud = {"blk.0.ffn_norm.weight": np.full(32, 20, np.float32)}
    return tiny_gguf(tmp_path_factory.mktemp("judged") / "sound.gguf", tensors=loud)


@pytest.fixture(scope="module")
def rows(model: Path, tools: Toolchain) -> list[dict[str, Any]]:
    """Rows whose reference answers are the sound file's own: it scores 100 points."""
    asked = [
        {
            "id": f"r{number}",
            "messages": [
                {"role": "user", "content": f"{number}+{number}?"},
                {"role": "assistant", "content": ""},
            ],
        }
        for number in range(ROWS)
    ]
    with serving(Llama(tools, 1, 0), ModelFiles(model), ctx_size=CTX) as server:
        for row in asked:
            row["messages"][1]["content"] = answer_row(server, row, PARAMS.evaluating)["answer"]  # type: ignore[index]
    assert all(row["messages"][1]["content"] for row in asked)  # type: ignore[index]
    return asked


@pytest.fixture
def root(rows: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder with nothing but settings and held-out rows."""
    write_params(tmp_path, PARAMS)
    write_rows(tmp_path / "data/final/test.jsonl", rows)
    monkeypatch.setattr("pipeline.extras.judge.measure.TURNS", 2)
    return tmp_path


def write_params(root: Path, params: Params) -> None:
    (root / "params.yaml").write_text(yaml.safe_dump(params.model_dump(mode="json")))


def judge(root: Path, *words: object) -> dict[str, Any]:
    """The report of these files and options."""
    done = quench("judge", *words, "--json", "--root", root)
    assert done.exit_code == 0, done.output
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.slow
def test_a_broken_file_loses_and_answers_are_kept(
    model: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Path(shutil.copy(model, root / "broken.gguf"))
    change_rows(broken, "blk.0.ffn_down.weight", np.zeros_like)
    files = [broken, model]
    found = judge(root, *files, "--memory", "8 GB", "--reference", model)
    assert found["verdict"]["best"] == "sound"
    assert found["verdict"]["alike"] == ["sound"]
    assert found["pairs"][0]["measurable"]
    sound = found["files"]["sound"]
    assert (sound["task"]["score"], sound["memory"]["fits"]) == (1.0, True)
    assert sound["divergence"]["kld"] == pytest.approx(0, abs=1e-9)
    assert found["files"]["broken"]["divergence"]["kld"] > 0
    assert sound["served"]["generation_tok_s"]["median"] > 0
    if Path("/proc/self/status").exists():
        assert sound["served"]["peak_memory_bytes"] > model.stat().st_size
    assert json.loads((root / "reports/judge.json").read_text())["rows"] == ROWS
    assert "sound" in (root / "reports/judge.html").read_text()
    assert len(list((root / "reports/judge").glob("*.answers.jsonl"))) == 2

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a row was asked again")

    monkeypatch.setattr("pipeline.extras.judge.measure.answer_row", refuse)
    again = judge(root, *files, "--memory", "8 GB")
    assert again["pairs"] == found["pairs"]


def test_the_same_bytes_are_not_distinguishable_nor_are_files_of_one_name_mixed_up(
    model: Path, root: Path
) -> None:
    (root / "more").mkdir()
    twin = Path(shutil.copy(model, root / "more" / model.name))
    found = judge(root, model, twin)
    assert set(found["verdict"]["alike"]) == set(found["files"]) and len(found["files"]) == 2
    first, second = found["files"].values()
    assert (first["same_bytes_as"], second["same_bytes_as"]) == (None, next(iter(found["files"])))
    kept = sorted((root / "reports/judge").glob("*.answers.jsonl"))
    assert len(kept) == 2  # each answered for itself
    assert list(read_rows(kept[0])) == list(read_rows(kept[1]))


def judge_writing(root: Path, *files: Path) -> None:
    """`judge` that writes each answer as it comes."""
    patch = pytest.MonkeyPatch()
    patch.setattr("pipeline.metrics.asking.KEEP_SECONDS", 0.0)
    patch.setattr("pipeline.extras.judge.measure.TURNS", 2)
    judge(root, *files)


@pytest.mark.slow
def test_a_killed_run_goes_on(model: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twin, asked = Path(shutil.copy(model, root / "twin.gguf")), []
    kill_at("pipeline.extras.judge.measure:answer_row", 3, judge_writing, root, model, twin)

    def answer(server: Any, row: dict[str, Any], *more: Any, **options: Any) -> dict[str, Any]:
        asked.append(row["id"])
        return answer_row(server, row, *more, **options)

    monkeypatch.setattr("pipeline.extras.judge.measure.answer_row", answer)
    judge(root, model, twin)
    assert len(asked) == 2 * ROWS - 2  # those that were answered before the kill are not asked again


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def strange(file: Path) -> None:
    """An architecture that llama.cpp does not know."""
    file.write_bytes(file.read_bytes().replace(b"llama", b"lxama"))


def newer(file: Path) -> None:
    """A tensor type that no package gguf knows yet."""
    change_type(file, "blk.0.ffn_up.weight", 1000)


def text(file: Path) -> None:
    file.write_text("no model")


def endless(file: Path) -> None:
    """A second template, for tools, that calls itself."""
    tiny_gguf(file, tokenizer__chat_template__tool_use="{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}")


@pytest.mark.parametrize(
    ("damage", "id"),
    [
        (endless, "Q-CHAT-008"),
        (cut, "Q-JUDGE-002"),
        (text, "Q-JUDGE-002"),
        (Path.unlink, "Q-JUDGE-002"),
        (strange, "Q-JUDGE-010"),
        (newer, "Q-JUDGE-014"),
    ],
)
def test_a_damaged_file_is_refused_by_its_id(model: Path, root: Path, damage: Any, id: str) -> None:
    bad = Path(shutil.copy(model, root / "bad.gguf"))
    damage(bad)
    found = quench("judge", model, bad, "--root", root)
    assert id in found.output
    assert "bad.gguf" in found.output
    assert damage is not strange or "'lxama'" in found.output  # what the server's log says


def test_what_cannot_be_judged_is_refused_before_anything_is_asked(model: Path, root: Path) -> None:
    bare = tiny_gguf(root / "bare.gguf", tokenizer__chat_template=None)
    part = tiny_gguf(root / "part.gguf", split__count=3)
    picky = tiny_gguf(root / "picky.gguf", tokenizer__chat_template="{{ raise_exception('no') }}")
    for id, words in {
        "Q-JUDGE-004": (bare,),
        "Q-JUDGE-003": (part,),
        "Q-JUDGE-005": (model, "--data", root / "none.jsonl"),
        "Q-METRICS-001": (model, "--scorer", "json_fields"),
        "Q-JUDGE-009": (model, "--ctx-size", 32),
        "Q-JUDGE-010": (picky,),
    }.items():
        assert id in quench("judge", model, *words, "--root", root).output
    write_params(root, Params.model_validate({"evaluate": {"scorers": []}}))
    assert "Q-JUDGE-007" in quench("judge", model, model, "--root", root).output
    assert not (root / "reports/judge").exists()


def test_the_command_needs_two_files_and_no_project(model: Path, root: Path) -> None:
    (root / "params.yaml").unlink()
    alone = quench("judge", model, "--root", root)
    assert alone.exit_code == 2
    assert "Q-JUDGE-001" in alone.output
    missing = quench("judge", root / "nosuch.gguf", "--root", root)
    assert missing.exit_code == 3
    assert "Q-JUDGE-002" in missing.output
    options = ("--root", root, "--ctx-size", CTX + 256, "--threads", 1, "--rows", 2)
    short = quench("judge", model, model, *options)
    assert "Q-JUDGE-013" in short.output  # answers of 256 tokens, as without a params.yaml, and 256 positions


def test_the_command_measures_as_its_options_say(model: Path, root: Path) -> None:
    tokens = read_header(model).fields["tokenizer.ggml.tokens"]
    other = tiny_gguf(root / "other.gguf", tokenizer__ggml__tokens=[*tokens[:-5], "zz", "yy", *tokens[-3:]])
    mine = shutil.copy(root / "data/final/test.jsonl", root / "mine.jsonl")
    options = {"--data": mine, "--rows": 2, "--scorer": "rouge_l", "--reference": model, "--memory": "8GB"}
    options |= {"--ctx-size": 192, "--threads": 1, "--gpu-layers": 0}
    words = [word for option in options.items() for word in option]
    report = judge(root, model, other, *words)
    assert ["kld" in report["files"][name]["divergence"] for name in ("sound", "other")] == [True, False]
    assert report == json.loads((root / "reports/judge.json").read_text())
    found = {key: report[key] for key in ("data", "rows", "scorers", "reference", "room_bytes")}
    assert found == {
        "data": "mine.jsonl",
        "rows": 2,
        "scorers": ["rouge_l"],
        "reference": "sound",
        "room_bytes": 8 * MEMORY_GB,
    }
    assert (report["ctx_size"], report["threads"], report["n_gpu_layers"]) == (192, 1, 0)
