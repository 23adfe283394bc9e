"""How many bytes the file of a budget of `quantize.budgets` may have. Pure arithmetic."""

from pipeline.config.budgets import Budget
from pipeline.config.sections import Serve
from pipeline.planning.serving import BUFFERS, prompt_cache


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
