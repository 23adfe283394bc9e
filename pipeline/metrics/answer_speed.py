"""How fast llama-server reads a prompt and writes an answer, by its own timings, and whether such figures
hold.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from pipeline.llamacpp.server import Server


@dataclass(frozen=True)
class Speed:
    """One answer's speeds, in tokens per second."""

    prompt: float
    generation: float


def answer_speed(server: Server, prompt: int, tokens: int) -> Speed:
    """The speeds of one answer of exactly `tokens` tokens to a prompt of `prompt` tokens, none of them kept
    from before.
    """
    ids = server.post("/tokenize", {"content": "Hello! " * prompt})["tokens"][:prompt]
    asked = {"prompt": ids, "n_predict": tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    timings = server.post("/completion", asked)["timings"]
    return Speed(float(timings["prompt_per_second"]), float(timings["predicted_per_second"]))


def runs_of(values: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest of several runs."""
    return {"median": round(median(values), 2), "low": round(min(values), 2), "high": round(max(values), 2)}


def is_disturbed(evaluation: Mapping[str, Any]) -> bool:
    """Whether something else kept the machine busy while a model's speeds were measured, so that they are no
    figures of the model.
    """
    return bool((evaluation.get("speed") or {}).get("disturbed"))


def measure_again(models: Iterable[str]) -> str:
    """The command that measures these models again and makes the report again."""
    return f"snakemake --forcerun {' '.join(f'reports/eval/{model}.json' for model in models)}"
