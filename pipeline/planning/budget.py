"""How many bytes the file of a budget of `quantize.budgets` may have. Pure arithmetic."""

from collections.abc import Sequence

from pipeline.config.budgets import Budget, parse_budget
from pipeline.config.ggml_types import TYPES
from pipeline.config.sections import Serve
from pipeline.core.errors import ConfigError
from pipeline.core.units import size_text
from pipeline.planning.level_bytes import HEADER_PER_TOKEN, level_bytes, unquantized_bytes
from pipeline.planning.serving import BUFFERS, cache_per_token, prompt_cache
from pipeline.planning.shape import Shape

# the types that a budget may give a tensor, the smallest first: what llama-quantize makes without an
# importance matrix and the package gguf reads back. Left out: IQ3_S (the size of Q3_K; its search takes ten
# times as long), ternary and one-bit types, which are for models trained in them, and Q2_0, which the package
# can't read
MENU = (
    "Q2_K",
    "Q3_K",
    "MXFP4",
    "IQ4_XS",
    "Q4_0",
    "IQ4_NL",
    "Q4_K",
    "Q4_1",
    "Q5_0",
    "Q5_K",
    "Q5_1",
    "Q6_K",
    "Q8_0",
)
ON_A_GPU = Serve(n_gpu_layers=1)


def most_bytes(budget: Budget, *, weights: int, header: int, cache: int, serve: Serve) -> int:
    """The largest file that `budget` allows, in bytes; below 0 if the KV cache alone is too large.

    `weights` is how many the model has, `header` the bytes before them in the file (bits per weight count
    weights only), `cache` the KV cache's bytes of a token. What serving takes is that of
    `pipeline.planning.serving`: weights, cache, a tenth of both for buffers, and the prompt cache.
    """
    if budget.kind == "size":
        return int(budget.amount)
    if budget.kind == "bits":
        return header + int(budget.amount * weights / 8)
    spare = (budget.amount - prompt_cache(serve)) / (1 + BUFFERS)
    return int(spare - cache * budget.context * serve.parallel)


def need_room(text: str, most: int, *, least: int, largest: int, bits: float) -> None:
    """Raise `ConfigError` unless the budget `text`, whose file may have `most` bytes, holds the smallest file
    of the model, of `least` bytes and `bits` per weight, and isn't the 16-bit one of `largest`.
    """
    if most < 0:
        raise ConfigError(
            "Q-BUDGET-002",
            f"quantize.budgets: {text} doesn't hold the KV cache, let alone weights: name more memory or "
            "fewer tokens",
        )
    if most < least:
        raise ConfigError(
            "Q-BUDGET-003",
            f"quantize.budgets: {text} allows a file of {size_text(most)}, and the smallest of this model "
            f"has {size_text(least)} ({bits:.2f} bits per weight): raise it, or take a smaller base",
        )
    if most >= largest:
        raise ConfigError(
            "Q-BUDGET-004",
            f"quantize.budgets: {text} allows a file of {size_text(most)}, and the 16-bit one has "
            f"{size_text(largest)}: lower it, or serve the 16-bit file",
        )


def file_bytes(shape: Shape, level: str, serve: Serve = ON_A_GPU) -> int:
    """GGUF bytes of a level or 16-bit type, or the most a budget's file may have, served as `serve` says."""
    if budget := parse_budget(level):
        return max(0, min(planned_most(shape, budget, serve), level_bytes(shape, "F16")))
    return level_bytes(shape, level)


def planned_most(shape: Shape, budget: Budget, serve: Serve) -> int:
    """`most_bytes` of a model of which there is no file yet."""
    header = HEADER_PER_TOKEN * shape.vocabulary
    cache = cache_per_token(shape)
    return most_bytes(budget, weights=shape.parameters, header=header, cache=cache, serve=serve)


def check_budgets(shape: Shape, budgets: Sequence[str], serve: Serve) -> None:
    """Raise `ConfigError` if no file of a budget could be made, before hours are spent on the model that it
    would be made from.
    """
    if shape.mixture and budgets:
        raise ConfigError(
            "Q-BUDGET-009",
            f"quantize.budgets names {budgets[0]}, and of a mixture of experts is not known what each tensor "
            "costs: take quantize.budgets out for this model",
        )
    linears = [(linear.inputs, linear.weights) for layer in shape.by_layer for linear in layer]
    tables = [(shape.hidden, shape.table_weights * (1 if shape.tied else 2))]
    smallest = sum(smallest_bytes(*matrix) for matrix in linears + tables)
    weights = sum(elements for _, elements in linears + tables)
    for text in budgets:
        if budget := parse_budget(text):
            need_room(
                text,
                planned_most(shape, budget, serve),
                least=smallest + unquantized_bytes(shape),
                largest=level_bytes(shape, "F16"),
                bits=8 * smallest / weights,
            )


def smallest_bytes(columns: int, weights: int) -> int:
    """Bytes of `weights` elements in rows of `columns`, in the smallest type whose block divides a row."""
    packing = (TYPES[kind] for kind in (*MENU, "F16"))
    return min(weights // kind.weights * kind.bytes for kind in packing if columns % kind.weights == 0)
