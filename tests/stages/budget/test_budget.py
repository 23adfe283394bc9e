"""budget: the file has the types that were chosen and at most its budget; a tensor that matters gets more
bits; the record says what was held against it.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from curating import chat
from gguf import GGUFReader
from kept import kept
from killed import kill_at
from qwen2_variants import cut_models

from pipeline.config.sections import Serve
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.hashing import file_hash
from pipeline.core.jsonl import write_rows
from pipeline.gguf.file import check_gguf
from pipeline.gguf.tensors import gguf_tensors
from pipeline.llamacpp.converters import HeaderFields, quantize_gguf, to_gguf
from pipeline.llamacpp.tools import Llama, Toolchain, find_toolchain
from pipeline.stages.budget import stage
from pipeline.stages.budget.stage import Files, budget
from pipeline.stages.parity.level_weights import level_weights

PLANTED = "blk.1.ffn_down.weight"


def chats(file: Path, count: int) -> Path:
    rows = [
        {"id": f"{n:016x}", "source": f"chats.jsonl:{n}"}
        | chat(f"Row {n}: what is {n} and {n + 1}?", f"It is {2 * n + 1}, or {n} twice and one more.")
        for n in range(count)
    ]
    write_rows(file, rows)
    return file


def test_rows_that_decide_are_of_the_entire_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Curation writes file by file."""
    monkeypatch.setattr(stage, "load_tokenizer", lambda _: None)
    monkeypatch.setattr(stage, "encodable", lambda _, rows, longest: iter([rows[0]["source"]] * 2))
    lines = [
        {"id": str(number), "source": f"{'ab'[number >= 200]}:{number}", "messages": []}
        for number in range(400)
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    rows = [str(one) for one in stage.deciding_rows(tmp_path, file, 256)]
    assert len(rows) == len(set(rows)) == 7
    assert {one[0] for one in rows} == {"a", "b"}
    file.write_text("")
    with pytest.raises(DataError, match="Q-BUDGET-007"):
        stage.deciding_rows(tmp_path, file, 256)


@pytest.fixture(scope="session")
def planted(tools: Toolchain) -> Path:
    """The tiny model, but what the last feed-forward matrix adds drowns all that comes before it."""

    def make(folder: Path) -> Path:
        import torch
        from safetensors.torch import load_file, save_file

        hf = Path(shutil.copytree(cut_models(tools) / "hf", folder / "hf"))
        tensors = load_file(hf / "model.safetensors")
        down = "model.layers.1.mlp.down_proj.weight"
        tensors[down] = (tensors[down].float() * 3000).to(torch.bfloat16)
        save_file(tensors, hf / "model.safetensors", metadata={"format": "pt"})
        to_gguf(tools, hf, folder / "tiny-F16.gguf", "F16", HeaderFields("tiny", "qwen2"))
        return folder

    return kept("planted-qwen2", make)


def run(model: Path, root: Path, text: str, tools: Toolchain) -> dict[str, Any]:
    root.mkdir(exist_ok=True)
    files = Files(
        source=model / "tiny-F16.gguf",
        merged=model / "hf",
        tokenizer=model / "hf",
        imatrix=None,
        val=chats(root / "val.jsonl", 24),
        target=root / f"tiny-{text}.gguf",
        scratch=root / ".budget" / text,
    )
    return budget(text, files, Llama(tools), serve=Serve(n_gpu_layers=99), longest=256)


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    try_few(monkeypatch)


def try_few(patch: pytest.MonkeyPatch) -> None:
    """Few rows, for speed."""
    patch.setattr("pipeline.stages.budget.stage.ROWS", 7)


def run_few(model: Path, root: Path, text: str) -> None:
    """`run` in a process that begins with nothing patched."""
    try_few(pytest.MonkeyPatch())
    run(model, root, text, find_toolchain())


@pytest.mark.slow
def test_the_file_has_the_types_that_were_chosen_and_at_most_its_budget(
    tools: Toolchain, tmp_path: Path
) -> None:
    model = cut_models(tools)
    text = "0.85MB"
    record = run(model, tmp_path, text, tools)
    file = tmp_path / f"tiny-{text}.gguf"
    assert record["bytes"] == file.stat().st_size <= record["most_bytes"] == 850_000
    _, tensors = gguf_tensors(file)
    free = {one.name for one in GGUFReader(model / "tiny-F16.gguf").tensors if len(one.shape) > 1}
    assert record["types"].keys() == free
    if record["chosen"] == "own":
        assert {name: tensors[name].type for name in free} == record["types"]
    else:
        level = tmp_path / "level.gguf"
        quantize_gguf(Llama(tools), model / "tiny-F16.gguf", level, record["rival"]["level"])
        assert file_hash(level) == file_hash(file)
    assert record["rival"]["bytes"] <= 850_000
    assert record["rows"] == 7
    assert (check_gguf(file).fields.get("quench.budget") == text) == (record["chosen"] == "own")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny-0.85MB.gguf", "val.jsonl"]


@pytest.mark.slow
def test_a_tensor_that_matters_gets_more_bits_than_its_like(
    planted: Path, tools: Toolchain, tmp_path: Path
) -> None:
    record = run(planted, tmp_path, "5bpw", tools)
    assert record["chosen"] == "own"  # no fixed level knows of it
    file = tmp_path / "tiny-5bpw.gguf"
    assert level_weights(planted / "tiny-F16.gguf", file, "5bpw", {"attn_v": "F16"}).verdict == "pass"
    assert gguf_tensors(file)[1][PLANTED].type == record["types"][PLANTED]
    per_weight = {one.name: one.n_bytes / one.n_elements for one in GGUFReader(file).tensors}
    alike = [name for name in record["types"] if name.startswith("blk.0.ffn_")]
    assert per_weight[PLANTED] > max(per_weight[name] for name in alike)


@pytest.mark.slow
def test_a_killed_job_that_runs_again_ends_with_the_same_bytes(tools: Toolchain, tmp_path: Path) -> None:
    model = cut_models(tools)
    wanted = run(model, tmp_path / "one", "5bpw", tools)
    place = "pipeline.stages.budget.search:compare_with_fixed_level"
    kill_at(place, 1, run_few, model, tmp_path / "two", "5bpw")
    assert not (tmp_path / "two/tiny-5bpw.gguf").exists()
    assert run(model, tmp_path / "two", "5bpw", tools) == wanted
    assert file_hash(tmp_path / "two/tiny-5bpw.gguf") == file_hash(tmp_path / "one/tiny-5bpw.gguf")


def test_a_budget_that_can_not_be_kept_is_refused_before_anything_is_measured(
    tools: Toolchain, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="Q-BUDGET-002"):
        run(cut_models(tools), tmp_path, "fits-1MB-at-99999999", tools)
    assert not (tmp_path / ".budget").exists()
