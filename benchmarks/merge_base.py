"""Measures which merge is closer to the trained model: into the base's 16-bit weights, or into the NF4
weights that training saw.

    python benchmarks/merge_base.py ROOT [--rows 200] [--task-rows 200] [--levels Q4_K_M Q5_K_M]

ROOT is a finished project (the demo's, say). Both merges are made, converted and quantized; each GGUF's
divergence from the NF4 model with its adapter is measured on held-out rows (data/final/test.jsonl) at the
positions that training teaches, and the task is scored at each level, greedily, by llama-server. Intervals
are 95 %, by bootstrap over rows; the last column is the paired difference. On two cores the demo takes about
half an hour with 200 rows of both kinds.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, metavar="ROOT")
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--task-rows", type=int, default=200)
    parser.add_argument("--levels", nargs="+", default=["Q4_K_M", "Q5_K_M"])
    arguments = parser.parse_args()
    print(
        "| level | merged into | mean KLD, nats (95 %) | same top token | task points (95 %) | paired: 16 "
        "bit − NF4, KLD | paired: points |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for level in arguments.levels:
        measure_level(arguments, level)


def measure_level(arguments: Any, level: str) -> None:
    """Both merges at `level` (and at F16, with the first level), as rows of the table."""
    from pipeline.config.params import load_params
    from pipeline.llamacpp.tools import find_toolchain
    from pipeline.metrics.forward import trained_logits
    from pipeline.metrics.intervals import interval
    from pipeline.stages.merge import choose
    from pipeline.stages.merge.stage import merge

    root, params = arguments.root, load_params(arguments.root / "params.yaml")
    base, adapter, seed = root / "models/base", root / "models/adapter", params.evaluate.seed
    settings = params.merge.model_copy(update={"rows": arguments.rows, "task_rows": arguments.task_rows})
    prompts, task_rows = choose.held_out(root / "data/final/test.jsonl", adapter, settings, params.evaluate)
    with tempfile.TemporaryDirectory(dir=root) as name:
        scratch, found = Path(name), {}
        with trained_logits(base=base, adapter=adapter, prompts=prompts, scratch=scratch) as reference:
            tools = find_toolchain(params.llamacpp.home)
            judge = choose.Judge(
                reference,
                prompts,
                task_rows,
                params.evaluate,
                params.convert.type,
                params.quantize.tensor_types,
                tools,
            )
            for merge_base in ("16-bit", "nf4"):
                merge(
                    base=base,
                    adapter=adapter,
                    merged=scratch / merge_base,
                    dtype=params.merge.dtype,
                    merge_base=merge_base,
                )
                found[merge_base] = choose.measure(scratch / merge_base, [level], judge, scratch)
        for model in (params.convert.type, level) if level == arguments.levels[0] else (level,):
            (sixteen_bit, sixteen_bit_points), (nf4, nf4_points) = (
                found[merge_base][model] for merge_base in ("16-bit", "nf4")
            )
            paired = "{:+.4f} to {:+.4f}".format(
                *interval([a - b for a, b in zip(sixteen_bit.kld_rows, nf4.kld_rows, strict=True)], seed)
            )
            task = ""
            if sixteen_bit_points and nf4_points:
                task = "{:+.1f} to {:+.1f}".format(
                    *interval(
                        [100 * (a - b) for a, b in zip(sixteen_bit_points, nf4_points, strict=True)], seed
                    )
                )
            for merge_base, one, points in (
                ("16 bit", sixteen_bit, sixteen_bit_points),
                ("NF4", nf4, nf4_points),
            ):
                kld = "{:.4f} ({:.4f} to {:.4f})".format(one.kld, *interval(one.kld_rows, seed))
                score = (
                    "{:.1f} ({:.1f} to {:.1f})".format(
                        *(100 * x for x in (sum(points) / len(points), *interval(points, seed)))
                    )
                    if points
                    else "–"
                )
                print(
                    f"| {model} | {merge_base} | {kld} | {one.same_top:.1%} | {score} | {paired} | "
                    f"{task or '–'} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
