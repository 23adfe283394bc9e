"""Frozen weights shared out among two processes: each has half of every matrix, and what is computed is what
one process with all of them computes, bit for bit. Here the device is the CPU; PyTorch's FSDP2 gathers over
Gloo.
"""

import sys
import traceback
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from killed import FORKED
from offloaded import CHANGES, LAYERS, LINEARS, trained, tuned
from qlora import settings
from tiny import tiny_moe, untied_qwen2
from torch.distributed.tensor import DTensor

import pipeline.models.sharded
from pipeline.models.finite import finite_record
from pipeline.models.offload import is_frozen_linear
from pipeline.models.sharded import shard
from pipeline.models.tuners import causal_model, tuner_on
from pipeline.models.tuners.scales import unchanged_in_file

GGUF: list[dict[str, Any]] = [{}, {"tuner": "scales"}]
CASES = {
    "-".join((kind, *changes)): (kind, changes)
    for kind, all_changes in {
        "base": CHANGES,
        "gguf": [one | {"quantization": "gguf", "gradient_checkpointing": True} for one in GGUF],
        "mixture": [{"experts": ["down_proj"], "gradient_checkpointing": True}],
    }.items()
    for changes in all_changes
}
QUICK = {"base", "base-layers-gradient_checkpointing", "base-offload"} | {
    name for name in CASES if "tuner" in name or "mixture" in name
}

# two layers of the GGUF, and of the mixture: attention, the router and four experts
LINEARS_OF = {"base": LAYERS * LINEARS, "gguf": 2 * LINEARS, "mixture": 2 * (5 + 4 * 3)}


def linears(model: Any) -> list[Any]:
    return [one for one in causal_model(model).model.layers.modules() if is_frozen_linear(one)]


@contextmanager
def originals_watched() -> Iterator[list[int]]:
    """Yield a list that gets, for each layer, the number of its unsharded weights that are still alive once
    it is shared out: on a GPU they would take memory beside the parts.
    """
    before, kept = pipeline.models.sharded.fully_shard, []

    def watched(module: Any, *, ignored_params: set[Any], **more: Any) -> Any:
        originals = [weakref.ref(one) for one in module.parameters() if one not in ignored_params]
        made = before(module, ignored_params=ignored_params, **more)
        kept.append(sum(one() is not None for one in originals if not isinstance(one(), DTensor)))
        return made

    pipeline.models.sharded.fully_shard = watched
    try:
        yield kept
    finally:
        pipeline.models.sharded.fully_shard = before


def compared(folder: Path, recipe: Any, out: Path) -> dict[str, Any]:
    """A model whose layers are shared out beside one whose aren't, step by step."""
    plain, model = tuned(folder, recipe), tuned(folder, recipe)
    full = sum(one.weight.numel() * one.weight.element_size() for one in linears(model))
    with originals_watched() as kept:
        part = shard(causal_model(model), torch.device("cpu"))
    found: dict[str, Any] = {"linears": len(linears(model)), "part": part / full, "same": []}
    found["kept"] = sum(kept)
    for _ in range(2):
        (loss, gradients), (expected, wanted) = trained(model), trained(plain)
        found["same"].append(
            loss == expected
            and gradients.keys() == wanted.keys()
            and all(torch.equal(gradients[name], wanted[name]) for name in wanted)
        )
        found["left"] = sum(not isinstance(one.weight, DTensor) for one in linears(model))
        for one in (plain, model):  # an evaluation between two steps changes nothing
            one.eval()
            with torch.no_grad():
                one(torch.arange(24)[None], use_cache=False)
    found["whole"] = all(
        torch.equal(one.full_tensor() if isinstance(one, DTensor) else one, other.view(one.shape))
        for one, other in zip(
            *([linear.weight for linear in linears(each)] for each in (model, plain)), strict=True
        )
    )
    found["finite"] = finite_record(model) == finite_record(plain)
    found["unchanged"] = unchanged_in_file(model) is unchanged_in_file(plain)
    for one, name in ((plain, "plain"), (model, "model")):
        tuner_on(one).save(one, out / name)
    saved = [next((out / name).glob("*.safetensors")).read_bytes() for name in ("plain", "model")]
    found["saved"] = saved[0] == saved[1]
    return found


def be_rank(number: int, names: list[str], folders: dict[str, Path], out: Path, pipe: Any) -> None:
    """One of two processes: these cases, one after the other."""
    torch.set_num_threads(1)
    sys.stderr = (out / f"{number}.log").open("w")
    store = dist.FileStore(str(out / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=number, world_size=2)
    for name in names:
        kind, changes = CASES[name]
        try:
            pipe.send((name, compared(folders[kind], settings(**changes), out / f"{number}-{name}")))
        except Exception:  # the others would wait
            pipe.send((name, traceback.format_exc()))
            break
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tools: Any
) -> list[dict[str, Any]]:
    """Run the selected cases in two processes, and return what each process saw: {case: figures}."""
    from benchmarks.random_gguf import write_random_gguf

    ours = [item for item in request.session.items if item.path == request.path]
    names = [item.callspec.params["case"] for item in ours if isinstance(item, pytest.Function)]
    work = tmp_path_factory.mktemp("sharded")
    folders = {
        "base": untied_qwen2(work / "base", layers=LAYERS),
        "gguf": write_random_gguf(work / "gguf", "blocks"),
        "mixture": tiny_moe(work / "mixture", tools, "Qwen3Moe"),
    }
    pipes = [FORKED.Pipe(duplex=False) for _ in range(2)]
    ranks = [
        FORKED.Process(target=be_rank, args=(number, names, folders, work, theirs), daemon=True)
        for number, (_, theirs) in enumerate(pipes)
    ]
    for rank in ranks:
        rank.start()
    seen: list[dict[str, Any]] = [{}, {}]
    for _ in names:
        for (ours, _), of_rank in zip(pipes, seen, strict=True):
            assert ours.poll(120), "nothing for two minutes"
            name, figures = ours.recv()
            assert not isinstance(figures, str), f"{name}: {figures}"
            of_rank[name] = figures
    for rank in ranks:
        rank.join(30)
        assert rank.exitcode == 0
    return seen


@pytest.mark.parametrize(
    "case", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_loss_and_gradients_are_those_of_one_process(found: list[dict[str, Any]], case: str) -> None:
    for figures in (of_rank[case] for of_rank in found):
        assert figures["same"] == [True, True]
        assert figures["left"] == 0, "all are shared out again after a step"
        assert figures["whole"] and figures["finite"] and figures["unchanged"] and figures["saved"]
        assert 0.49 < figures["part"] < 0.51
        assert figures["linears"] == LINEARS_OF[CASES[case][0]]
        assert figures["kept"] == 0, "no weight stays in one piece"
