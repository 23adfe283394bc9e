"""Measures how long evaluating three levels of a finished project takes, part by part; the demo's limit is 4
minutes on 2 cores.

    python benchmarks/evaluate.py PROJECT [--models F16 Q4_K_M Q5_K_M] [--threads N]

PROJECT's params.yaml, GGUFs, adapter and held-out rows are read, nothing is written there. Each model is
measured in a process of its own, as the stage is; its start and imports count. CPU seconds are those of the
process and of every tool it ran: on a machine with other work they say what the clock can't. `--threads`
replaces evaluate.threads and serve.threads.
"""

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
LIMIT = 240  # seconds, for three levels of the demo


def cpu_seconds() -> float:
    """Of this process and the tools that it ran."""
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def one(project: Path, model: str, threads: int | None) -> None:
    """The child: measure one model and print a line for each part."""
    from pipeline.config.params import load_params
    from pipeline.config.sections import reference_of
    from pipeline.llamacpp.tools import find_toolchain
    from pipeline.stages.evaluate import stage as stage
    from pipeline.stages.evaluate.files import ModelFiles

    plain = stage.timed
    print(f"  {'imports':12} {'':8}          {cpu_seconds():7.1f} s of CPUs")

    @contextmanager
    def timed(seconds: dict[str, float], part: str) -> Iterator[None]:
        before = cpu_seconds()
        with plain(seconds, part):
            yield
        print(
            f"  {part:12} {seconds[part]:8.1f} s by the clock {cpu_seconds() - before:7.1f} s of CPUs",
            flush=True,
        )

    stage.timed = timed
    params = load_params(project / "params.yaml")
    use = {} if threads is None else {"threads": threads}
    folder, name = project / "models/gguf", params.convert.name
    figures, _ = stage.evaluate(
        files=ModelFiles(folder / f"{name}-{model}.gguf"),
        reference=folder / f"{name}-{reference_of(model, params.convert.type)}.gguf",
        tokenizer=project / "models/adapter",
        rows=project / "data/final/test.jsonl",
        root=project,
        settings=params.evaluate.model_copy(update=use),
        serve=params.serve.model_copy(update=use),
        tools=find_toolchain(params.llamacpp.home),
    )
    print({key: value for key, value in figures.items() if key not in ("general", "tensor_types")})


def main() -> None:
    """Measure each model in a child and print the sums."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("project", type=Path)
    parser.add_argument("--models", nargs="+", default=["F16", "Q4_K_M", "Q5_K_M"])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        one(asked.project, asked.one, asked.threads)
        return
    begin, before = time.perf_counter(), cpu_seconds()
    for model in asked.models:
        print(model, flush=True)
        start, used = time.perf_counter(), cpu_seconds()
        more = ["--threads", str(asked.threads)] if asked.threads else []
        subprocess.run([sys.executable, __file__, str(asked.project), "--one", model, *more], check=True)
        print(
            f"  {'whole stage':12} {time.perf_counter() - start:8.1f} s by the clock "
            f"{cpu_seconds() - used:7.1f} s of CPUs",
            flush=True,
        )
    print(
        f"{len(asked.models)} models: {time.perf_counter() - begin:.0f} s by the clock (the demo's limit for "
        f"three: {LIMIT} s), {cpu_seconds() - before:.0f} s of CPUs"
    )


if __name__ == "__main__":
    main()
