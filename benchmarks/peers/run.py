"""Quench beside what people use: the same rows, base and settings, 20 steps, one command a tool.

    python benchmarks/peers/run.py TOOL --base qwen2.5-coder-0.5b-instruct-q4_k_m.gguf [--seed 42] [--dir DIR]

Below DIR (by default in the user's cache) it makes base, rows and an environment of the tool's own, trains,
merges, makes a Q4_K_M with llama.cpp and lets Quench's evaluation judge it on 48 held-out rows. What the tool
is given is in benchmarks/peers/tools, as a user would write it. The figures go to
benchmarks/peers/results/TOOL-SEED.json, what the tool said to the file beside it; what it refuses stands
there in its own words.
"""

import argparse
import json
import shutil
import sys
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers.shared import (
    HERE,
    PROJECT,
    environment,
    judged,
    prepare,
    run,
    speeds,
    to_level,
    without_places,
    write,
)
from pipeline.core.hardware import machine


@dataclass(frozen=True)
class Tool:
    """`files` of benchmarks/peers/tools are what a user writes, `commands` what a user types from rows to a
    merged model, the training first; SEED in either is the seed.
    """

    environment: str
    files: tuple[str, ...]
    commands: tuple[str, ...]


def trl(options: str) -> Tool:
    """TRL's trainer with some options, and PEFT's merge."""
    train = f"python trl_train.py --seed SEED {options}"
    return Tool("trl", ("trl_train.py", "peft_merge.py"), (train, "python peft_merge.py"))


def quench(settings: str) -> Tool:
    """Quench's stages with some settings."""
    stages = ("preprocess", "train", "merge", "convert", "quantize@Q4_K_M")
    return Tool("quench", (settings,), tuple(f"quench {stage}" for stage in stages))


TOOLS = {
    "trl-packed": trl("--packing"),
    "trl-packed-float32": trl("--packing --float32"),
    "trl-packed-checkpointing": trl("--packing --checkpointing"),
    "trl-batch-1": trl("--batch 1"),
    "trl-batch-4": trl("--batch 4"),
    "unsloth-nf4": Tool(
        "unsloth",
        ("unsloth_train.py", "peft_merge.py"),
        ("python unsloth_train.py --seed SEED --nf4", "python peft_merge.py"),
    ),
    "unsloth-16bit": Tool("unsloth", ("unsloth_train.py",), ("python unsloth_train.py --seed SEED",)),
    "llamafactory": Tool(
        "llamafactory",
        ("llamafactory_train.yaml", "llamafactory_export.yaml"),
        (
            "llamafactory-cli train llamafactory_train.yaml",
            "llamafactory-cli export llamafactory_export.yaml",
        ),
    ),
    "soup": Tool(
        "soup",
        ("soup.yaml",),
        ("soup train --config soup.yaml --yes", "soup merge --adapter adapter --output merged"),
    ),
    "quench": quench("quench.yaml"),
    "quench-merge-16bit": quench("quench_merge_16bit.yaml"),
}
LEVEL = "models/gguf/demo-Q4_K_M.gguf"  # where Quench puts it, so all
MODULES = {"llamafactory-cli": "llamafactory.cli", "soup": "soup_cli", "quench": "pipeline"}


def spelled(command: str, python: Path, steps: Path | None) -> list[str | Path]:
    """A command as it is run: with the tool's Python, and watched if it trains."""
    name, *rest = command.split()
    words: list[str | Path] = [*rest] if name == "python" else ["-m", MODULES[name], *rest]
    return [python, *([HERE / "watch.py", steps] if steps else []), *words]


def lay(tool: Tool, seed: int, shared: Path, place: Path) -> None:
    """An empty folder with base, rows and the tool's files."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    for name in ("base", "rows"):
        (place / name).symlink_to(shared / name)
    for file in tool.files:
        text = (HERE / "tools" / file).read_text(encoding="utf-8")
        laid = place / ("params.yaml" if file.startswith("quench") else file)
        laid.write_text(text.replace("SEED", str(seed)), encoding="utf-8")
    if tool.environment == "quench":
        shutil.copytree(shared / "project/data/final", place / "data/final")
        for name in ("base", "base.json"):
            (place / "models").mkdir(exist_ok=True)
            (place / "models" / name).symlink_to(shared / "project/models" / name)


def lines(tool: Tool) -> int:
    """How many lines a user writes: without empty ones and comments."""
    texts = [(HERE / "tools" / file).read_text(encoding="utf-8").splitlines() for file in tool.files]
    return sum(bool(line.strip()) and not line.strip().startswith("#") for text in texts for line in text)


def measure(name: str, tool: Tool, seed: int, shared: Path) -> dict[str, Any]:
    """Run the tool's commands and llama.cpp's, and give what they took."""
    place, steps = shared / "runs" / name, shared / "runs" / f"{name}.steps.jsonl"
    ours = tool.environment == "quench"
    python = Path(sys.executable) if ours else environment(tool.environment, shared)
    lay(tool, seed, shared, place)
    plain = partial(without_places, shared=shared)
    log = HERE / "results" / f"{name}.log"
    log.unlink(missing_ok=True)
    steps.unlink(missing_ok=True)
    ran = []
    for command in tool.commands:
        watched = steps if " train" in command or "_train.py" in command else None
        words = spelled(command.replace("SEED", str(seed)), python, watched)
        ran.append(run(words, place, log, {"PYTHONPATH": str(PROJECT)} if ours else {}))
        if watched and not (steps.exists() and steps.read_bytes()):
            break  # it didn't train, so there is nothing to merge
    if (place / "merged").exists():
        ran += to_level(place / "merged", place / LEVEL, log)
    values = {
        "seed": seed,
        "date": date.today().isoformat(),
        "machine": machine(),
        "lines_of_configuration": lines(tool),
        "training": speeds(steps) if steps.exists() else None,
        "peak_bytes": max(one.peak_bytes for one in ran if "watch.py" in one.command),
        "commands": [
            asdict(one)
            | {"command": plain(one.command), "said": plain(one.said)[-2000:] if one.status else ""}
            for one in ran
        ],
    }
    log.write_text(plain(log.read_bytes().decode(errors="replace")), encoding="utf-8")
    if (place / LEVEL).exists():
        values["seconds_to_level"] = round(sum(one.seconds for one in ran), 1)
        values["bytes"] = (place / LEVEL).stat().st_size
    return values


def main() -> None:
    """Run one tool with one seed and write its figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tool", choices=TOOLS)
    parser.add_argument("--base", type=Path, help="the official GGUF; needed the first time")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--dir", type=Path, default=Path.home() / ".cache/quench-peers")
    parser.add_argument("--part", choices=("measure", "judge", "both"), default="both")
    given = parser.parse_args()
    shared, name = given.dir.resolve(), f"{given.tool}-{given.seed}"
    result, level = HERE / "results" / f"{name}.json", shared / "runs" / name / LEVEL
    if given.part != "judge":
        prepare(shared, given.base)
        write(result, measure(name, TOOLS[given.tool], given.seed, shared))
    values = json.loads(result.read_text(encoding="utf-8"))
    if given.part != "measure" and level.exists():
        values["judged"] = judged(level, shared / "project")
        write(result, values)
    print(json.dumps({key: value for key, value in values.items() if key != "commands"}, indent=1))


if __name__ == "__main__":
    main()
