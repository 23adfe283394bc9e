"""pipeline.gate.inputs: what the other stages left is read; what is missing, damaged or of another model is
one error that names file and stage.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from report_inputs import MODELS, put, write_inputs

from pipeline.config.params import Params
from pipeline.core.errors import DataError
from pipeline.gate.inputs import Inputs, load_inputs

SHA = "0" * 64
REPORTS = ("data", "labels", "train", "merge", "strategies", "parity")
MOST = 10**18
MAKERS = {
    "reports/data.json": "curate",
    "reports/labels.json": "preprocess",
    "reports/train.json": "train",
    "reports/train.csv": "train",
    "reports/merge.json": "merge",
    "reports/strategies.json": "compare",
    "reports/parity.json": "parity",
    "models/base.json": "base",
    "reports/eval/Q4_K_M.json": "evaluate@Q4_K_M",
    "reports/eval/Q4_K_M.answers.jsonl": "evaluate@Q4_K_M",
}
DATA, TRAIN, PARITY, BASE, LEVEL, ANSWERS = (list(MAKERS)[place] for place in (0, 2, 6, 7, 8, 9))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = write_inputs(tmp_path)
    put(root / "reports/strategies.json", {"seeds": []})
    return root


def load(root: Path) -> Inputs:
    levels = [model for model in MODELS if "F16" not in model]
    params = {
        "quantize": {"levels": levels},
        "evaluate": {"models": list(MODELS)},
        "compare": {"seeds": [42]},
    }
    return load_inputs(root, Params.model_validate(params))


def change(root: Path, file: str, place: str, value: Any) -> None:
    """Set what lies at `place` (keys with dots between) in a JSON file."""
    record = json.loads((root / file).read_text(encoding="utf-8"))
    *path, last = place.split(".")
    inner = record
    for key in path:
        inner = inner.setdefault(key, {})
    inner[last] = value
    put(root / file, record)


def test_every_report_is_read(root: Path) -> None:
    found = load(root)
    files = {f"reports/{name}.json": getattr(found, name) for name in REPORTS} | {BASE: found.base}
    files |= {f"reports/eval/{model}.json": evaluation for model, evaluation in found.evaluations.items()}
    for file, record in files.items():  # to the byte: a bundle has them as evidence
        value = json.loads((root / file).read_text(encoding="utf-8"))
        assert json.dumps(record.written(), sort_keys=True) == json.dumps(value, sort_keys=True)
    assert len(found.log) == 50
    assert found.metrics_log
    assert list(found.evaluations) == list(found.answers) == list(MODELS)
    assert found.evaluations["Q4_K_M"].model == "Q4_K_M"
    assert len(found.answers["Q4_K_M"]) == 64
    for model in MODELS:
        change(root, f"reports/eval/{model}.json", "task", None)
    (root / "reports/train.jsonl").unlink()
    found = load(root)
    assert (found.answers, list(found.metrics_log)) == ({}, [])


@pytest.mark.parametrize(("file", "maker"), MAKERS.items())
def test_what_is_damaged_or_missing_is_named_with_its_stage(root: Path, file: str, maker: str) -> None:
    damages = (b"{", b"[]", b"1", b'{"a": ' * 40 + b"1" + b"}" * 40)
    for damage in (b"\xff", *(damages if file.endswith("json") else ())):
        (root / file).write_bytes(damage)
        with pytest.raises(DataError, match=rf"Q-(GATE-001|CORE-006): .*{re.escape(file)}.* again"):
            load(root)
    if file == LEVEL:
        (root / ANSWERS).unlink()
    (root / file).unlink()
    with pytest.raises(DataError, match=rf"Q-CORE-001: .*{re.escape(file)} .*quench run {maker}`"):
        load(root)


TIED = {"kept": "a", "kept_type": "F16", "dropped": "b", "dropped_type": "Q6_K", "farthest_row": 0.0}
SUMS = {"tokens": [1], "kld": [0.1], "same": [0]}


@pytest.mark.parametrize(
    ("file", "place", "read", "refused"),
    [
        (DATA, "rows_kept", [0, MOST], [-1, MOST + 1, 1.5, "1", True, None]),
        (DATA, "rejected", [{}, {"a": 0}], [{"a": -1}, [], None]),
        (DATA, "splits", [{}], [{"train": "1"}]),
        (DATA, "rows_rejected", [None, "what no rule names"], []),
        (TRAIN, "loss_last", [-float(MOST), float(MOST), None], [1.1e18, -1.1e18, "0.1"]),
        (TRAIN, "method", ["sft", "dpo"], ["other"]),
        (TRAIN, "run.versions", [{"torch": None}], [{"torch": 2}]),
        (
            TRAIN,
            "preferences",
            [None, {"items": 1, "accuracy": 0.0, "low": 0.0, "high": 1.0}],
            [{"items": 1, "accuracy": 1.1, "low": 0.0, "high": 1.0}, {"items": 1}],
        ),
        (PARITY, "verdict", ["pass", "fail"], ["unknown", None]),
        (PARITY, "checks", [], [{}, {"a": {}}]),
        (PARITY, "files", [{}, {"a": SHA}], [None, {"a": SHA[1:]}, {"a": SHA + "0"}, {"a": "G" * 64}]),
        (BASE, "source", ["hub", "path", "gguf", "package"], ["web"]),
        (BASE, "model", ["m"], ["", None]),
        (BASE, "files", [{"a": SHA}], [{}, {"a/b": SHA}, {"a\\b": SHA}, {"": SHA}, {"a": ""}]),
        (BASE, "architecture.architectures", [None, ["m"]], [[""], "m"]),
        (
            BASE,
            "tied",
            [None, TIED, TIED | {"farthest_row": 1.0}],
            [TIED | {"farthest_row": 1.01}, TIED | {"farthest_row": -0.01}, TIED | {"kept": ""}],
        ),
        (LEVEL, "bytes", [1, MOST], [0, MOST + 1]),
        (LEVEL, "ctx_size", [1, MOST], [0, MOST + 1, None]),
        (LEVEL, "file", ["a.gguf"], ["a/b.gguf", ""]),
        (LEVEL, "sha256", [SHA], ["0"]),
        (LEVEL, "task.score", [0.0, 1.0, None], [-0.01, 1.01]),
        (LEVEL, "task.score_low", [0.0], [None]),
        (LEVEL, "task.score_high", [1.0], [None]),
        (LEVEL, "task.scores", [None, {"judge": {}}], [{"judge": {"measured": -1}}]),
        (LEVEL, "general.right", [[0, 1]], [[], [2]]),
        (LEVEL, "general", [None], [{"file": "builtin"}]),
        (LEVEL, "serving.ctx_size", [None, 0], [-1]),
        (LEVEL, "kv_cache_bytes", [None, 0], [-1]),
        (LEVEL, "all_tokens", [{"kld_mean": None}], [None, {"same_top": "1"}]),
        (LEVEL, "kld_mean", [None, 0, -1.0], ["0.01", True, 1.1e18]),
        (LEVEL, "reference", ["F16"], [None]),
        (
            LEVEL,
            "by_row.assistant",
            [SUMS],
            [SUMS | {"tokens": [1, 2]}, SUMS | {"kld": []}, SUMS | {"same": [0, 1]}],
        ),
        (LEVEL, "lora", [None, {"file": "a", "sha256": SHA, "bytes": 0}], [{"file": "a", "bytes": 1}]),
    ],
)
def test_a_figure_that_no_stage_writes_is_refused_by_its_key(
    root: Path, file: str, place: str, read: list[Any], refused: list[Any]
) -> None:
    for value in read:
        change(root, file, place, value)
        load(root)
    for value in refused:
        change(root, file, place, value)
        with pytest.raises(DataError, match=rf"Q-GATE-001: .*{re.escape(file)}.*{place.split('.')[0]}"):
            load(root)


def test_every_key_that_lacks_and_the_first_three_that_are_damaged_are_named(root: Path) -> None:
    put(root / LEVEL, {"task": None, "bytes": 0, "ctx_size": 0, "sha256": "", "file": "", "\x1b[31m": 1})
    with pytest.raises(DataError, match=r"lacks reference, tensors, .*same_top.* and is damaged") as caught:
        load(root)
    assert "and 1 more" in str(caught.value)
    put(root / LEVEL, {"task": None, "bytes": 0, "ctx_size": 0, "sha256": ""})
    with pytest.raises(DataError) as caught:
        load(root)
    assert "more)" not in str(caught.value)
    change(root, BASE, "architecture.architectures", "m")
    with pytest.raises(DataError, match=r"is damaged \(architecture\.architectures: "):
        load(root)


@pytest.mark.parametrize("row", [{"id": ""}, {"score": 1.5}, {"score": None, "id": 3}])
def test_a_damaged_answer_is_named_by_its_row(root: Path, row: dict[str, Any]) -> None:
    lines = (root / ANSWERS).read_text(encoding="utf-8").splitlines(keepends=True)
    lines[1] = json.dumps(json.loads(lines[1]) | row) + "\n"
    (root / ANSWERS).write_text("".join(lines), encoding="utf-8")
    with pytest.raises(DataError, match=rf"Q-GATE-001: .*, row 2 is damaged \({next(reversed(row))}: "):
        load(root)


def test_figures_and_answers_of_something_else_are_refused(root: Path) -> None:
    change(root, LEVEL, "model", "Q5_K_M")
    with pytest.raises(DataError, match=r"Q-GATE-002: .*Q4_K_M\.json"):
        load(root)
    change(root, LEVEL, "model", "Q4_K_M")
    first, *others = (root / ANSWERS).read_text(encoding="utf-8").splitlines(keepends=True)
    for lines in (others, [*others, first]):
        (root / ANSWERS).write_text("".join(lines), encoding="utf-8")
        with pytest.raises(DataError, match=r"Q-GATE-002: reports/eval/Q4_K_M\.answers\.jsonl"):
            load(root)
