"""The weights' parity checks: each planted GGUF change is found and named, in the 16-bit file and a level."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_edit import (
    both_ends_swapped,
    change_fields,
    change_rows,
    change_tensors,
    light_copy,
    without,
    write_gguf,
)
from qwen2_variants import cut_models
from tiny import tiny_gguf

from pipeline.core.errors import ConfigError, DataError
from pipeline.gguf.tensors import NOISE, WORST_WEIGHT, gguf_tensors
from pipeline.llamacpp.converters import Quantizing, quantize_gguf
from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.stages.parity.gguf_weights import gguf_weights
from pipeline.stages.parity.level_weights import level_weights

UP, Q_BIAS, NORM = "blk.1.ffn_up.weight", "blk.0.attn_q.bias", "blk.0.attn_norm.weight"
Change = Callable[[Path], None]
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "tie_word_embeddings": True,
}
MOE = LLAMA | {"architectures": ["Qwen3MoeForCausalLM"]}


@pytest.fixture(scope="module")
def light(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The finished project's merged model and GGUFs without slow embeddings and vocabulary. Read only."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path_factory.mktemp("light")
    (folder / "merged").mkdir()
    shutil.copyfile(finished / "models/merged/config.json", folder / "merged/config.json")
    weights = load_file(finished / "models/merged/model.safetensors")
    del weights["model.embed_tokens.weight"]
    save_file(weights, folder / "merged/model.safetensors")
    for name in ("F16", "base-F16", "Q4_K_M", "Q5_K_M"):
        light_copy(
            finished / f"models/gguf/tiny-{name}.gguf", folder / f"tiny-{name}.gguf", "token_embd.weight"
        )
    return folder


def zeroed(rows: Any) -> Any:
    """Some bytes in the middle of the second row are 0: for Q4_K (144 bytes a block) a whole block."""
    changed = rows.copy()
    changed[1, :144] = 0
    return changed


def copied(source: Path, folder: Path, change: Change) -> Path:
    target = Path(shutil.copyfile(source, folder / source.name))
    change(target)
    return target


def write_pair(
    folder: Path, config: dict[str, Any], stored: dict[str, Any], written: dict[str, Any]
) -> tuple[Path, Path]:
    """A Hugging Face folder of float16 tensors and a GGUF of the arrays in `written`, each a model of its own
    making.
    """
    import torch
    from safetensors.torch import save_file

    from pipeline.gguf.families.registry import BY_CLASS

    save_file(
        {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in stored.items()},
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = {name: (values, int(values.dtype == np.float16)) for name, values in written.items()}
    family = BY_CLASS.get(config["architectures"][0])
    fields = {"general.architecture": family.name if family else "other"}
    return folder, write_gguf(folder / "model.gguf", tensors, fields)


def halves(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(0, 0.1, shape).astype(np.float16)


# --- reading ---


def test_tensors_that_do_not_lie_one_after_the_other_are_refused(light: Path, tmp_path: Path) -> None:
    data = bytearray((light / "tiny-F16.gguf").read_bytes())
    tensor = next(reversed(gguf_tensors(light / "tiny-F16.gguf")[1].values()))
    at = data.index(tensor.name.encode()) + len(tensor.name) + 4 + 8 * len(tensor.shape) + 4
    data[at : at + 8] = bytes(8)  # the last tensor's offset
    (tmp_path / "bad.gguf").write_bytes(data)
    with pytest.raises(DataError, match="one after the other"):
        gguf_tensors(tmp_path / "bad.gguf")


# --- merged model → 16-bit GGUF ---


def test_the_gguf_of_the_merged_model_is_equal_bit_for_bit(finished: Path) -> None:
    check = gguf_weights(finished / "models/merged", finished / "models/gguf/tiny-F16.gguf")
    assert (check.verdict, check.figure, check.limit) == ("pass", 0.0, 0.0)
    assert "26 tensors" in check.sentence


def test_the_base_and_its_gguf_are_not_called_the_merged_model(finished: Path) -> None:
    checks = json.loads((finished / "reports/parity.json").read_text(encoding="utf-8"))["checks"]
    assert "the untuned base" in checks["weights_base"]["title"]
    assert "merged" not in checks["weights_base"]["title"] + checks["weights_base"]["what"]
    assert "the merged model" in checks["weights_gguf"]["title"]


@pytest.mark.parametrize(
    ("change", "detail", "cause"),
    [
        (
            lambda file: change_rows(file, UP, both_ends_swapped),
            f"{UP}: 2 of 256 rows differ, first row 0",
            "in another order",
        ),
        (
            lambda file: change_rows(file, UP, zeroed),
            f"{UP}: 1 of 256 rows differ, first row 1 at 0",
            "zeroed",
        ),
        (
            lambda file: change_rows(file, NORM, lambda rows: rows ^ 1),
            f"{NORM}: 256 of 256 rows differ",
            "changed or damaged",
        ),
        (
            lambda file: change_tensors(file, without(Q_BIAS)),
            f"{Q_BIAS}: is in the merged model and not in the GGUF",
            "bias was lost",
        ),
    ],
    ids=["shuffled rows", "zeroed block", "flipped bits", "missing bias"],
)
def test_a_change_in_the_gguf_is_named(
    light: Path, tmp_path: Path, change: Change, detail: str, cause: str
) -> None:
    check = gguf_weights(light / "merged", copied(light / "tiny-F16.gguf", tmp_path, change))
    assert (check.verdict, check.figure) == ("fail", 1.0)
    assert detail in check.sentence
    assert cause in check.remedy


def test_the_gguf_of_another_model_or_level_is_named(light: Path) -> None:
    other = gguf_weights(light / "merged", light / "tiny-base-F16.gguf")  # the untuned base
    assert (other.verdict, other.figure) == ("fail", 14.0)  # the adapted tensors
    assert "another model" in other.remedy
    level = gguf_weights(light / "merged", light / "tiny-Q4_K_M.gguf")
    assert level.verdict == "fail"
    assert "quantized tensors" in level.sentence


def test_an_unknown_architecture_is_not_measured(tmp_path: Path) -> None:
    tensors = {"model.embed_tokens.weight": halves(8, 4)}
    folder, file = write_pair(
        tmp_path,
        LLAMA | {"architectures": ["OtherForCausalLM"]},
        tensors,
        {"token_embd.weight": halves(8, 4)},
    )
    check = gguf_weights(folder, file)
    assert (check.verdict, check.figure) == ("not measured", None)
    assert "OtherForCausalLM" in check.sentence and "token_embd.weight" in check.sentence


@pytest.mark.parametrize(
    ("tied", "stored", "written", "expected"),
    [
        (True, ["embed"], ["embed"], None),
        (True, ["embed"], ["embed", "head = embed"], None),
        (True, ["embed", "head"], ["embed"], None),
        (False, ["embed", "head"], ["embed", "head"], None),
        (False, ["embed", "head"], ["embed"], "The head was dropped"),
        (False, ["embed"], ["embed"], "The merged model lost its head"),
        (True, ["embed"], ["embed", "head"], "changed or damaged"),
    ],
)
def test_heads(
    tmp_path: Path, tied: bool, stored: list[str], written: list[str], expected: str | None
) -> None:
    embed, head = halves(8, 4), halves(8, 4) + np.float16(1)
    ours = {"embed": ("model.embed_tokens.weight", embed), "head": ("lm_head.weight", head)}
    theirs = {
        "embed": ("token_embd.weight", embed),
        "head": ("output.weight", head),
        "head = embed": ("output.weight", embed),
    }
    folder, file = write_pair(
        tmp_path,
        LLAMA | {"tie_word_embeddings": tied},
        dict(ours[key] for key in stored),
        dict(theirs[key] for key in written),
    )
    check = gguf_weights(folder, file)
    assert check.verdict == ("fail" if expected else "pass")
    assert (expected or "") in check.remedy


def test_llamas_rotary_order_is_undone(tmp_path: Path) -> None:
    """Query rows as llama.cpp wants them: of each head of 4, rows 0, 2, 1, 3; unordered, they are found."""
    q, bias = halves(8, 4), halves(8)
    order = [0, 2, 1, 3, 4, 6, 5, 7]
    stored = {"model.layers.0.self_attn.q_proj.weight": q, "model.layers.0.self_attn.q_proj.bias": bias}
    written = {"blk.0.attn_q.weight": q[order], "blk.0.attn_q.bias": bias[order].astype(np.float32)}
    folder, file = write_pair(tmp_path, LLAMA, stored, written)
    assert gguf_weights(folder, file).verdict == "pass"
    change_rows(file, "blk.0.attn_q.weight", lambda rows: rows[order])
    check = gguf_weights(folder, file)
    assert (check.verdict, check.figure) == ("fail", 1.0)
    assert "in another order" in check.remedy


@pytest.mark.parametrize("fused", [False, True])
def test_experts_are_found_in_one_tensor(tmp_path: Path, fused: bool) -> None:
    gate, up, down = halves(12, 6, 4), halves(12, 6, 4) * 2, halves(12, 4, 6)
    layer = "model.layers.0.mlp.experts"
    single = {
        f"{layer}.{e}.{n}.weight": w[e]
        for n, w in (("gate_proj", gate), ("up_proj", up), ("down_proj", down))
        for e in range(12)
    }
    stored = (
        {f"{layer}.gate_up_proj": np.concatenate([gate, up], axis=1), f"{layer}.down_proj": down}
        if fused
        else single
    )
    written = {
        "blk.0.ffn_gate_exps.weight": gate,
        "blk.0.ffn_up_exps.weight": up,
        "blk.0.ffn_down_exps.weight": down,
    }
    folder, file = write_pair(tmp_path, MOE, stored, written)
    assert gguf_weights(folder, file).verdict == "pass"
    change_rows(file, "blk.0.ffn_up_exps.weight", both_ends_swapped)
    found = gguf_weights(folder, file).sentence
    assert "ffn_up_exps" in found and "2 of 72" in found


def test_a_value_too_large_for_f16_is_named(tmp_path: Path) -> None:
    large = np.full((8, 4), 1e6, np.float32)
    with np.errstate(over="ignore"):
        folder, file = write_pair(
            tmp_path,
            LLAMA,
            {"model.embed_tokens.weight": large},
            {"token_embd.weight": large.astype(np.float16)},
        )
    check = gguf_weights(folder, file)
    assert check.verdict == "fail"
    assert "not finite" in check.sentence


# --- 16-bit GGUF → level ---


def measured(light: Path, level: Path, name: str = "Q4_K_M") -> Any:
    return level_weights(light / "tiny-F16.gguf", level, name)


def test_a_levels_noise_is_that_of_its_types(finished: Path) -> None:
    gguf = finished / "models/gguf"
    check = level_weights(gguf / "tiny-F16.gguf", gguf / "tiny-Q4_K_M.gguf", "Q4_K_M")
    assert check.verdict == "pass"
    assert 0 < check.figures["rmse_mean"] < check.figures["rmse_worst"]
    assert 0.05 < check.figures["rmse_worst"] < NOISE["Q4_K"]


def test_a_level_with_an_importance_matrix_is_the_same_level(light: Path) -> None:
    assert measured(light, light / "tiny-Q4_K_M.gguf", "q4_k_m-imatrix").verdict == "pass"


@pytest.mark.parametrize(
    ("change", "what", "cause"),
    [
        (
            lambda file: change_rows(file, UP, both_ends_swapped),
            "blocks that hold nothing",
            f"rows of {UP} are in another order, row 0 is 255",
        ),
        (
            lambda file: change_rows(file, UP, zeroed),
            "blocks that hold nothing",
            f"A block of {UP} is zeroed",
        ),
        (
            lambda file: change_rows(file, UP, lambda rows: rows ^ 0x55),
            "blocks that hold nothing",
            f"weights of {UP} are others",
        ),
        (
            lambda file: change_tensors(file, without(Q_BIAS)),
            "tensors that only one side has",
            "tensors were lost",
        ),
        (
            lambda file: change_fields(file, {"general.file_type": 17}),
            "files of another level",
            "another level has the name",
        ),
        (lambda file: change_tensors(file, reversed_contents), "blocks that hold nothing", "another model"),
        (
            lambda file: change_rows(file, UP, scale_of_a_block),
            "in multiples of what its type costs",
            f"row 5 of {UP} is off",
        ),
        (
            lambda file: change_rows(file, UP, bit_of_a_weight),
            "in multiples of what its type costs",
            f"row 7 of {UP} is off",
        ),
    ],
    ids=[
        "shuffled rows",
        "zeroed block",
        "other bits",
        "missing bias",
        "file type",
        "another model",
        "scale of a block",
        "bit of a weight",
    ],
)
def test_a_change_in_a_level_is_named(
    light: Path, tmp_path: Path, change: Change, what: str, cause: str
) -> None:
    check = measured(light, copied(light / "tiny-Q4_K_M.gguf", tmp_path, change))
    assert check.verdict == "fail"
    assert what in check.what
    assert cause in check.remedy


def scale_of_a_block(rows: Any) -> Any:
    """The float16 scale of a Q4_K block, a fifth larger."""
    rows = rows.copy()
    rows[5, :2] = (np.ascontiguousarray(rows[5, :2]).view(np.float16) * np.float16(1.2)).view(np.uint8)
    return rows


def bit_of_a_weight(rows: Any) -> Any:
    """The highest bit of one Q4_K weight."""
    rows = rows.copy()
    rows[7, 16] ^= 0x08
    return rows


def reversed_contents(tensors: Any) -> Any:
    """Every tensor's blocks in reverse, as good as another model's weights."""
    sizes = {12: 144, 14: 210, 0: 4, 8: 34}
    return {
        name: (shape, ggml_type, np.frombuffer(data, np.uint8).reshape(-1, sizes[ggml_type])[::-1].tobytes())
        for name, (shape, ggml_type, data) in tensors.items()
    }


def test_another_level_under_a_levels_name_is_named(light: Path, tmp_path: Path) -> None:
    check = measured(light, light / "tiny-Q5_K_M.gguf")
    assert check.verdict == "fail" and check.sentence.endswith("Q5_K_M")
    forged = copied(
        light / "tiny-Q5_K_M.gguf", tmp_path, lambda file: change_fields(file, {"general.file_type": 15})
    )
    check = measured(light, forged)
    assert check.verdict == "fail" and "is Q4_K: Q5_K" in check.sentence


MOE_TYPES = {
    "blk.0.attn_q.weight": "Q8_0",
    "blk.0.ffn_up_exps.weight": "MXFP4",
    "blk.0.ffn_down_exps.weight": "MXFP4",
}


@pytest.mark.parametrize(
    ("types", "detail"),
    [
        (MOE_TYPES, "3 tensors"),
        (
            {"blk.0.attn_q.weight": "Q8_0", "blk.0.ffn_up.weight": "Q8_0"},
            "2 tensors",
        ),  # llama-quantize gives a model without experts Q8_0
        (dict.fromkeys(MOE_TYPES, "Q8_0"), "no query or feed-forward tensor is MXFP4: Q8_0"),
    ],
    ids=["experts", "no experts", "experts in Q8_0"],
)
def test_mxfp4_moe_is_mxfp4_where_there_are_experts(
    tmp_path: Path, types: dict[str, str], detail: str
) -> None:
    import gguf

    for file in ("F16.gguf", "level.gguf"):
        tensors = {}
        for name, ggml_type in types.items():
            rows = halves(*(4,) * ("_exps" in name), 8, 256).astype(np.float32)
            tensors[name] = rows, gguf.GGMLQuantizationType["F16" if file == "F16.gguf" else ggml_type]
        fields = {"general.file_type": int(gguf.LlamaFileType.MOSTLY_MXFP4_MOE)}
        write_gguf(tmp_path / file, tensors, fields | {"general.architecture": "qwen2moe"})
    check = level_weights(tmp_path / "F16.gguf", tmp_path / "level.gguf", "MXFP4_MOE")
    assert (check.verdict, check.sentence.split(";")[0]) == (
        "fail" if detail.startswith("no") else "pass",
        detail,
    )


GIVEN = {
    "all that tell": {"attn_q|ffn_(up|gate)": "q8_0"},
    "the first pattern wins": {"BLK.0.FFN_UP": "Q6_K", "attn_q|ffn_": "Q5_K"},
    "norms stay": {r"^blk\.0\.": "Q5_K"},
    "the level's own type": {"ffn_up": "Q4_K"},
}


@pytest.mark.parametrize("tensor_types", GIVEN.values(), ids=GIVEN)
def test_types_given_by_name_are_no_other_level(
    tensor_types: dict[str, str], tools: Toolchain, tmp_path: Path
) -> None:
    gguf, level = cut_models(tools) / "tiny-F16.gguf", tmp_path / "tiny-Q4_K_M.gguf"
    quantize_gguf(Llama(tools), gguf, level, "Q4_K_M", Quantizing(tensor_types=tensor_types))
    check = level_weights(gguf, level, "Q4_K_M", tensor_types)
    assert check.verdict == "pass", check.sentence


def test_a_type_that_short_rows_can_not_have_is_given_to_the_others(tools: Toolchain, tmp_path: Path) -> None:
    wide = {f"blk.0.ffn_{name}.weight": halves(256, 32) for name in ("up", "gate")}
    gguf = tiny_gguf(
        tmp_path / "tiny-F16.gguf",
        tensors=wide | {"blk.0.ffn_down.weight": halves(32, 256)},
        llama__feed_forward_length=256,
    )
    level, types = tmp_path / "tiny-Q4_K_M.gguf", {"ffn": "Q6_K"}
    quantize_gguf(Llama(tools), gguf, level, "Q4_K_M", Quantizing(tensor_types=types))
    check = level_weights(gguf, level, "Q4_K_M", types)
    assert check.verdict == "pass", check.sentence


@pytest.mark.parametrize(
    ("tensor_types", "first", "count"),
    [
        ({"blk.1.ffn_up": "Q6_K"}, UP, 1.0),
        ({"ffn_(up|down)": "Q6_K"}, "blk.0.ffn_down.weight", 3.0),  # the level itself has it of one of four
        ({"attn_norm": "Q6_K"}, "blk.0.attn_norm.weight", 2.0),  # where nothing can have the type
    ],
)
def test_a_level_from_before_its_tensors_types_were_given_is_named(
    light: Path, tensor_types: dict[str, str], first: str, count: float
) -> None:
    level = light / "tiny-Q4_K_M.gguf"
    check = level_weights(light / "tiny-F16.gguf", level, "Q4_K_M", tensor_types)
    assert (check.verdict, check.figure) == ("fail", count), check.sentence
    assert check.sentence.startswith(first) and "not Q6_K" in check.sentence
    assert f"{level.name}`" in check.remedy
    with pytest.raises(ConfigError, match="in no tensor name"):
        level_weights(light / "tiny-F16.gguf", level, "Q4_K_M", {"ffn_upp": "Q6_K"})


def test_noise_beyond_the_slack_fails(light: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.stages.parity.level_weights.SLACK", 0.1)
    check = level_weights(light / "tiny-F16.gguf", light / "tiny-Q4_K_M.gguf", "Q4_K_M")
    assert check.verdict == "fail"
    assert check.figure > 0.1


@pytest.mark.parametrize("ggml_type", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16"])
def test_the_table_of_noise_holds_for_normal_weights(ggml_type: str) -> None:
    """For the types that the package gguf can make; the table is the worst of several distributions."""
    import gguf

    values = np.random.default_rng(0).normal(size=(64, 1024)).astype(np.float32)
    number = gguf.GGMLQuantizationType[ggml_type]
    rounded = gguf.dequantize(gguf.quantize(values, number), number)
    rmse = float(np.linalg.norm(rounded - values) / np.linalg.norm(values))
    assert NOISE[ggml_type] / 3 < rmse < NOISE[ggml_type]
    block = gguf.GGML_QUANT_SIZES[number][0] if ggml_type != "BF16" else 1024
    errors, sizes = (np.abs(one).reshape(-1, block).max(axis=1) for one in (rounded - values, values))
    worst = float((errors / sizes).max())
    assert WORST_WEIGHT[ggml_type] / 3 < worst <= WORST_WEIGHT[ggml_type]
