"""Recipe demo-grpo with several seeds: how many held-out sums are answered right before and after, and how
many with a number at all.

    python benchmarks/grpo.py [--seeds 42 43 44] [--steps 60] [--folder FOLDER] [--out FILE.jsonl]

Writes a line of JSON for the base and for each seed, with every held-out answer, and prints a table. Takes
some twenty minutes a seed on two cores.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import yaml
from methods import run

from pipeline.commands.recipes import recipe_file
from pipeline.config.params import load_params
from pipeline.core.jsonl import read_rows, write_rows
from pipeline.core.places import PROJECT

EVALUATE = {"task_rows": 1000, "perplexity_rows": 4, "general": "none"}  # all held-out rows


def settings(folder: Path, seed: int, steps: int) -> None:
    """Write the recipe as params.yaml, with this seed and so many steps of training."""
    params: dict[str, Any] = load_params(recipe_file("demo-grpo")).model_dump(mode="json")
    params["train"] |= {"seed": seed, "max_steps": steps}
    params["curate"]["test_fraction"] = 0.25  # 100 sums
    params["evaluate"] |= EVALUATE
    (folder / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")


def stage(folder: Path, *words: str) -> None:
    """Run a stage of the project in `folder`."""
    run("-m", "pipeline", *words, "--root", folder)


def measured(folder: Path, model: str) -> dict[str, Any]:
    """The figures of the held-out answers of `model`, and the answers."""
    stage(folder, f"evaluate@{model}")
    task = json.loads((folder / f"reports/eval/{model}.json").read_text(encoding="utf-8"))["task"]
    answers = list(read_rows(folder / f"reports/eval/{model}.answers.jsonl"))
    right = {key: task[key] for key in ("score", "score_low", "score_high", "rows", "valid")}
    return right | {"answers": answers}


def main() -> None:
    """Measure the base, then each seed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--seeds", type=int, nargs="*", default=[42, 43, 44])
    parser.add_argument("--steps", type=int, default=60, help="the recipe's are 60")
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=Path("grpo.jsonl"))
    asked = parser.parse_args()
    folder: Path = asked.folder or Path(tempfile.mkdtemp(prefix="quench-grpo-"))
    run(PROJECT / "examples/sums.py", "--out", folder / "data/raw/rows.jsonl")
    found: list[dict[str, Any]] = []
    for seed in asked.seeds:
        settings(folder, seed, asked.steps)
        for name in () if found else ("base", "curate", "preprocess"):
            stage(folder, name)
        stage(folder, "train", "--no-resume")
        stage(folder, "lora")
        if not found:  # it is measured with the adapter's tokenizer
            found.append({"model": "base"} | measured(folder, "base"))
        rewards = json.loads((folder / "reports/train.json").read_text(encoding="utf-8"))["rewards"]
        found.append({"model": "adapter", "seed": seed, "rewards": rewards} | measured(folder, "adapter"))
        write_rows(asked.out, found)
    for one in found:
        name = f"seed {one['seed']}" if "seed" in one else "base"
        right = (
            f"right {one['score']:.3f} ({one['score_low']:.3f} to {one['score_high']:.3f}) of {one['rows']}"
        )
        print(f"{name:<8} {right}, with a number {one['valid']:.3f}")


if __name__ == "__main__":
    main()
