"""The merge's plan and sums on a few small matrices: each tensor against a formula, each misfit refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from pipeline.core.errors import DataError
from pipeline.core.hashing import json_hash
from pipeline.gguf.safetensors_rows import read_folder, read_header
from pipeline.models.merging.adapter import read_adapter, weights_of
from pipeline.models.merging.compute import Rows, round_once
from pipeline.models.merging.inputs import (
    Structure,
    TrainedRun,
    check_same_base,
    copy_settings,
    need_nf4,
    read_run,
    structure,
)
from pipeline.models.merging.judge import Assumption, tensor_error
from pipeline.models.merging.nf4 import Nf4
from pipeline.models.merging.plan import Plan, plan

Tensors = dict[str, Any]
EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
Q, OUT, MOE, FUSED = "model.q", "model.out", "model.moe", "model.fused"
EXPERTS, RANK, ALPHA = 3, 2, 3
# parameters by the model's names, and where the checkpoint has an expert's linears apart
SHAPES = {
    EMBEDDING: (6, 4),
    f"{Q}.weight": (8, 4),
    f"{Q}.bias": (8,),
    f"{OUT}.weight": (4, 8),
    f"{MOE}.gate_up_proj": (EXPERTS, 10, 4),
    f"{MOE}.down_proj": (EXPERTS, 4, 5),
    f"{FUSED}.gate_up_proj": (EXPERTS, 4, 10),
    NORM: (4,),
    HEAD: (6, 4),
}
APART = {"gate_proj": (5, 4), "up_proj": (5, 4), "down_proj": (4, 5)}
QUANTIZED = frozenset({f"{Q}.weight", f"{MOE}.0.up_proj.weight", HEAD})
TRANSPOSED = frozenset({f"{OUT}.weight", f"{FUSED}.gate_up_proj"})
MODEL = Structure(SHAPES, QUANTIZED, TRANSPOSED, EMBEDDING, HEAD, tied=False)
TIED = replace(MODEL, tied=True)
SILENT = {"task_type": "CAUSAL_LM", "lora_dropout": 0.1, "later": None, "init_lora_weights": "gaussian"}
TARGETS = ["moe.gate_up_proj", "moe.down_proj", "fused.gate_up_proj"]


def randoms(shapes: dict[str, tuple[int, ...]], seed: int) -> Tensors:
    random = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=random) for name, shape in shapes.items()}


def base_tensors() -> Tensors:
    stored = {name: shape for name, shape in SHAPES.items() if MOE not in name}
    apart = {f"{MOE}.{number}.{part}.weight": APART[part] for number in range(EXPERTS) for part in APART}
    return randoms(stored | apart, 1)


def lora(path: str, inputs: int, outputs: int, rank: int = RANK) -> dict[str, tuple[int, ...]]:
    return {f"{path}.lora_A.weight": (rank, inputs), f"{path}.lora_B.weight": (outputs, rank)}


TABLE_A, TABLE_B, LENGTHS = (
    f"{EMBEDDING[:-7]}.lora_{part}" for part in ("embedding_A", "embedding_B", "magnitude_vector")
)
PLAIN = lora(Q, 4, 8) | {f"{Q}.lora_B.bias": (8,)} | lora(OUT, 4, 8)
TABLE: dict[str, tuple[int, ...]] = {TABLE_A: (RANK, 6), TABLE_B: (4, RANK)}
MIXTURE = (  # the parameter that is declared first is wrapped innermost
    lora(f"{MOE}.base_layer", 4, 10, EXPERTS * RANK)
    | lora(MOE, 5, 4, EXPERTS * RANK)
    | lora(FUSED, 4, 10, EXPERTS * RANK)
)
FULL = {f"{NORM[:-7]}.modules_to_save.weight": (4,), f"{HEAD[:-7]}.base_layer.weight": (6, 4)}
DORA = {f"{path}.lora_magnitude_vector.weight": (8,) for path in (Q, OUT)} | {LENGTHS: (4,)}


def write(folder: Path, adapter: Tensors, base: Tensors | None = None, **settings: Any) -> Path:
    """A base (in two shards) and an adapter of these tensors."""
    base = base or base_tensors()
    for part in ("base", "adapter"):
        (folder / part).mkdir()
    for number, names in enumerate((sorted(base)[:-3], sorted(base)[-3:])):
        save_file({name: base[name] for name in names}, folder / f"base/model-{number}.safetensors")
    save_file(
        {f"base_model.model.{name}": value for name, value in adapter.items()},
        folder / "adapter/adapter_model.safetensors",
    )
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_parameters": TARGETS[2:]} | SILENT
    (folder / "adapter/adapter_config.json").write_text(json.dumps(config | settings))
    return folder


def planned(folder: Path, model: Structure = MODEL, *, nf4: bool = False) -> Plan:
    return plan(read_folder(folder / "base"), read_adapter(folder / "adapter"), model, nf4=nf4)


def delta(adapter: Tensors, path: str, experts: int = 1) -> Any:
    """scale · B·A of each expert, in float64."""
    a, b = (adapter[f"{path}.lora_{half}.weight"].double() for half in "AB")
    a, b = a.view(experts, -1, a.shape[1]), b.view(len(b), -1, experts)
    return ALPHA / RANK * torch.einsum("ore,eri->eoi", b, a)


def expected(base: Tensors, adapter: Tensors) -> Tensors:
    """Return the tensors that the merge must have, in float64."""
    merged = {name: value.double() for name, value in base.items()}
    merged[f"{Q}.weight"] += delta(adapter, Q)[0]
    merged[f"{Q}.bias"] += ALPHA / RANK * adapter[f"{Q}.lora_B.bias"].double()
    merged[f"{OUT}.weight"] += delta(adapter, OUT)[0].T
    merged[EMBEDDING] += ALPHA / RANK * (adapter[TABLE_B].double() @ adapter[TABLE_A].double()).T
    for lengths, name, axis in zip(DORA, (f"{Q}.weight", f"{OUT}.weight", EMBEDDING), (1, 0, 0), strict=True):
        if lengths in adapter:
            sums = merged[name].norm(dim=axis, keepdim=True)
            merged[name] *= adapter[lengths].double().view(sums.shape) / sums
    if f"{MOE}.lora_A.weight" in adapter:
        both, down = (delta(adapter, path, EXPERTS) for path in (f"{MOE}.base_layer", MOE))
        for number in range(EXPERTS):
            for part, change in (("gate", both[:, :5]), ("up", both[:, 5:]), ("down", down)):
                merged[f"{MOE}.{number}.{part}_proj.weight"] += change[number]
        merged[f"{FUSED}.gate_up_proj"] += delta(adapter, FUSED, EXPERTS).transpose(1, 2)
        for name, full in ((NORM, "modules_to_save"), (HEAD, "base_layer")):
            merged[name] = adapter[f"{name[:-7]}.{full}.weight"].double()
    return merged


@pytest.mark.parametrize("dora", [False, True])
def test_every_tensor_is_what_the_formula_says_and_judged_so(dora: bool, tmp_path: Path) -> None:
    parts = PLAIN | TABLE | (DORA if dora else MIXTURE | FULL)  # PEFT has DoRA for modules alone
    base, adapter = base_tensors(), randoms(parts, 2)
    settings: dict[str, Any] = {} if dora else {"target_parameters": TARGETS, "modules_to_save": ["norm"]}
    write(tmp_path, adapter, use_dora=dora, **settings)
    jobs, wanted = planned(tmp_path).jobs, expected(base, adapter)
    stored = read_folder(tmp_path / "base").items()
    assert [(job.name, job.file) for job in jobs] == [(name, entry.file.name) for name, entry in stored]
    quantized = {job.name for job in planned(tmp_path, nf4=True).jobs if job.quantized}
    assert quantized == QUANTIZED - (set() if dora else {HEAD})  # which was trained whole
    assert not any(job.quantized for job in jobs)
    file = tmp_path / "one.safetensors"
    for job in jobs:
        merge, exact = Rows(job, None), wanted[job.name].view(job.source.rows, -1)
        for first, last in ((0, 1), (1, job.source.rows), (0, job.source.rows)):
            rows = merge.start(first, last)
            rows = merge.total(rows, first, last) if job.update else rows
            torch.testing.assert_close(rows, exact[first:last], rtol=1e-12, atol=1e-12)
        is_copy = dora and not job.update
        values = round_once(exact.clone(), torch.float32 if is_copy else torch.float16)
        for steps in (0, 4):  # of the last number's last place
            values.view(torch.int32 if is_copy else torch.int16)[-1, -1] += steps
            save_file({job.name: values}, file)
            assert abs(tensor_error(job, read_header(file)[0], None) - steps) <= 0.5 + 2**-20, job.name
            if job.update and not dora:
                assert tensor_error(job, read_header(file)[0], None, Assumption("", None, times=2)) > 0.6
        values[0, 0] = float("nan")
        save_file({job.name: values}, file)
        assert tensor_error(job, read_header(file)[0], None) == float("inf")


LONGER: dict[str, tuple[int, ...]] = {f"{EMBEDDING[:-7]}.weight": (9, 4)}
TABLES: dict[str, tuple[dict[str, tuple[int, ...]], bool, tuple[int, int], dict[str, Any]]] = {
    # tensors of the adapter, whether the base stores the head, rows of embeddings and head (0: not there)
    "embeddings": (TABLE, False, (6, 6), {"tie_word_embeddings": False}),
    "head": (lora("lm_head", 4, 6), False, (6, 6), {"tie_word_embeddings": False}),
    "head that is stored": (lora("lm_head", 4, 6), True, (6, 6), {"tie_word_embeddings": False}),
    "longer embeddings": (LONGER, False, (9, 0), {"vocab_size": 9}),
    "longer embeddings and a stored head": (LONGER, True, (9, 9), {"vocab_size": 9}),
    "both alike": (LONGER | {HEAD: (9, 4)}, False, (9, 0), {"vocab_size": 9}),
    "both": (LONGER | {HEAD: (9, 4)}, False, (9, 9), {"tie_word_embeddings": False, "vocab_size": 9}),
}


@pytest.mark.parametrize("case", TABLES)
def test_one_table_for_embeddings_and_head(case: str, tmp_path: Path) -> None:
    parts, stored, rows, config = TABLES[case]
    base, adapter = base_tensors(), randoms(parts, 2)
    if not stored:
        del base[HEAD]
    if case == "both alike":
        adapter[HEAD] = adapter[EMBEDDING].clone()
    merge = planned(write(tmp_path, adapter, base), TIED)
    heights = {job.name: job.source.rows for job in merge.jobs}
    assert (heights[EMBEDDING], heights.get(HEAD, 0), merge.config) == (*rows, config)
    assert heights.keys() - {HEAD} == base.keys() - {HEAD}
    assert {job.file for job in merge.jobs} == {"model-0.safetensors", "model-1.safetensors"}


FUSED_A, FUSED_B = f"{FUSED}.lora_A.weight", f"{FUSED}.lora_B.weight"
LORA_Q, OF_FUSED = lora(Q, 4, 8), lora(FUSED, 4, 10, EXPERTS * RANK)
ODD = {"peft_type": "LOHA", "init_lora_weights": "pissa", "later": 3, "use_dora": True}
MISFITS: dict[str, tuple[dict[str, tuple[int, ...]], dict[str, Any], str]] = {
    "a parameter without its adapter": (lora(MOE, 5, 4, 6), {"target_parameters": TARGETS}, "Q-MODELS-017: "),
    "rank of a linear": (lora(Q, 4, 8, 3), {}, "Q-MODELS-017: "),
    "rank of a parameter": (lora(FUSED, 4, 10, 9), {}, "Q-MODELS-017: "),
    "A of other experts": (OF_FUSED | {FUSED_A: (4, 4)}, {}, "Q-MODELS-018: "),
    "B of other experts": (OF_FUSED | {FUSED_B: (10, 4)}, {}, "Q-MODELS-018: "),
    "a linear that is not there": (lora("model.k", 4, 9), {}, r"Q-MODELS-018: 1 .*model\.k\.weight \(9, 4\)"),
    "another width": (lora(Q, 5, 8), {}, r"Q-MODELS-018: .*model\.q\.weight is \(8, 5\).*\(8, 4\)"),
    "another norm": ({NORM: (5,)}, {}, "Q-MODELS-018: "),
    "wider embeddings": ({EMBEDDING: (6, 5)}, {}, "Q-MODELS-018: "),
    "embeddings longer than the head": ({EMBEDDING: (9, 4)}, {}, "Q-MODELS-019: "),
    "magnitudes without DoRA": (LORA_Q | {f"{Q}.lora_magnitude_vector.weight": (8,)}, {}, "Q-MODELS-016: "),
    "all at once": (LORA_Q, ODD, "Q-MODELS-016: .*LOHA.*pissa.*later is 3.*has no magnitude"),
    "a module that was not saved": (LORA_Q | {HEAD: (6, 4)}, {"modules_to_save": ["norm"]}, "Q-MODELS-016: "),
    "half a pair": (
        {f"{MOE}.base_layer.lora_A.weight": (2, 4)},
        {},
        "Q-MODELS-016: .*model.moe.base_layer has",
    ),
    "two halves": ({f"{Q}.lora_A.weight": (2, 4), f"{Q}.lora_embedding_B": (8, 2)}, {}, "Q-MODELS-016: "),
    "strangers": (
        {f"{Q}.lora_{part}.weight": (1,) for part in "VWXYZ"},
        {},
        "Q-MODELS-016: .*nor are 2 others",
    ),
    "nothing": ({}, {}, "Q-MODELS-016: "),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_an_adapter_of_something_else_is_refused(misfit: str, tmp_path: Path) -> None:
    parts, settings, reason = MISFITS[misfit]
    write(tmp_path, randoms(parts, 2), **settings)
    with pytest.raises(DataError, match=reason):
        planned(tmp_path)


def test_what_training_recorded_and_what_is_copied(tmp_path: Path) -> None:
    """No hash of the base is known without the record beside it; what is not there is not copied."""
    base, adapter, merged = (tmp_path / name for name in ("base", "adapter", "merged"))
    for folder in (base, adapter, merged):
        folder.mkdir()
    with pytest.raises(DataError, match="Q-MODELS-015: "):
        weights_of(adapter)
    assert read_run(adapter) == TrainedRun()
    assert check_same_base(base, TrainedRun(True, None, "0" * 64)) is None
    shards = {"b.safetensors": "2", "a.safetensors": "1"}
    (tmp_path / "base.json").write_text(json.dumps({"files": shards | {"config.json": "3"}}))
    digest = json_hash(shards)  # of no other file
    assert (
        check_same_base(base, TrainedRun()) == check_same_base(base, TrainedRun(True, None, digest)) == digest
    )
    with pytest.raises(DataError, match="Q-MODELS-021: "):
        check_same_base(base, TrainedRun(True, None, "0" * 64))
    run = {"settings": {"quantization": "none"}, "base": {"weights_sha256": digest}}
    (adapter / "run.json").write_text(json.dumps(run))
    for unknown in (TrainedRun(), read_run(adapter)):
        with pytest.raises(DataError, match="Q-MODELS-020: "):
            need_nf4(adapter, unknown)
    assert unknown == TrainedRun(True, None, digest)
    run = {"settings": {"quantization": "nf4", "bnb_4bit_compute_dtype": "float16"}}
    (adapter / "run.json").write_text(json.dumps(run))
    assert need_nf4(adapter, read_run(adapter)) == Nf4("float16")
    (base / "config.json").write_text(
        '{"torch_dtype": "float32", "vocab_size": 6, "hidden_size": 4, "time_step_limit": [0.0, Infinity]}'
    )
    (base / "tokenizer.json").write_text("{}")
    copy_settings(base, adapter, merged, "float16", {"vocab_size": 9})
    settings = {
        "vocab_size": 9,
        "hidden_size": 4,
        "time_step_limit": [0.0, float("inf")],
        "dtype": "float16",
    }
    assert json.loads((merged / "config.json").read_text()) == settings
    assert [file.name for file in merged.iterdir()] == ["config.json"]
    for place in (base / "generation_config.json", adapter / "tokenizer.model"):
        place.write_text(place.name)
        copy_settings(base, adapter, merged, "float16", {})
        assert (merged / place.name).read_text() == place.name


def test_what_only_a_converter_reads_of_a_tokenizer_is_the_bases(tmp_path: Path) -> None:
    base, adapter, merged = (tmp_path / name for name in ("base", "adapter", "merged"))
    for folder in (base, adapter, merged):
        folder.mkdir()
    (base / "config.json").write_text("{}")
    (base / "tokenizer.model").write_bytes(b"pieces")
    named = {"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": {"1": {"content": "<s>"}}}
    (base / "tokenizer_config.json").write_text(json.dumps(named | {"eos_token": "<eos>"}))
    taken = {"tokenizer_class": "TokenizersBackend", "eos_token": "<end>"}
    (adapter / "tokenizer_config.json").write_text(json.dumps(taken))
    copy_settings(base, adapter, merged, "float16", {})
    assert (merged / "tokenizer.model").read_bytes() == b"pieces"
    assert json.loads((merged / "tokenizer_config.json").read_text()) == taken | named


def test_a_structure_is_transformers_own(tmp_path: Path) -> None:
    import merging
    from transformers import GPT2Config, GptOssConfig, Qwen3MoeConfig

    kinds = {
        "gpt2": GPT2Config(**merging.GPT2),
        "moe": Qwen3MoeConfig(**merging.SIZES, **merging.MOE, tie_word_embeddings=False),
        "oss": GptOssConfig(**merging.SIZES, num_local_experts=2, head_dim=16),
    }
    for name, config in kinds.items():
        config.save_pretrained(tmp_path / name)
    gpt2, moe, oss = (structure(tmp_path / name) for name in kinds)
    assert (gpt2.embedding, gpt2.head, gpt2.tied) == ("transformer.wte.weight", HEAD, True)
    assert (moe.embedding, moe.head, moe.tied) == (EMBEDDING, HEAD, False)
    assert gpt2.transposed == gpt2.quantized and len(gpt2.transposed) == 8
    assert gpt2.shapes["transformer.h.0.attn.c_attn.weight"] == (64, 192)
    assert moe.transposed == set() and len(moe.quantized) == 2 * (4 + 4 * 3)
    assert oss.transposed == {f"model.layers.{n}.{part}" for n in (0, 1) for part in merging.EXPERTS}
    (tmp_path / "gpt2/config.json").write_text('{"model_type": "nobodys"}')
    with pytest.raises(DataError, match="Q-MODELS-023: "):
        structure(tmp_path / "gpt2")
