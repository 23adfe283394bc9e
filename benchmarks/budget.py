"""Measures levels made to measure against every fixed level, and against allocations by the error of weights
and by chance.

    python benchmarks/budget.py ROOT [--sizes 80MB 85MB 95MB 105MB] [--levels Q4_0 …] [--rows 64] [--draws 2]
        [--out FILE]

ROOT is a finished project of merged models (the demo's, say). What each tensor costs is measured once, at
the middle size, on training rows, as stage `budget` does; swaps are not tried. Every file is made by
llama-quantize; its divergence from the 16-bit GGUF is measured on held-out rows (data/final/test.jsonl) at
the positions that training teaches. Intervals are 95 %, by bootstrap over rows; differences are paired. By
weight error: the knapsack over Σ (rounded − 16 bit)². By chance: over random damages that fall with the bits,
each draw a file. What was measured is kept in ROOT/models/.budget/benchmark, so that a run that was cut goes
on.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
COLUMNS = (
    "allowed",
    "file",
    "bytes",
    "predicted KLD",
    "KLD, nats (95 %)",
    "less the fixed level's (95 %)",
    "p",
)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, metavar="ROOT")
    parser.add_argument("--sizes", nargs="+", default=["80MB", "85MB", "95MB", "105MB"])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--levels", nargs="+", help="fixed levels, instead of all that are not far larger")
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{' --- |' * len(COLUMNS)}"]
    print(*lines, sep="\n", flush=True)
    started = time.monotonic()
    for line in measured(arguments):
        lines.append(line)
        print(line, flush=True)
    lines.append(f"\n{(time.monotonic() - started) / 60:.0f} minutes, {arguments.rows} rows.")
    print(lines[-1])
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def measured(arguments: Any) -> Iterator[str]:
    """The rows of the table."""
    from pipeline.chat.tokens import load_tokenizer
    from pipeline.config.budgets import FOLDER, parse_budget
    from pipeline.config.params import load_params
    from pipeline.gguf.file import check_gguf
    from pipeline.llamacpp.tools import find_toolchain
    from pipeline.metrics.intervals import interval
    from pipeline.planning.level_bytes import level_bytes
    from pipeline.planning.shape import load_shape
    from pipeline.stages.budget.files import Maker, judging
    from pipeline.stages.budget.knapsack import allocate
    from pipeline.stages.budget.scratch import name_of, open_scratch
    from pipeline.stages.budget.search import RIVALS, Task, damages_of, prompts
    from pipeline.stages.budget.sizes import bits, choices, offered, uniform
    from pipeline.stages.budget.stage import encoded, read_data
    from pipeline.stages.budget.swaps import paired, predicted

    root, params = arguments.root, load_params(arguments.root / "params.yaml")
    longest, seed = params.evaluate.ctx_size, params.evaluate.seed
    source = root / "models/gguf" / f"{params.convert.name}-{params.convert.type}.gguf"
    final, tokenizer = root / "data/final", root / "models/adapter"
    data = read_data(tokenizer, final / "train.jsonl", final / "val.jsonl", longest, seed)
    drawn = encoded(load_tokenizer(tokenizer), final / "test.jsonl", longest, arguments.rows, seed)
    test = [one for _, one in drawn]
    scratch = open_scratch(root / FOLDER / "benchmark", {"rows": arguments.rows, "train": len(data.damage)})
    tools, merged = find_toolchain(params.llamacpp.home), root / "models/merged"
    maker = Maker(source, None, "benchmark", scratch, 2, tools)
    header = check_gguf(source)
    sizes, start = offered(header), header.start + (1 << 10)
    allowed = {text: int(budget.amount) for text in arguments.sizes if (budget := parse_budget(text))}
    middle = sorted(allowed.values())[len(allowed) // 2] - start
    shape = load_shape(merged / "config.json")
    task = Task(sizes, middle, start, merged, shape, data, params.evaluate.threads, seed)
    low = uniform(sizes, middle)
    by_type, low_kld = damages_of(maker, task, low)
    print(f"<!-- even types: {low_kld:.4f} nats on training rows, {predicted(by_type, low):.4f} by kind -->")
    plain = scratch.once("plain", lambda: plain_errors(maker, sizes, list(low)))
    with judging(maker, prompts(test), params.evaluate.threads) as judge:

        def rows_of(types: Any) -> Any:
            def measure() -> Any:
                with maker.passing(types, sizes) as file:
                    return {"bytes": file.stat().st_size, "rows": judge.rows(file)}

            return scratch.once(f"test-{name_of(types)}", measure)

        def level_rows(level: str) -> Any:
            def measure() -> Any:
                file = maker.make_level(scratch.folder / "level.gguf", level)
                return {"bytes": file.stat().st_size, "rows": judge.rows(file)}

            return scratch.once(f"level-{level}", measure)

        def line(text: str, name: str, found: Any, rival: Any = None, guess: float | None = None) -> str:
            low_end, high_end = interval(found["rows"], seed)
            mean = sum(found["rows"]) / len(found["rows"])
            cells = [text, name, f"{found['bytes']:,}", "" if guess is None else f"{guess:.4f}"]
            cells.append(f"{mean:.4f} ({low_end:.4f} to {high_end:.4f})")
            if rival is None:
                cells += ["", ""]
            else:
                one = paired(rival["rows"], found["rows"], seed)
                cells += [f"{one.difference:+.4f} ({one.low:+.4f} to {one.high:+.4f})", f"{one.p_value:.4f}"]
            return f"| {' | '.join(cells)} |"

        fixed = {}
        near = [one for one in RIVALS if level_bytes(shape, one) < 1.1 * max(allowed.values())]
        for level in arguments.levels or near:
            fixed[level] = level_rows(level)
            yield line("", level, fixed[level])
        for text, most in allowed.items():
            fitting = [level for level, found in fixed.items() if found["bytes"] <= most]
            largest = max(fitting, key=lambda level: fixed[level]["bytes"], default="")
            rival = fixed.get(largest)
            types = allocate(by_type, sizes, most - start)
            yield line(
                text, f"by divergence, against {largest}", rows_of(types), rival, predicted(by_type, types)
            )
            types = allocate(plain, sizes, most - start)
            yield line(text, "by weight error", rows_of(types), rival, predicted(by_type, types))
            for draw in range(arguments.draws):
                dice = random.Random(draw)  # noqa: S311
                chance = {
                    name: {kind: weight * 4.0 ** -bits(kind) for kind in each}
                    for name, each in choices(sizes).items()
                    if (weight := dice.lognormvariate(0, 1) * max(each.values()))
                }
                types = allocate(chance, sizes, most - start)
                yield line(text, f"by chance, {draw + 1}", rows_of(types), rival, predicted(by_type, types))


def plain_errors(maker: Any, sizes: Any, names: list[str]) -> dict[str, dict[str, float]]:
    """{tensor: {type: Σ (rounded − 16 bit)²}}."""
    import numpy as np

    from pipeline.planning.budget import MENU
    from pipeline.stages.budget.damage import curved_errors
    from pipeline.stages.budget.gradient import Sensitivity

    shapes = {name: tensor for name, tensor in tensors(maker.source).items() if name in names}
    flat = {  # a curvature of 2 everywhere: r · c ÷ Σ r
        name: Sensitivity(np.zeros(1), np.ones(one.rows), np.full(one.columns, 2.0 * one.rows))
        for name, one in shapes.items()
    }
    found: dict[str, dict[str, float]] = {name: {} for name in names}
    for kind in MENU:
        mine = {name: flat[name] for name in names if kind in sizes[name]}
        rounded = {name: kind if name in mine else list(sizes[name])[-1] for name in names}
        with maker.passing(rounded, sizes) as file:
            for name, error in curved_errors(maker.source, file, mine).items():
                found[name][kind] = error
    for name in names:
        found[name] |= {kind: 0.0 for kind in sizes[name] if kind not in MENU}
    return found


def tensors(file: Path) -> Any:
    """The tensors of a GGUF."""
    from pipeline.gguf.tensors import gguf_tensors

    return gguf_tensors(file)[1]


if __name__ == "__main__":
    main()
