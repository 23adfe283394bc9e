"""The merge's plan and sums on a few small matrices: each tensor against a formula, each misfit refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from pipeline.core.errors import DataError
from pipeline.gguf.safetensors_rows import read_folder, read_header
from pipeline.models.merging.adapter import PREFIX, read_adapter
from pipeline.models.merging.compute import Rows, round_once
from pipeline.models.merging.inputs import (
    Structure,
    TrainedRun,
    check_same_base,
    copy_settings,
    read_run,
    structure,
)
from pipeline.models.merging.judge import Assumption, tensor_error
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
    f"{FUSED}.router": (EXPERTS, 4),
    NORM: (4,),
    HEAD: (6, 4),
}
APART = {"gate_proj": (5, 4), "up_proj": (5, 4), "down_proj": (4, 5)}
MODEL = Structure(
    SHAPES,
    frozenset({f"{Q}.weight"}),
    frozenset({f"{OUT}.weight", f"{FUSED}.gate_up_proj"}),
    EMBEDDING,
    HEAD,
    tied=False,
)
TIED = replace(MODEL, tied=True)
SILENT = {"lora_dropout": 0.1, "layer_replication": None, "init_lora_weights": "gaussian"}
TARGETS = ["moe.gate_up_proj", "moe.down_proj", "fused.gate_up_proj"]


def randoms(shapes: dict[str, tuple[int, ...]], seed: int) -> Tensors:
    random = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=random) for name, shape in shapes.items()}


def base_tensors() -> Tensors:
    stored = {name: shape for name, shape in SHAPES.items() if MOE not in name}
    apart = {f"{MOE}.{one}.{part}.weight": APART[part] for one in range(EXPERTS) for part in APART}
    return randoms(stored | apart, 1)


def lora(path: str, inputs: int, outputs: int, rank: int = RANK) -> dict[str, tuple[int, ...]]:
    return {f"{path}.lora_A.weight": (rank, inputs), f"{path}.lora_B.weight": (outputs, rank)}


PLAIN = lora(Q, 4, 8) | {f"{Q}.lora_B.bias": (8,)} | lora(OUT, 4, 8)
TABLE = {f"{EMBEDDING[:-7]}.lora_embedding_A": (RANK, 6), f"{EMBEDDING[:-7]}.lora_embedding_B": (4, RANK)}
MIXTURE = (  # the parameter that is declared first is wrapped innermost
    lora(f"{MOE}.base_layer", 4, 10, EXPERTS * RANK)
    | lora(MOE, 5, 4, EXPERTS * RANK)
    | lora(FUSED, 4, 10, EXPERTS * RANK)
)
FULL = {f"{NORM[:-7]}.modules_to_save.weight": (4,), f"{HEAD[:-7]}.base_layer.weight": (6, 4)}
DORA = {
    f"{Q}.lora_magnitude_vector.weight": (8,),
    f"{OUT}.lora_magnitude_vector.weight": (8,),
    f"{EMBEDDING[:-7]}.lora_magnitude_vector": (4,),
}


def write(folder: Path, adapter: Tensors, base: Tensors | None = None, **settings: Any) -> Path:
    """A base (in two shards) and an adapter of these tensors."""
    base = base or base_tensors()
    for part in ("base", "adapter"):
        (folder / part).mkdir()
    for number, names in enumerate((sorted(base)[:-3], sorted(base)[-3:])):
        save_file({name: base[name] for name in names}, folder / f"base/model-{number}.safetensors")
    save_file(
        {PREFIX + name: value for name, value in adapter.items()},
        folder / "adapter/adapter_model.safetensors",
    )
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "task_type": "CAUSAL_LM"} | settings
    (folder / "adapter/adapter_config.json").write_text(json.dumps(config))
    return folder


def planned(folder: Path, model: Structure = MODEL, *, nf4: bool = False) -> Plan:
    return plan(read_folder(folder / "base"), read_adapter(folder / "adapter"), model, nf4=nf4)


def delta(adapter: Tensors, path: str, experts: int = 1) -> Any:
    """scale · B·A of each expert, in float64."""
    a, b = (adapter[f"{path}.lora_{half}.weight"].double() for half in "AB")
    a, b = a.view(experts, -1, a.shape[1]), b.view(len(b), -1, experts)
    return ALPHA / RANK * torch.einsum("ore,eri->eoi", b, a)


def expected(base: Tensors, adapter: Tensors) -> Tensors:
    """What each tensor of the merge has to be, in float64."""
    merged = {name: value.double() for name, value in base.items()}
    merged[f"{Q}.weight"] += delta(adapter, Q)[0]
    merged[f"{Q}.bias"] += ALPHA / RANK * adapter.get(f"{Q}.lora_B.bias", torch.zeros(8)).double()
    merged[f"{OUT}.weight"] += delta(adapter, OUT)[0].T
    a, b = (adapter[f"{EMBEDDING[:-7]}.lora_embedding_{half}"].double() for half in "AB")
    merged[EMBEDDING] += ALPHA / RANK * (b @ a).T
    for name, axis in ((f"{Q}.weight", 1), (f"{OUT}.weight", 0), (EMBEDDING, 0)):
        vectors = [value for key, value in adapter.items() if name[:-7] in key and "magnitude" in key]
        for vector in vectors:
            sums = merged[name].norm(dim=axis, keepdim=True)
            merged[name] *= vector.double().view(sums.shape) / sums
    if f"{MOE}.lora_A.weight" in adapter:
        both, down = (delta(adapter, path, EXPERTS) for path in (f"{MOE}.base_layer", MOE))
        for one in range(EXPERTS):
            for part, change in (("gate", both[one, :5]), ("up", both[one, 5:]), ("down", down[one])):
                merged[f"{MOE}.{one}.{part}_proj.weight"] += change
        merged[f"{FUSED}.gate_up_proj"] += delta(adapter, FUSED, EXPERTS).transpose(1, 2)
        for name, full in ((NORM, "modules_to_save"), (HEAD, "base_layer")):
            merged[name] = adapter[f"{name[:-7]}.{full}.weight"].double()
    return merged


@pytest.mark.parametrize("dora", [False, True])
def test_every_tensor_is_what_the_formula_says_and_judged_so(dora: bool, tmp_path: Path) -> None:
    parts = PLAIN | TABLE | MIXTURE | FULL
    if dora:  # which PEFT has for modules alone
        parts = PLAIN | TABLE | DORA
    base, adapter = base_tensors(), randoms(parts, 2)
    other = {} if dora else SILENT | {"target_parameters": TARGETS, "modules_to_save": ["norm"]}
    write(tmp_path, adapter, use_dora=dora, **other)
    jobs, wanted = planned(tmp_path).jobs, expected(base, adapter)
    assert [job.name for job in jobs] == list(read_folder(tmp_path / "base"))
    assert {job.name: job.file for job in jobs} == {
        name: entry.file.name for name, entry in read_folder(tmp_path / "base").items()
    }
    for job in jobs:
        rows = Rows(job, None)
        for first, last in ((0, 1), (1, job.source.rows), (0, job.source.rows)):
            start = rows.start(first, last)
            found = rows.total(start, first, last) if job.update else start
            whole = wanted[job.name].view(job.source.rows, -1)
            torch.testing.assert_close(found, whole[first:last], rtol=1e-12, atol=1e-12)
        merged = tmp_path / "one.safetensors"
        values = round_once(whole.clone(), torch.float16)
        for steps in (0, 4):  # of the last number's last place
            values.view(torch.int16)[-1, -1] += steps
            save_file({job.name: values.view(wanted[job.name].shape)}, merged)
            error = tensor_error(job, read_header(merged)[0], None)
            assert abs(error - steps) <= 0.5 + 2**-20, job.name
            if job.update and not dora and not steps:
                twice = Assumption("", None, times=2)
                assert tensor_error(job, read_header(merged)[0], None, twice) > 0.6
        values[0, 0] = float("nan")
        save_file({job.name: values.view(wanted[job.name].shape)}, merged)
        assert tensor_error(job, read_header(merged)[0], None) == float("inf")


def test_what_is_quantized_in_training_is_planned_so(tmp_path: Path) -> None:
    """But not what was trained whole."""
    write(tmp_path, randoms(lora(OUT, 4, 8), 2))
    for nf4, names in ((True, [f"{Q}.weight"]), (False, [])):
        assert [job.name for job in planned(tmp_path, nf4=nf4).jobs if job.quantized] == names
    for part, more in (("lora", lora(Q, 4, 8)), ("full", {f"{Q}.weight": (8, 4)})):
        (tmp_path / part).mkdir()
        write(tmp_path / part, randoms(lora(OUT, 4, 8) | more, 2))
        quantized = [job.name for job in planned(tmp_path / part, nf4=True).jobs if job.quantized]
        assert quantized == ([f"{Q}.weight"] if part == "lora" else [])


LONGER = {f"{EMBEDDING[:-7]}.weight": (9, 4)}
TABLES: dict[str, tuple[dict[str, tuple[int, ...]], bool, tuple[int, int], dict[str, Any]]] = {
    # tensors of the adapter, whether the base stores the head, rows of embeddings and head (0: not there)
    "nothing": (lora(Q, 4, 8), False, (6, 0), {}),
    "embeddings": (TABLE, False, (6, 6), {"tie_word_embeddings": False}),
    "head": (lora("lm_head", 4, 6), False, (6, 6), {"tie_word_embeddings": False}),
    "head that is stored": (lora("lm_head", 4, 6), True, (6, 6), {"tie_word_embeddings": False}),
    "longer embeddings": (LONGER, False, (9, 0), {"vocab_size": 9}),
    "longer embeddings and a stored head": (LONGER, True, (9, 9), {"vocab_size": 9}),
    "both alike": (LONGER | {HEAD: (9, 4)}, False, (9, 0), {"vocab_size": 9}),
    "both": (
        LONGER | {HEAD: (9, 4)} | lora(Q, 4, 8),
        False,
        (9, 9),
        {"tie_word_embeddings": False, "vocab_size": 9},
    ),
}


@pytest.mark.parametrize("case", TABLES)
def test_one_table_for_embeddings_and_head(case: str, tmp_path: Path) -> None:
    parts, stored, rows, config = TABLES[case]
    base, adapter = base_tensors(), randoms(parts, 2)
    if not stored:
        del base[HEAD]
    if case == "both alike":
        adapter[HEAD] = adapter[EMBEDDING].clone()
    made = planned(write(tmp_path, adapter, base), TIED)
    jobs = {job.name: job for job in made.jobs}
    assert jobs.keys() == base.keys() | ({HEAD} if rows[1] else set())
    assert made.config == config
    assert [jobs[name].source.shape[0] for name in (EMBEDDING, HEAD) if name in jobs] == [
        n for n in rows if n
    ]
    assert {job.file for job in made.jobs} == {"model-0.safetensors", "model-1.safetensors"}


MISFITS: dict[str, tuple[dict[str, tuple[int, ...]], dict[str, Any], str]] = {
    "a parameter without its adapter": (lora(MOE, 5, 4, 6), {"target_parameters": TARGETS}, "MODELS-017"),
    "rank of a linear": (lora(Q, 4, 8, 3), {}, "MODELS-017"),
    "ranks of a pair": (lora(Q, 4, 8) | {f"{Q}.lora_B.weight": (8, 3)}, {}, "MODELS-017"),
    "rank of a parameter": (lora(FUSED, 4, 10, 9), {"target_parameters": TARGETS[2:]}, "MODELS-017"),
    "A of other experts": (
        lora(FUSED, 4, 10, 6) | {f"{FUSED}.lora_A.weight": (4, 4)},
        {"target_parameters": TARGETS[2:]},
        "MODELS-018",
    ),
    "B of other experts": (
        lora(FUSED, 4, 10, 6) | {f"{FUSED}.lora_B.weight": (10, 4)},
        {"target_parameters": TARGETS[2:]},
        "MODELS-018",
    ),
    "a linear that is not there": (lora("model.k", 4, 9), {}, r"MODELS-018: 1 .*model\.k\.weight \(9, 4\)"),
    "another width": (lora(Q, 5, 8), {}, r"MODELS-018: .*model\.q\.weight is \(8, 5\).*\(8, 4\)"),
    "a head of classes": ({"score.weight": (2, 4)}, {}, r"MODELS-018: .*score\.weight \(2, 4\)"),
    "another norm": ({"model.norm.weight": (5,)}, {}, "MODELS-018"),
    "wider embeddings": ({EMBEDDING: (6, 5)}, {}, "MODELS-018"),
    "embeddings of another length than the head": ({EMBEDDING: (9, 4)}, {}, "MODELS-019"),
    "magnitudes without DoRA": (
        lora(Q, 4, 8) | {f"{Q}.lora_magnitude_vector.weight": (8,)},
        {},
        "MODELS-016",
    ),
    "DoRA without magnitudes": (lora(Q, 4, 8), {"use_dora": True}, "MODELS-016"),
    "another method": (lora(Q, 4, 8), {"peft_type": "IA3"}, "MODELS-016"),
    "a start that changed the base": (lora(Q, 4, 8), {"init_lora_weights": "pissa"}, "MODELS-016"),
    "a setting of later": (lora(Q, 4, 8), {"later": 3}, "MODELS-016"),
    "a module that was not saved": (lora(Q, 4, 8), {"modules_to_save": ["norm"]}, "MODELS-016"),
    "half a pair": (
        {f"{MOE}.base_layer.lora_A.weight": (2, 4)},
        {},
        "MODELS-016: .*model.moe.base_layer has",
    ),
    "two halves": ({f"{Q}.lora_A.weight": (2, 4), f"{Q}.lora_embedding_B": (8, 2)}, {}, "MODELS-016"),
    "strangers": (
        {f"{Q}.lora_{part}.weight": (1,) for part in "VWXYZ"},
        {},
        "MODELS-016: .*nor are 2 others",
    ),
    "nothing": ({}, {}, "MODELS-016"),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_an_adapter_of_something_else_is_refused(misfit: str, tmp_path: Path) -> None:
    parts, settings, reason = MISFITS[misfit]
    write(tmp_path, randoms(parts, 2), **settings)
    with pytest.raises(DataError, match=f"Q-{reason}" if ":" in reason else f"Q-{reason}: "):
        planned(tmp_path)


def test_what_training_recorded_and_what_is_copied(tmp_path: Path) -> None:
    """No hash of the base is known without the record beside it; what is not there is not copied."""
    base, adapter, merged = (tmp_path / name for name in ("base", "adapter", "merged"))
    for folder in (base, adapter, merged):
        folder.mkdir()
    assert read_run(adapter) == TrainedRun()
    assert check_same_base(base, TrainedRun(True, None, "0" * 64)) is None
    files = {"b.safetensors": "2", "a.safetensors": "1", "config.json": "3"}
    for kept in (files, dict(list(files.items())[1::-1])):  # neither the order nor other files count
        (tmp_path / "base.json").write_text(json.dumps({"files": kept}))
        digest = check_same_base(base, TrainedRun())
        assert digest and check_same_base(base, TrainedRun(True, None, digest)) == digest
    run = {"settings": {"quantization": "none"}, "base": {"weights_sha256": digest}}
    (adapter / "run.json").write_text(json.dumps(run))
    assert read_run(adapter) == TrainedRun(True, None, digest)
    (base / "config.json").write_text('{"torch_dtype": "float32", "vocab_size": 6, "hidden_size": 4}')
    (base / "tokenizer.json").write_text("{}")
    copy_settings(base, adapter, merged, "float16", {"vocab_size": 9})
    wanted = {"vocab_size": 9, "hidden_size": 4, "dtype": "float16"}
    assert json.loads((merged / "config.json").read_text()) == wanted
    assert [file.name for file in merged.iterdir()] == ["config.json"]
    for place in (base / "generation_config.json", adapter / "tokenizer.model"):
        place.write_text(place.name)
    copy_settings(base, adapter, merged, "float16", {})
    for name in ("generation_config.json", "tokenizer.model"):
        assert (merged / name).read_text() == name


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
    experts = ("gate_up_proj", "down_proj")
    assert oss.transposed == {
        f"model.layers.{layer}.mlp.experts.{part}" for layer in (0, 1) for part in experts
    }
    (tmp_path / "gpt2/config.json").write_text('{"model_type": "nobodys"}')
    with pytest.raises(DataError, match="Q-MODELS-023: "):
        structure(tmp_path / "gpt2")
