"""What each method of training moves on the demo's model: held-out pairs told right, and a bad style that
rewards unlearn.

    python benchmarks/methods.py [METHOD …] [--steps 24] [--base models/base] [--folder FOLDER]

A METHOD is dpo, ipo, kto, orpo, simpo, weighted or unweighted (all). `--base` is a project's base. Data
comes from `examples/pydoc.py`: pairs of a right answer with a chatty or a wrong one, and chats of which every
second one is chatty and has the reward 0. Prints a row per method: the share of held-out pairs (kto: answers)
told right before and after, or the share of chatty answers after training.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).resolve().parents[1]
RATES = {"dpo": 1e-4, "ipo": 1e-4, "kto": 1e-4, "orpo": 2e-4, "simpo": 1e-4}  # peak learning rates
WEIGHTED = {"weighted": "min_max", "unweighted": "none"}
ANSWERS = 24  # held-out questions whose answers' style is looked at


def project(folder: Path, base: Path, method: str, steps: int) -> Path:
    """A project with data and settings for a method, in `folder`."""
    if folder.exists():
        shutil.rmtree(folder)
    (folder / "data/raw").mkdir(parents=True)
    (folder / "models").mkdir()
    (folder / "models/base").symlink_to(base.resolve())
    (folder / "models/base.json").symlink_to(base.resolve().parent / "base.json")
    kind = "rewards" if method in WEIGHTED else "preferences"
    run(PROJECT / "examples/pydoc.py", "--kind", kind, "--out", folder / "data/raw/pydoc.jsonl")
    params: dict[str, Any] = yaml.safe_load((PROJECT / "recipes/demo.yaml").read_text(encoding="utf-8"))
    params["train"] |= {"max_steps": steps, "eval_steps": steps // 2, "save_steps": steps}
    if method in WEIGHTED:
        params["train"] |= {"reward": WEIGHTED[method], "sample_rows": ANSWERS, "sample_tokens": 8}
    else:
        params["train"] |= {"method": method, "learning_rate": RATES[method], "sample_rows": 0}
    (folder / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    return folder


def run(*words: Any) -> None:
    """Run a Python program; its output is shown if it fails."""
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


def measure(folder: Path, method: str) -> str:
    """Train, and say what came of it."""
    for stage in ("curate", "preprocess", "train"):
        run("-m", "pipeline", stage, "--root", folder)
    rows = [json.loads(line) for line in (folder / "reports/train.jsonl").read_text().splitlines()]
    held_out = [row for row in rows if row["kind"] == "eval"]
    if method in WEIGHTED:
        answers = [one["answer"] for one in held_out[-1]["samples"]]
        chatty = sum(not answer.lstrip().startswith("{") for answer in answers)
        return f"{chatty} of {len(answers)} answers are chatty"
    told = json.loads((folder / "reports/train.json").read_text())["preferences"]
    first = next(row for row in rows if row["kind"] == "step")["measures"]
    gain = f", chosen answers {told['chosen_gain']:+.2f} nats" if "chosen_gain" in told else ""
    return (
        f"{told['accuracy']:.2f} ({told['low']:.2f} to {told['high']:.2f}) of {told['items']} held-out ones "
        f"told right (first step's: {first['accuracy']:.2f}), margin {told['margin']:.3g}{gain}"
    )


def main() -> None:
    """Measure each method in turn."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("methods", nargs="*", default=[*RATES, *WEIGHTED], metavar="METHOD")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--base", type=Path, default=Path("models/base"))
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for method in asked.methods:
            folder = project((asked.folder or Path(scratch)) / method, asked.base, method, asked.steps)
            started = time.monotonic()
            print(f"{method:<11} {measure(folder, method)}; {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
