"""How fast a GGUF reads prompts and writes answers, by `llama-bench`: the median of several runs and how far they lie apart."""

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from pipeline.llamacpp.tools import Toolchain, bench
from pipeline.progress import progress
from pipeline.sections import Evaluate

GENERATED = 32  # tokens written in each run


def speed(model: Path, settings: Evaluate, tools: Toolchain) -> dict[str, Any]:
    """Tokens per second at each of `prompt_lengths` and `generation_depths`, under `speed` and, as single figures, beside it.

    The prompt's single figure is the longest's, generation's the first depth's; `_spread` is half of highest − lowest run.
    Raises `ToolError` where llama-bench fails.
    """
    asked = (
        ("--n-prompt", numbers(settings.prompt_lengths), "--n-gen", "0"),
        ("--n-prompt", "0", "--n-gen", str(GENERATED), "--n-depth", numbers(settings.generation_depths)),
    )
    load = {"repetitions": settings.repetitions, "threads": settings.threads, "n_gpu_layers": settings.n_gpu_layers}
    tests = []
    with progress(f"evaluate: {model.name}, speed", len(settings.prompt_lengths) + len(settings.generation_depths)) as advance:
        for arguments in asked:
            for test in bench(tools, model, arguments, **load):
                tests.append(test)
                advance(1)
    prompt = [{"tokens": test["n_prompt"], **runs(test)} for test in tests if test["n_prompt"]]
    generation = [{"depth": test["n_depth"], "tokens": test["n_gen"], **runs(test)} for test in tests if test["n_gen"]]
    longest = max(prompt, key=lambda one: one["tokens"])
    return {
        "speed": {"prompt": prompt, "generation": generation},
        "prompt_tok_s": longest["median"], "prompt_tok_s_spread": spread(longest),
        "generation_tok_s": generation[0]["median"], "generation_tok_s_spread": spread(generation[0]),
    }  # fmt: skip


def numbers(values: list[int]) -> str:
    """A list as llama-bench takes it, each value once."""
    return ",".join(str(value) for value in dict.fromkeys(values))


def runs(test: Mapping[str, Any]) -> dict[str, Any]:
    """Median, lowest and highest of a test's runs, in tokens per second, and how many there are."""
    speeds = test["samples_ts"]
    return {"median": round(median(speeds), 2), "low": round(min(speeds), 2), "high": round(max(speeds), 2), "runs": len(speeds)}


def spread(one: Mapping[str, Any]) -> float:
    """Half the distance between the lowest and the highest run."""
    half: float = (one["high"] - one["low"]) / 2
    return round(half, 2)
