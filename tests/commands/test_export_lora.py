"""`quench export-lora`: the adapter in the weights says what base and adapter say together; nothing is
written of what doesn't belong together.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tiny
import yaml
from tiny_lora import ALPHA, RANK, SHAPES, tiny_lora

from pipeline.commands import export_lora as exporting
from pipeline.commands.export_lora import export_lora
from pipeline.config.params import load_params
from pipeline.core.errors import ConfigError, DataError, ToolError
from pipeline.core.hashing import file_hash
from pipeline.core.places import PROJECT
from pipeline.gguf.provenance import ADAPTER, BASE_FILE, provenance
from pipeline.llamacpp.converters import quantize_gguf
from pipeline.llamacpp.logits import open_gguf
from pipeline.llamacpp.tools import Toolchain
from pipeline.serve.adapter import Adapter, matching_adapter

IDS = [5, 6, 7, 40, 41]
Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]


def of_file(model: Path) -> dict[str, str]:
    return {
        BASE_FILE.replace(".", "__"): file_hash(model),
        "quench__adapter__sha256": "c" * 64,
        "general__license": "mit",
    }


def tensors(file: Path) -> Arrays:
    """Every tensor of a GGUF in float32, dequantized."""
    return {
        one.name: gguf.dequantize(one.data, one.tensor_type).reshape(tuple(one.shape)[::-1])
        for one in gguf.GGUFReader(file).tensors
    }


def logits(tools: Toolchain, model: Path, lora: Path | None = None) -> Any:
    with open_gguf(tools, model, ctx_size=32, threads=1, n_gpu_layers=0, lora=lora) as opened:
        return opened.logits(IDS, list(range(len(IDS))))


@pytest.fixture(params=["F16", "Q8_0", "Q4_0"])
def base(request: pytest.FixtureRequest, tools: Toolchain, tmp_path: Path) -> Path:
    file = tiny.tiny_gguf(tmp_path / "model.gguf")
    if request.param == "F16":
        return file
    quantize_gguf(tools, file, tmp_path / "level.gguf", request.param, 1)
    return tmp_path / "level.gguf"


@pytest.mark.parametrize("scale", [1.0, -0.5])
def test_the_weights_are_base_plus_adapter_rounded_once(
    base: Path, tools: Toolchain, tmp_path: Path, scale: float
) -> None:
    adapter, target = (
        tiny_lora(tmp_path / "a, b:c.gguf", **of_file(base)),
        tmp_path / "gguf" / "x-merged-F16.gguf",
    )
    if scale != 1:
        adapter = adapter.rename(tmp_path / "plain=name.gguf")
    made = export_lora(
        base=base, adapter=Adapter(adapter, scale), target=target, type="F16", threads=1, tools=tools
    )
    was, change, merged = tensors(base), tensors(adapter), tensors(target)
    assert merged.keys() == was.keys()
    for name, values in was.items():
        if name.removesuffix(".weight") not in SHAPES:
            assert np.array_equal(merged[name], values), name
            continue
        wanted = values + scale * ALPHA / RANK * change[f"{name}.lora_b"] @ change[f"{name}.lora_a"]
        assert np.abs(merged[name] - wanted).max() <= 2.0**-11 * np.abs(wanted).max() + 1e-6, name
    assert made["tensor_types"]["F16"] >= len(SHAPES)
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_it_says_what_base_and_adapter_say(base: Path, tools: Toolchain, tmp_path: Path) -> None:
    adapter, target = tiny_lora(tmp_path / "lora.gguf", size=0.2, **of_file(base)), tmp_path / "merged.gguf"
    export_lora(base=base, adapter=Adapter(adapter), target=target, type="F16", threads=1, tools=tools)
    alone, together, merged = logits(tools, base), logits(tools, base, adapter), logits(tools, target)
    # llama.cpp rounds activations to 8 bit where the base is quantized, and doesn't where it is F16
    assert np.abs(merged - together).max() < 0.1 * np.abs(alone - together).max()


def test_it_says_where_it_comes_from(tools: Toolchain, tmp_path: Path) -> None:
    base = tiny.tiny_gguf(tmp_path / "model.gguf")
    adapter, target = (
        tiny_lora(tmp_path / "lora.gguf", quench__odd="ä" * 64, **of_file(base)),
        tmp_path / "x-merged-F16.gguf",
    )
    export_lora(base=base, adapter=Adapter(adapter, 0.5), target=target, type="F16", threads=1, tools=tools)
    assert provenance(target) == {
        ADAPTER: "c" * 64,
        BASE_FILE: file_hash(base),
        "general.license": "mit",
        "general.name": "x-merged-F16",
        "quench.merge.method": "llama-export-lora",
        "quench.merge.scale": "0.5",
    }
    with pytest.raises(DataError, match="Q-SERVE-012"):
        matching_adapter(target, adapter)


def test_another_type_is_quantized_after_it(tools: Toolchain, tmp_path: Path) -> None:
    base = tiny.tiny_gguf(tmp_path / "model.gguf")
    quantize_gguf(tools, base, tmp_path / "level.gguf", "Q8_0", 1)
    adapter = tiny_lora(tmp_path / "lora.gguf", **of_file(tmp_path / "level.gguf"))
    made = export_lora(
        base=tmp_path / "level.gguf",
        adapter=Adapter(adapter),
        target=tmp_path / "m.gguf",
        type="Q5_0",
        threads=1,
        tools=tools,
    )
    assert made["tensor_types"].get("Q5_0", 0) >= len(SHAPES)
    assert provenance(tmp_path / "m.gguf")[ADAPTER] == "c" * 64


@pytest.mark.parametrize("type", ["Q9", "BF16", "Q4_0-imatrix", "IQ2_XXS"])
def test_types_that_it_can_not_make(tools: Toolchain, tmp_path: Path, type: str) -> None:
    base = tiny.tiny_gguf(tmp_path / "model.gguf")
    adapter = Adapter(tiny_lora(tmp_path / "lora.gguf", **of_file(base)))
    with pytest.raises(ConfigError, match=rf"Q-COMMANDS-010: --type is '{type}'"):
        export_lora(
            base=base, adapter=adapter, target=tmp_path / "out" / "x.gguf", type=type, threads=1, tools=tools
        )


def test_what_fails_leaves_what_was_there(
    tools: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, other = (
        tiny.tiny_gguf(tmp_path / "model.gguf"),
        tiny.tiny_gguf(tmp_path / "other.gguf", general__name="other"),
    )
    adapter, target = Adapter(tiny_lora(tmp_path / "lora.gguf", **of_file(base))), tmp_path / "out" / "x.gguf"
    target.parent.mkdir()
    target.write_text("before")

    def export(model: Path) -> None:
        export_lora(base=model, adapter=adapter, target=target, type="F16", threads=1, tools=tools)

    with pytest.raises(DataError, match="Q-SERVE-012"):
        export(other)
    monkeypatch.setattr(
        exporting, "run_tool", lambda command, cwd=None: "merged 3 tensors with lora adapters"
    )
    with pytest.raises(ToolError, match=r"Q-COMMANDS-011: .* 3 of 4 tensors of lora.gguf"):
        export(base)
    assert [(path.name, path.read_text()) for path in target.parent.iterdir()] == [("x.gguf", "before")]


def test_the_command(tmp_path: Path) -> None:
    values = load_params(PROJECT / "recipes" / "demo.yaml").model_dump(mode="json")
    values["base"] |= {"quantization": "gguf", "level": None}
    values["evaluate"]["models"] = ["base", "adapter"]
    values["serve"]["threads"] = 1
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(values))
    for name in ("base", "gguf"):
        (tmp_path / "models" / name).mkdir(parents=True)
    base = tiny.tiny_gguf(tmp_path / "models" / "base" / "model.gguf")
    tiny_lora(tmp_path / "models" / "gguf" / "demo-lora.gguf", **of_file(base))
    other = tiny_lora(tmp_path / "other.gguf", seed=2, **of_file(base))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pipeline.cli", "export-lora", *words, "--root", str(tmp_path)],
            capture_output=True,
            text=True,
            cwd=PROJECT,
            timeout=60,
            check=False,
        )

    done, merged = run(), tmp_path / "models/gguf/demo-merged-F16.gguf"
    assert (done.returncode, done.stdout) == (0, f"export-lora: {merged} 0 MB, 16.08 bits per weight\n"), (
        done.stderr
    )
    first = tensors(merged)["blk.0.attn_q.weight"]
    assert run("--adapter", f"{other}=0.5").returncode == 0
    assert not np.array_equal(
        tensors(tmp_path / "models/gguf/other-0.5-merged-F16.gguf")["blk.0.attn_q.weight"], first
    )
    assert np.array_equal(tensors(merged)["blk.0.attn_q.weight"], first)  # another pair, another file
    assert run("--type", "q8_0").returncode == 0
    assert (tmp_path / "models/gguf/demo-merged-Q8_0.gguf").exists()
    tiny.tiny_gguf(base, general__name="replaced")
    refused = run()
    assert (refused.returncode, refused.stderr.count("\n")) == (3, 1)
    assert "was trained on another file" in refused.stderr
