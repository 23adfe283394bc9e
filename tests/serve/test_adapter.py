"""The adapters that may be served on a model, by their GGUFs' provenance records and shapes; how they are
given as arguments; `quench serve --lora` with the real one.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from make import change_params, ended
from tiny_lora import tiny_lora

from pipeline.core.errors import ConfigError, DataError
from pipeline.core.hashing import file_hash
from pipeline.gguf.provenance import BASE_FILE
from pipeline.llamacpp.server import free_port
from pipeline.serve import adapter as adapters
from pipeline.serve.adapter import Adapter, matching_adapter, matching_adapters, parse_adapter

OF_BASE: dict[str, Any] = {"quench__base__sha256": "a" * 64}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tiny.tiny_gguf(tmp_path / "base.gguf", **OF_BASE)


def of_file(model: Path) -> dict[str, str]:
    return {BASE_FILE.replace(".", "__"): file_hash(model)}


def test_the_adapter_of_the_very_file(tmp_path: Path) -> None:
    """The file is its publisher's, with no provenance of ours in it; and its hash decides, not the base's."""
    model = tiny.tiny_gguf(tmp_path / "model.gguf")
    other = tiny.tiny_gguf(tmp_path / "other.gguf", **OF_BASE, general__name="other")
    adapter = tiny_lora(tmp_path / "lora.gguf", **OF_BASE, **of_file(model))
    assert matching_adapter(model, adapter) == adapter
    with pytest.raises(DataError, match="Q-SERVE-012"):
        matching_adapter(other, adapter)


def test_a_file_of_gigabytes_is_hashed_once(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three = [
        Adapter(tiny_lora(tmp_path / f"{seed}.gguf", seed=seed, **of_file(base)), seed / 2)
        for seed in range(3)
    ]
    hashed: list[Path] = []
    monkeypatch.setattr(adapters, "file_hash", lambda path: hashed.append(path) or file_hash(path))
    assert matching_adapters(base, three) == three
    assert hashed == [base]
    assert matching_adapters(base, [Adapter(tiny_lora(tmp_path / "4.gguf", **OF_BASE))])
    assert hashed == [base]


@pytest.mark.parametrize(
    ("fields", "id"),
    [
        ({"quench__base__sha256": "b" * 64}, "Q-SERVE-012"),
        ({}, "Q-SERVE-012"),
        (OF_BASE | {"general__type": "model"}, "Q-SERVE-011"),
        (OF_BASE | {"arch": "qwen2"}, "Q-SERVE-012"),
    ],
)
def test_other_adapters_are_refused(base: Path, tmp_path: Path, fields: dict[str, str], id: str) -> None:
    with pytest.raises(DataError, match=id):
        matching_adapter(base, tiny_lora(tmp_path / "lora.gguf", **fields))


def test_models_that_take_none_are_refused(base: Path, tmp_path: Path) -> None:
    adapter = tiny_lora(tmp_path / "lora.gguf", **OF_BASE)
    with pytest.raises(ConfigError, match="Q-SERVE-010"):
        matching_adapter(
            tiny.tiny_gguf(tmp_path / "tuned.gguf", quench__adapter__sha256="c" * 64, **OF_BASE), adapter
        )
    # tuned further: the adapter is that very file's
    second = tiny.tiny_gguf(tmp_path / "second.gguf", quench__adapter__sha256="c" * 64, **OF_BASE)
    matching_adapter(second, tiny_lora(tmp_path / "more.gguf", quench__base_gguf__sha256=file_hash(second)))
    with pytest.raises(DataError, match="Q-SERVE-012"):
        matching_adapter(tiny.tiny_gguf(tmp_path / "other.gguf"), adapter)
    with pytest.raises(DataError, match="Q-SERVE-009"):
        matching_adapter(base, tmp_path / "nothing.gguf")
    with pytest.raises(DataError, match="Q-SERVE-011"):
        matching_adapter(base, base)


ODD = {
    "half": ({"blk.0.attn_q.weight.lora_b": None}, "holds one half of the pair for blk.0.attn_q.weight"),
    "elsewhere": (
        {f"blk.7.attn_q.weight.lora_{one}": np.ones((4, 4), np.float32) for one in "ab"},
        "changes blk.7.attn_q.weight, which base.gguf ",
    ),
    "columns": (
        {"blk.0.ffn_down.weight.lora_a": np.ones((4, 32), np.float32)},
        r"by 32×4 and 4×32, which doesn't fit 64×32 of base.gguf",
    ),
    "rows": (
        {"blk.0.attn_v.weight.lora_b": np.ones((16, 4), np.float32)},
        r"by 32×4 and 4×16, which doesn't fit 32×32 of base.gguf",
    ),
    "rank": (
        {"blk.0.attn_v.weight.lora_b": np.ones((32, 8), np.float32)},
        r"by 32×4 and 8×32, which doesn't fit 32×32 of base.gguf",
    ),
    "vector": ({"blk.0.attn_v.weight.lora_b": np.ones(32, np.float32)}, r"by 32×4 and 32, which doesn't fit"),
    "strange": (
        {"blk.0.attn_q.weight": np.ones((32, 32), np.float32)},
        "holds blk.0.attn_q.weight, which is not part of a LoRA",
    ),
}


@pytest.mark.parametrize("kind", ODD)
def test_shapes_that_do_not_fit_are_refused(base: Path, tmp_path: Path, kind: str) -> None:
    tensors, words = ODD[kind]
    with pytest.raises(DataError, match=words):
        matching_adapter(base, tiny_lora(tmp_path / "lora.gguf", tensors=tensors, **OF_BASE))


def test_an_adapter_of_the_embedding_lies_the_other_way_round(base: Path, tmp_path: Path) -> None:
    a, b = np.ones((261, 4), np.float32), np.ones((32, 4), np.float32)
    fits = {
        "token_embd.weight.lora_a": a,
        "token_embd.weight.lora_b": b,
        "blk.0.attn_norm.weight": np.ones(32, np.float32),
    }
    matching_adapter(base, tiny_lora(tmp_path / "fits.gguf", tensors=fits, **OF_BASE))
    turned = fits | {"token_embd.weight.lora_a": b, "token_embd.weight.lora_b": a}
    with pytest.raises(DataError, match=r"token_embd.weight by 4×32 and 4×261"):
        matching_adapter(base, tiny_lora(tmp_path / "other.gguf", tensors=turned, **OF_BASE))


def test_the_same_adapter_twice(base: Path, tmp_path: Path) -> None:
    one, two = (
        tiny_lora(tmp_path / f"{name}.gguf", seed=seed, **OF_BASE) for seed, name in enumerate(("one", "two"))
    )
    (tmp_path / "link.gguf").symlink_to(one)
    (tmp_path / "more").mkdir()
    named = tiny_lora(tmp_path / "more" / "one.gguf", seed=3, **OF_BASE)
    copies = [
        tiny_lora(tmp_path / f"copy{seed}.gguf", seed=seed, quench__adapter__sha256="c" * 64, **OF_BASE)
        for seed in range(2)
    ]
    matching_adapters(base, [Adapter(one), Adapter(two)])
    for twice in ([one, two, one], [one, tmp_path / "link.gguf"], [one, named], copies):
        with pytest.raises(ConfigError, match="Q-SERVE-008"):
            matching_adapters(base, [Adapter(file) for file in twice])


@pytest.mark.parametrize(
    ("word", "file", "scale"),
    [
        ("a.gguf", "a.gguf", 1),
        ("a.gguf=0.5", "a.gguf", 0.5),
        ("a.gguf=-1", "a.gguf", -1),
        ("b=c/a.gguf=0", "b=c/a.gguf", 0),
        ("a=b.gguf", "a=b.gguf", 1),  # which is there
        ("a=b.gguf=2", "a=b.gguf", 2),
    ],
)
def test_an_adapter_with_its_scale(
    word: str, file: str, scale: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a=b.gguf").touch()
    monkeypatch.chdir(tmp_path)
    assert parse_adapter(word) == Adapter(Path(file), scale)


@pytest.mark.parametrize("scale", ["", "much", "nan", "inf", "-inf", "1e60", "100.5"])
def test_a_scale_that_is_none(scale: str) -> None:
    with pytest.raises(ConfigError, match="Q-SERVE-007"):
        parse_adapter(f"a.gguf={scale}")


@pytest.mark.slow
def test_the_command_serves_the_adapter_on_the_base(finished: Path, tmp_path: Path) -> None:
    """The untrained tiny model's answer is cut off after few tokens: exit 5 says it was served and asked."""
    # what serve leaves in the shared project would have another process make that again, while it is in use
    root = shutil.copytree(finished, tmp_path / "project", symlinks=True)
    change_params(root, serve={"n_predict": 8, "port": free_port()})

    def serve(*words: str) -> Any:
        command = [sys.executable, "-m", "pipeline.cli", "serve", *words, "--smoke", "1", "--root", root]
        return ended(command, timeout=120)

    done = serve("base-F16", "--lora")
    assert done.returncode in (0, 5), done.stderr
    assert "Q-SERVE-005" in done.stderr or not done.returncode
    refused = serve("Q4_K_M", "--lora")
    assert refused.returncode == 2 and "Q-SERVE-010" in refused.stderr
