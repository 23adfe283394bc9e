"""What each stage takes, planned and seen: peak memory, time and disk, on a base of any size.

    python benchmarks/stages.py --base qwen2.5-coder-1.5b-instruct-q4_k_m.gguf     # an official GGUF
    python benchmarks/stages.py --shape 7b-2-layers                                # random weights

Below DIR (by default a temporary folder, removed afterwards) it makes a project with the demo's settings and
rows, runs its stages one by one, and prints a line for each. What fails is named and left out.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from benchmarks.random_base import SHAPES, write_base
from pipeline.commands.recipes import recipe_file
from pipeline.core.places import PROJECT
from pipeline.core.usage import Figures, usages

EVALUATED = ("F16", "Q4_K_M")
STAGES = (
    *("base", "curate", "preprocess", "train", "merge", "convert", "quantize@Q4_K_M", "parity"),
    *(f"evaluate@{model}" for model in EVALUATED),
)


def lay(root: Path, base: dict[str, object], steps: int) -> None:
    """A project with the demo's settings, but for the base, the steps and the levels."""
    settings = yaml.safe_load(recipe_file("demo").read_text(encoding="utf-8"))
    settings["base"] = base
    settings["train"]["max_steps"] = steps
    settings["quantize"] = {"levels": ["Q4_K_M"]}
    settings["evaluate"] = settings.get("evaluate", {}) | {"models": list(EVALUATED)}
    (root / "data/raw").mkdir(parents=True, exist_ok=True)
    (root / "params.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    rows = root / "data/raw/pydoc.jsonl"
    subprocess.run([sys.executable, PROJECT / "examples/pydoc.py", "--out", rows], check=True)


def line(stage: str, planned: Figures, seen: Figures) -> str:
    """A stage's line of the table."""

    def cell(value: float | None, unit: float, digits: int) -> str:
        return "–" if value is None else f"{value / unit:,.{digits}f}"

    pairs = ((planned.peak, seen.peak, 1e9, 2), (planned.seconds, seen.seconds, 1, 0))
    cells = [cell(value, unit, digits) for *both, unit, digits in pairs for value in both]
    disk = [cell(value, 1e6, 0) for value in (planned.disk, seen.disk)]
    return f"| {' | '.join([stage, *cells, *disk])} |"


def main() -> None:
    """Run the stages and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--base", type=Path, help="a GGUF")
    which.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--dir", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quench-stages-") as scratch:
        root = (given.dir or Path(scratch)).resolve()
        root.mkdir(parents=True, exist_ok=True)
        if given.shape and not (root / "random").exists():
            write_base(root / "random", given.shape)
        base = {"model": str(root / "random")}
        if given.base:
            base = {"model": str(given.base.absolute())}
        lay(root, base, given.steps)
        failed = {}
        for stage in STAGES:
            given_files = ["--root", root, "--params", root / "params.yaml"]
            command = [sys.executable, "-m", "pipeline", stage, *given_files]
            done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
            if done.returncode:
                failed[stage] = done.stderr.strip().splitlines()[-1][:200]
            print(f"{stage}: exit status {done.returncode}", file=sys.stderr, flush=True)
        print("| stage | peak planned, GB | seen | seconds planned | seen | disk planned, MB | seen |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
        noted = usages(root)
        for stage in STAGES:
            if stage in noted:
                print(line(stage, noted[stage].planned, noted[stage].seen))
        for stage, reason in failed.items():
            print(f"\n{stage}: {reason}")


if __name__ == "__main__":
    main()
