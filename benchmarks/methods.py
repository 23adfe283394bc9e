"""What each method of training moves on the demo's model: held-out pairs told right, a bad style that rewards
unlearn, and rewards that answers of its own earn.

    python benchmarks/methods.py [METHOD …] [--steps 16] [--folder FOLDER]

A METHOD is dpo, ipo, kto, orpo, simpo, weighted, unweighted or grpo (all). Data comes from
`examples/pydoc.py`: pairs of a right answer with a chatty or a wrong one, and chats of which two in three are
chatty and have the reward 0; for grpo from `examples/sums.py`, in one short run. Prints a row per method
with its figures.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from pipeline.config.params import load_params

PROJECT = Path(__file__).resolve().parents[1]
RATES = {"dpo": 1e-4, "ipo": 1e-4, "kto": 1e-4, "orpo": 2e-4, "simpo": 1e-4}  # peak learning rates
WEIGHTED = {"weighted": "min_max", "unweighted": "none"}
METHODS = (*RATES, *WEIGHTED, "grpo")
ANSWERS = 24  # held-out questions whose answers' style is looked at


def project(folder: Path, method: str, steps: int) -> Path:
    """A project with data and settings for a method, in `folder`."""
    data = folder / "data/raw/rows.jsonl"
    data.parent.mkdir(parents=True, exist_ok=True)
    recipe = "demo-grpo" if method == "grpo" else "demo-small"  # 135M: minutes
    params: dict[str, Any] = load_params(PROJECT / f"recipes/{recipe}.yaml").model_dump(mode="json")
    train: dict[str, Any] = {"max_steps": steps, "eval_steps": steps, "save_steps": steps}
    if method == "grpo":
        run(PROJECT / "examples/sums.py", "--out", data)
    elif method in WEIGHTED:
        run(PROJECT / "examples/pydoc.py", "--kind", "rewards", "--out", data)
        train |= {"reward": WEIGHTED[method], "sample_rows": ANSWERS}
    else:
        run(PROJECT / "examples/pydoc.py", "--kind", "preferences", "--out", data)
        train |= {"method": method, "learning_rate": RATES[method], "sample_rows": 0}
    params["train"] |= train
    (folder / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    return folder


def run(*words: Any) -> None:
    """Run a Python program; its output is shown if it fails."""
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


def measure(folder: Path, method: str, steps: int) -> dict[str, float]:
    """Train in an empty `folder`; the figures of what came of it."""
    project(folder, method, steps)
    started = time.monotonic()
    for stage in ("base", "curate", "preprocess", "train"):
        run("-m", "pipeline", stage, "--root", folder)
    rows = [json.loads(line) for line in (folder / "reports/train.jsonl").read_text().splitlines()]
    report = json.loads((folder / "reports/train.json").read_text())
    return {"minutes": (time.monotonic() - started) / 60} | learned(method, rows, report)


def learned(method: str, rows: list[dict[str, Any]], report: dict[str, Any]) -> dict[str, float]:
    """What a run's metrics log and report say of the method's own figure: before and after for preferences
    (the first step's accuracy, then of held-out pairs or answers) and grpo (the mean reward of the first
    step's completions, which are the base's, then of the last ten steps').
    """
    first = next(row for row in rows if row["kind"] == "step").get("measures", {})
    held_out = [row for row in rows if row["kind"] == "eval"]
    if method in WEIGHTED:
        answers = [one["answer"] for one in held_out[-1]["samples"]]
        return {"chatty": sum(not answer.lstrip().startswith("{") for answer in answers) / len(answers)}
    if method == "grpo":
        return report["rewards"] | {"first": first["reward"], "held_out": -held_out[-1]["eval_loss"]}
    keys = ("accuracy", "low", "high", "items", "margin", "chosen_gain")
    told = {key: report["preferences"][key] for key in keys if key in report["preferences"]}
    return {"first_accuracy": first["accuracy"]} | told


def main() -> None:
    """Measure each method in turn."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("methods", nargs="*", default=METHODS, metavar="METHOD")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for method in asked.methods:
            found = measure((asked.folder or Path(scratch)) / method, method, asked.steps)
            print(f"{method:<11}", *(f"{key} {value:.3g}" for key, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
