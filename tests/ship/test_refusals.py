"""`quench ship` of files and reports of different runs, and of what the gate refuses, in each graph: nothing
is shipped, and each reason is a line.
"""

import contextlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import adapter_inputs
import pytest
import shipping
import tiny
import tuned_inputs
from golden import Golden
from shipping import change, flip, trained_again
from tiny_lora import tiny_lora

from pipeline.commands import ship as command
from pipeline.commands.project import Project
from pipeline.config.params import Params
from pipeline.config.tuners import SCALES_FILE
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.hashing import file_hash
from pipeline.gguf.provenance import BASE_FILE, adapter_fields, provenance

LEVEL, BASE, LORA = "models/gguf/demo-Q4_K_M.gguf", "models/base/model.gguf", "models/gguf/demo-lora.gguf"
Spoil = Callable[[Path], object]


def other_byte(name: str) -> Spoil:
    """The file is another one than its reports are about."""
    return lambda root: flip(root / name, -1)


def trained_since(name: str) -> Spoil:
    """Return a function that changes what was trained, so that the GGUF is of something else."""

    def spoil(root: Path) -> None:
        (root / "models/adapter" / name).write_bytes(b"trained since")
        trained_again(root)

    return spoil


def other_text(name: str, old: str, new: str) -> Spoil:
    """Answers under this name that were not counted."""

    def spoil(root: Path) -> None:
        text = (root / name).read_text(encoding="utf-8")
        (root / name).write_text(text.replace(old, new, 1), encoding="utf-8")

    return spoil


def changed(name: str, **values: Any) -> Spoil:
    return lambda root: change(root / name, **values)


def missing(name: str) -> Spoil:
    return lambda root: (root / name).unlink()


def other_model(name: str, *, like_it: bool = True, **fields: Any) -> Spoil:
    """The GGUF `name` says something else of itself, if `like_it` beside what it says; its reports follow."""

    def spoil(root: Path) -> None:
        own = {key.replace(".", "__"): value for key, value in provenance(root / name).items()}
        file = tiny.tiny_gguf(root / name, general__file_type=15, **(own if like_it else {}) | fields)
        report = root / f"reports/eval/{file.stem.removeprefix('demo-')}.json"
        change(report, sha256=file_hash(file), bytes=file.stat().st_size)
        files = json.loads((root / "reports/parity.json").read_text())["files"]
        change(root / "reports/parity.json", files=files | {file.name: file_hash(file)})

    return spoil


def other_heritage(root: Path) -> None:
    """Write a project whose tuned file names another merge than its base does."""
    shutil.rmtree(root)
    tuned_inputs.write_project(root, quench__merge__sha256="5e" * 32)
    other_model(f"models/gguf/{tuned_inputs.FILE}", quench__merge__sha256="6f" * 32)(root)


def other_lora(root: Path) -> None:
    """An adapter's GGUF of another base, with reports made for it."""
    fields = adapter_fields(root / "models/adapter") | {BASE_FILE: "00" * 32, "quench.base.source": "package"}
    file = tiny_lora(root / LORA, **{key.replace(".", "__"): value for key, value in fields.items()})
    report = root / "reports/eval/adapter.json"
    lora = {"file": file.name, "sha256": file_hash(file), "bytes": file.stat().st_size}
    change(report, lora=lora, bytes=json.loads(report.read_text())["bytes"])
    files = json.loads((root / "reports/parity.json").read_text())["files"]
    change(root / "reports/parity.json", files=files | {file.name: file_hash(file)})


def as_it_is(root: Path) -> None:
    """The gate is stricter."""


WEIGHTS = "adapter_model.safetensors"
MERGED: dict[str, Spoil] = {
    "other level": other_byte(LEVEL),
    "other adapter": trained_since(WEIGHTS),
    "other merge": changed("models/merged/merge.json", merge_base="16-bit"),
    "other model": other_model(LEVEL, like_it=False, quench__adapter__sha256="00" * 32),
    "says more": other_model(LEVEL, quench__data__rows=7),
    "other answers": other_text("reports/eval/Q4_K_M.answers.jsonl", "{", "{ "),
    "other base": changed("reports/eval/base-F16.json", sha256="00" * 32),
    "no reference": missing("models/gguf/demo-F16.gguf"),
    "strict gate": as_it_is,
}
ADAPTER: dict[str, Spoil] = {
    "other base": other_byte(BASE),
    "other adapter": trained_since(WEIGHTS),
    "other LoRA": other_lora,
    "other answers": other_text("reports/eval/base.answers.jsonl", "Describe", "Explain"),
    "not proven": changed("reports/parity.json", files={}),
    "no LoRA": missing(LORA),
    "strict gate": as_it_is,
}
TUNED: dict[str, Spoil] = {
    "other scales": trained_since(SCALES_FILE),
    "other base": lambda root: tiny.tiny_gguf(root / BASE, general__name="another"),
    "other reports": lambda root: (
        change(root / "reports/eval/tuned.json", sha256="0a" * 32),
        change(root / "reports/parity.json", files={}),
    ),
    "other heritage": other_heritage,
}
WAYS: dict[str, tuple[str, Callable[..., Path], Callable[..., Params], dict[str, Spoil]]] = {
    "merged": ("Q4_K_M", shipping.write_project, shipping.params, MERGED),
    "adapter": ("adapter", adapter_inputs.write_project, adapter_inputs.params, ADAPTER),
    "tuned": ("tuned", tuned_inputs.write_project, tuned_inputs.params, TUNED),
}


def printed(root: Path, params: Params, model: str) -> tuple[int, str]:
    """Exit code and what stands on standard error."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = command.main(Project(params, root), model, None, None)
    return code, errors.getvalue().replace(str(root), "ROOT")


@pytest.mark.parametrize(
    ("way", "case"), [(way, case) for way, (*_, spoils) in WAYS.items() for case in spoils]
)
def test_reports_about_other_files_are_refused(way: str, case: str, tmp_path: Path, snapshot: Any) -> None:
    model, write, params, spoils = WAYS[way]
    root, spoil = write(tmp_path), spoils[case]
    spoil(root)
    code, text = printed(root, params(**({"max_kld": 0.001} if spoil is as_it_is else {})), model)
    assert code == 5
    assert not (root / "models/bundle").exists()
    assert text == snapshot(extension_class=Golden)


@pytest.mark.parametrize(
    ("way", "model"),
    [
        *(("merged", model) for model in ("base-Q4_K_M", "Q2_K")),
        *(("adapter", model) for model in ("base", "Q4_K_M", "source")),
        *(("tuned", model) for model in ("adapter", "base", "Q4_0")),
    ],
)
def test_what_can_not_be_shipped_is_refused(way: str, model: str, tmp_path: Path) -> None:
    _, write, params, _ = WAYS[way]
    with pytest.raises(ConfigError, match="Q-SHIP-011: "):
        command.main(Project(params(), write(tmp_path / "project")), model, None, None)


def test_what_was_not_measured_or_is_gone_is_refused(tmp_path: Path) -> None:
    root, params = shipping.write_project(tmp_path / "merged"), shipping.params()
    models = params.evaluate.model_copy(update={"models": ["F16", "Q5_K_M"]})
    with pytest.raises(ConfigError, match="Q-SHIP-012: "):
        command.main(Project(params.model_copy(update={"evaluate": models}), root), "Q4_K_M", None, None)
    (root / LEVEL).unlink()
    with pytest.raises(DataError, match="Q-SERVE-002"):
        command.main(Project(params, root), "Q4_K_M", None, None)
    root = tuned_inputs.write_project(tmp_path / "tuned")
    (root / "models/adapter" / SCALES_FILE).unlink()
    with pytest.raises(DataError, match=rf"Q-SHIP-004: .*{SCALES_FILE}"):
        command.main(Project(tuned_inputs.params(), root), "tuned", None, None)


def test_without_the_base_here_its_record_says_whether_a_tuned_file_is_of_it(tmp_path: Path) -> None:
    root = tuned_inputs.write_project(tmp_path)
    params = tuned_inputs.params(("tuned",))

    def reasons() -> str:
        return " ".join(command.prepare(params, root, "tuned")[1])

    before = (root / BASE).read_bytes()
    tiny.tiny_gguf(root / BASE, general__name="another")  # it is looked at though nothing is compared with it
    assert "models/base.json" in reasons()
    (root / BASE).write_bytes(before)
    assert "models/base.json" not in reasons()
    (root / BASE).unlink()
    assert "model.gguf" not in reasons()
    change(root / "models/base.json", files={"model.gguf": "0b" * 32})
    assert "model.gguf" in reasons()
