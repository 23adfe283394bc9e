"""What pairs with written flawed answers (stage augment, kind rejected) teach: the held-out pairs that DPO
tells right, and the task's score, with them and without.

    python benchmarks/augmented_pairs.py BASE.gguf ROWS.jsonl [--rows 32] [--steps 8] [--folder FOLDER]

BASE is imported and quantized to Q8_0, which trains (an adapter on the GGUF), is served, and writes the
flawed answers itself. ROWS are chats whose texts are keys of the row (prompt_completion, alpaca …); the short
ones are taken. The arms: the base as it is; `sft` on the drawn rows' own answers, without anything written;
`dpo` on the same answers beside what was written. Each arm is trained with every seed for the same number of
steps and answers the same held-out rows. What is done stays in FOLDER and is not done again. Prints a table;
all figures are in FOLDER/augmented_pairs.json.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(PROJECT))

from pipeline.core.jsonl import read_rows, write_rows  # noqa: E402
from pipeline.core.publish import write_json, write_text  # noqa: E402

SEEDS = (42, 43, 44)
LEVEL = "Q8_0"
MOST_LETTERS = 200  # of a row's texts: a step of short rows takes seconds on a CPU
BATCH = 4  # rows or pairs of a step
WRITER = "models/base/model.gguf"


def params(base: Path, method: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of one arm."""
    augmented = {"kinds": ["rejected"], "model": WRITER, "rows": given.rows, "max_new_tokens": 64}
    return {
        "base": {"model": str(base.resolve()), "quantization": "gguf", "level": LEVEL},
        "curate": {"test_fraction": 0.2, "val_fraction": 0.1},
        "augment": augmented if method == "dpo" else {"kinds": []},
        "preprocess": {"max_length": 256, "packing": False},
        "train": {
            "method": method,
            "max_steps": given.steps,
            "per_device_train_batch_size": BATCH,
            "gradient_accumulation_steps": 1,
            "learning_rate": given.rate,
            "lora_dropout": 0.0,
            "eval_steps": given.steps,
            "save_steps": given.steps,
            "sample_rows": 0,
            "seed": seed,
        },
        "convert": {"name": "pairs"},
        "machine": {"threads": given.threads},
        "evaluate": {
            "models": ["base", "adapter"],
            "perplexity_rows": 4,
            "task_rows": given.task_rows,
            "scorers": ["rouge_l", "exact_match"],
            "general": "none",
            "max_new_tokens": 64,
            "parallel": 8,
        },
    }


def run(root: Path, stage: str) -> float:
    """Run a stage in `root`. Return the seconds that it took."""
    start = time.monotonic()
    command = [sys.executable, "-m", "pipeline", stage, "--root", str(root)]
    print(f"{root.name}: {stage}", file=sys.stderr, flush=True)
    subprocess.run(command, cwd=PROJECT, check=True, stdout=sys.stderr)
    return round(time.monotonic() - start, 1)


def write_settings(root: Path, settings: dict[str, Any]) -> None:
    """Write the project's settings; JSON is YAML."""
    write_text(root / "params.yaml", json.dumps(settings, indent=1))


def prepare(root: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Make the project with its rows, base and pairs. Return the seconds of its stages."""
    for folder in ("guard", "evaluation", "distill", "raw", "augmented"):
        (root / "data" / folder).mkdir(parents=True, exist_ok=True)
    short = (
        row
        for row in read_rows(given.data)
        if sum(len(text) for text in row.values() if isinstance(text, str)) <= MOST_LETTERS
    )
    rows = [row for number, row in enumerate(short) if number % given.every == 0]
    write_rows(root / "data/raw/rows.jsonl", rows[: given.raw_rows])
    write_settings(root, params(given.base, "dpo", SEEDS[0], given))
    return {stage: run(root, stage) for stage in ("base", "curate", "augment@rejected")}


def same_answers(root: Path) -> None:
    """Keep only the training rows that pairs were written to: `sft` sees what `dpo` sees as chosen."""
    asked = {row["augmented"]["of"] for row in read_rows(root / "data/augmented/rejected-train.jsonl")}
    file = root / "data/final/train.jsonl"
    write_rows(file, [row for row in read_rows(file) if row["id"] in asked])


def measured(root: Path, model: str) -> dict[str, Any]:
    """Return what evaluation says of a model."""
    run(root, f"evaluate@{model}")
    report = json.loads((root / f"reports/eval/{model}.json").read_text())
    return {"task": report["task"]}


def train(root: Path, method: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Train one arm and measure it."""
    write_settings(root, params(given.base, method, seed, given))
    took = {stage: run(root, stage) for stage in ("preprocess", "train", "lora")}
    report = json.loads((root / "reports/train.json").read_text())
    keys = ("steps", "tokens", "loss_first", "loss_last", "monitoring", "eval_loss_before", "eval_loss")
    return {
        "method": method,
        "seed": seed,
        "seconds": took,
        "train": {key: report[key] for key in keys if key in report},
        "history": list(read_rows(root / "reports/train.jsonl"))[-2:],
        **measured(root, "adapter"),
    }


def main() -> None:
    """Run what is missing and print the table."""
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("base", type=Path)
    options.add_argument("data", type=Path)
    options.add_argument("--rows", type=int, default=32, help="training rows with a flawed answer")
    options.add_argument("--raw-rows", type=int, default=400)
    options.add_argument("--every", type=int, default=5, help="take one of so many short rows")
    options.add_argument("--task-rows", type=int, default=32)
    options.add_argument("--steps", type=int, default=8)
    options.add_argument("--rate", type=float, default=1e-4)
    options.add_argument("--threads", type=int, default=2, help="of llama.cpp; fewer where others work too")
    options.add_argument("--folder", type=Path, default=Path("augmented-pairs"))
    given = options.parse_args()
    root = given.folder.resolve()
    file = root / "augmented_pairs.json"
    figures: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    if "prepared" not in figures:
        figures["prepared"] = prepare(root, given)
        figures["augment"] = json.loads((root / "reports/augment/rejected.json").read_text())
        same_answers(root)
        write_json(file, figures)
    if "base" not in figures:
        # An evaluation needs a trained adapter, so the first arm is trained before it.
        figures.setdefault("arms", {})[f"dpo-{SEEDS[0]}"] = train(root, "dpo", SEEDS[0], given)
        figures["base"] = measured(root, "base")
        write_json(file, figures)
    for method in ("dpo", "sft"):
        for seed in SEEDS:
            name = f"{method}-{seed}"
            if name not in figures["arms"]:
                figures["arms"][name] = train(root, method, seed, given)
                write_json(file, figures)
    print(table(figures))


def table(figures: dict[str, Any]) -> str:
    """Return the arms as a table in Markdown."""
    lines = [
        "| arm | seed | held-out pairs told right | ROUGE-L | 95 % interval |",
        "| --- | --- | --- | --- | --- |",
    ]
    rows = [("base", "", figures["base"])]
    rows += [(arm["method"], arm["seed"], arm) for arm in figures["arms"].values()]
    for name, seed, arm in rows:
        task = arm["task"]
        interval = f"{task['score_low']:.3f} to {task['score_high']:.3f}"
        lines.append(f"| {name} | {seed} | {accuracy(arm)} | {task['score']:.3f} | {interval} |")
    for method in ("dpo", "sft"):
        scores = [arm["task"]["score"] for arm in figures["arms"].values() if arm["method"] == method]
        if scores:
            lines.append(f"| {method}, mean | {len(scores)} seeds | | {fmean(scores):.3f} | |")
    return "\n".join(lines)


def accuracy(arm: dict[str, Any]) -> str:
    """Return the share of held-out pairs that a training told right, "" for one without pairs."""
    evaluations = [line for line in arm.get("history", []) if line["kind"] == "eval"]
    measures = evaluations[-1].get("measures", {}) if evaluations else {}
    return f"{measures['accuracy']:.2f} of {evaluations[-1]['items']}" if measures else ""


if __name__ == "__main__":
    main()
