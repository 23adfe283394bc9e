"""A run with `train.loss: liger`, its kernels in Triton's interpreter, ends as the one with plain PyTorch."""

import json
import shutil
from pathlib import Path

import pytest
import tiny
import yaml
from conftest import run_stages
from families import family
from liger_models import run
from safetensors.torch import load_file

from pipeline.llamacpp.tools import Toolchain

pytestmark = pytest.mark.slow
# sgd, so that the adapter moves by its gradients; two steps, for in the first one those of A are 0
SETTINGS = {
    "bnb_4bit_compute_dtype": "float32",
    "optim": "sgd",
    "learning_rate": 0.1,
    "warmup_ratio": 0.0,
    "gradient_checkpointing": True,
    "max_steps": 2,
    "save_steps": 2,
    "eval_steps": 2,
    "sample_rows": 0,
}
# without the two places that refuse it where there is no GPU
TRAIN = """
import sys
from pipeline.__main__ import main
from pipeline.core.checks import Check
from pipeline.stages.train import assembly, preflight
assembly.choose_loss = lambda wanted, **_: wanted
preflight.triton_works = lambda *_: Check("Triton", "pass", "interpreted")
sys.exit(main(["train", "--root", sys.argv[1]]))
"""


@pytest.mark.parametrize("kind", [pytest.param("qwen2", marks=pytest.mark.exhaustive), "qwen3"])
def test_a_step_with_liger_is_a_step_with_plain_pytorch(kind: str, tools: Toolchain, tmp_path: Path) -> None:
    params = tiny.tiny_params(family(kind, tmp_path / "hf", tools))
    params["train"] |= SETTINGS | {"loss": "chunked"}
    plain = tiny.write_project(tmp_path / "plain", params)
    run_stages(plain, ("base", "curate", "preprocess"))
    liger = Path(shutil.copytree(plain, tmp_path / "liger"))
    params["train"]["loss"] = "liger"
    (liger / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    run_stages(plain, ("train",))
    run(TRAIN, str(liger), TRITON_INTERPRET="1")
    for ours, theirs in zip(steps(liger), steps(plain), strict=True):
        for figure in ("loss", "grad_norm"):
            assert ours[figure] == pytest.approx(theirs[figure], rel=1e-4)
    adapters = [load_file(root / "models/adapter/adapter_model.safetensors") for root in (liger, plain)]
    assert adapters[0].keys() == adapters[1].keys()
    for name, values in adapters[1].items():
        assert (adapters[0][name] - values).abs().max() <= 1e-4 * values.abs().max(), name


def steps(root: Path) -> list[dict[str, float]]:
    """Return the rows of training's log that describe an optimizer step."""
    rows = map(json.loads, (root / "reports/train.jsonl").read_text(encoding="utf-8").splitlines())
    return [row for row in rows if "grad_norm" in row]
