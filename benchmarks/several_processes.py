"""How much faster two processes train than one, on a core each; and with the base shared out between them.

    python benchmarks/several_processes.py [--steps 8] [--rounds 2] [--tokens 512] [--accumulation 4]

All sides are `python -m pipeline train` on the same random two-layer model in NF4 and the same rows, in
turns; a side's figure is the median time of an optimizer step by its journal. Both end in the same adapter,
which is checked. Two processes on two cores would be twice as fast if sharing were free.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.random_base import write_base, write_rows
from pipeline.config.params import load_params
from pipeline.core.hashing import tree_hash
from pipeline.core.ranks import PROCESSES

PROJECT = Path(__file__).parents[1]
WARM_UP = 2  # steps


def write_project(root: Path, options: argparse.Namespace) -> None:
    """Everything that stage train reads."""
    base = write_base(root / "models/base", "tiny")
    write_rows(root / "data/tokens", base, options.tokens)
    params = load_params(PROJECT / "recipes/demo.yaml").model_dump(mode="json")
    params["train"] |= {
        "max_steps": options.steps,
        "save_steps": 10**6,
        "eval_steps": 10**6,
        "sample_rows": 0,
        "gradient_accumulation_steps": options.accumulation,
    }
    (root / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")


def step_seconds(
    project: Path, place: Path, processes: int, cores: set[int], *, shard_base: bool = False
) -> tuple[float, str]:
    """(the median seconds of a step after the warm-up, the adapter's hash) of a training on `cores`."""
    shutil.copytree(project, place)
    params = yaml.safe_load((place / "params.yaml").read_text(encoding="utf-8"))
    params["train"]["shard_base"] = shard_base
    (place / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "pipeline", "train", "--root", str(place)],
        cwd=PROJECT,
        env=os.environ | {PROCESSES: str(processes)},
        check=True,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    rows = map(json.loads, (place / "reports/train.jsonl").read_text(encoding="utf-8").splitlines())
    seconds = [row["seconds"] for row in rows if row["kind"] == "step"]
    return median(seconds[WARM_UP:]), tree_hash(place / "models/adapter")


def main() -> None:
    """Print each side's milliseconds a step, the speed-up and what sharing costs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=512, help="length of a packed row")
    parser.add_argument("--accumulation", type=int, default=4, help="micro-batches of an optimizer step")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        sys.exit("not measured: two processes need two cores, and this one may use one")
    ratios, shards = [], []
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project"
        write_project(project, options)
        for number in range(options.rounds):
            one, alone = step_seconds(project, Path(folder) / f"one-{number}", 1, {cores[0]})
            two, shared = step_seconds(project, Path(folder) / f"two-{number}", 2, set(cores))
            parts, of_parts = step_seconds(
                project, Path(folder) / f"parts-{number}", 2, set(cores), shard_base=True
            )
            ratios.append(one / two)
            shards.append(two / parts)
            same = "the same adapter" if {alone} == {shared, of_parts} else "ANOTHER ADAPTER"
            print(
                f"one process {one * 1e3:7.0f} ms/step   two {two * 1e3:7.0f}   with the base shared out "
                f"{parts * 1e3:7.0f}   {one / two:.2f} times as fast, {same}",
                flush=True,
            )
    print(
        f"median {median(ratios):.2f} times as fast: sharing takes {1 - median(ratios) / 2:.0%} of the two "
        f"processes' time ({options.steps} steps of {options.accumulation} rows of {options.tokens} tokens); "
        f"with the base shared out {median(shards):.2f} of that speed"
    )


if __name__ == "__main__":
    main()
