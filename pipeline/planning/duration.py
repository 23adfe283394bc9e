"""The time plan: optimizer steps and tokens of a run, floating-point operations over the card's throughput,
and copies of weights that are kept in main memory.
"""

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pipeline.config.methods import METHODS
from pipeline.config.sections import Train
from pipeline.config.targets import rank_of
from pipeline.core.cpu import multiplied_in
from pipeline.core.errors import DataError
from pipeline.core.hardware import Card, usable_cores
from pipeline.core.jsonl import BadLine, parse_record
from pipeline.planning.machine_rate import Rate
from pipeline.planning.memory.weights import first_trained, offloaded_bytes, table_trains, targets
from pipeline.planning.setup import Setup

# Dense bf16 (T4: fp16) tensor TFLOP/s with float32 sums, by a part of the name that nvidia-smi shows; from
# NVIDIA's data sheets.
PEAK = {
    "H200": 989.0,
    "H100": 989.0,
    "A100": 312.0,
    "L40S": 362.0,
    "L4": 121.0,
    "A10": 125.0,
    "T4": 65.0,
    "4090": 165.0,
    "3090": 71.0,
}
UTILIZATION = 0.4  # assumed share of that peak
# TFLOP/s of a core's products, if this machine was not measured. In bfloat16 (AVX512-BF16): between those of
# two hosts with a CPU of the same name, 0.19 and about 0.33. In float32: those of a host with AVX2.
CORE_TFLOPS = {"bfloat16": 0.25, "float32": 0.075}
# Time of a training step on a CPU, as a multiple of its operations' at the rate of the products alone.
STEP_FACTOR = 1.4
# Assumed bytes a second from pinned memory to the GPU, over PCIe 3.0 × 16 or 4.0 × 8 (15.8 GB/s by the
# standards).
PCIE = 12e9


@dataclass(frozen=True)
class Work:
    """Tokens that a run trains on, over its optimizer steps.

    `row_tokens` is the mean length of a row before packing, `trained` the share of tokens with a loss; None
    if it is not known. `held_out` are the tokens of an evaluation, `epoch_steps` the steps of a pass.
    """

    tokens: int
    steps: int
    row_tokens: float | None = None
    trained: float | None = None
    held_out: int = 0
    epoch_steps: int = 1


def warmup_steps(settings: Train, rows: int) -> int:
    """Return `warmup_ratio` of `rows` training rows' optimizer steps, rounded up as in transformers 4."""
    return math.ceil(total_steps(settings, rows) * settings.warmup_ratio)


def total_steps(settings: Train, rows: int) -> int:
    """Return the optimizer steps of a complete run over `rows` training rows."""
    if settings.max_steps > 0:
        return settings.max_steps
    return math.ceil(steps_per_epoch(settings, rows) * settings.num_train_epochs)


def steps_per_epoch(settings: Train, rows: int) -> int:
    """Return the optimizer steps of one pass over `rows` training rows."""
    batches = math.ceil(rows / settings.per_device_train_batch_size)
    return math.ceil(batches / settings.gradient_accumulation_steps)


def interval(every: int | Literal["epoch"], epoch_steps: int) -> int:
    """Return the steps of `train.eval_steps` or `train.save_steps`, of which a pass has `epoch_steps`."""
    return epoch_steps if every == "epoch" else every


def flops_per_token(setup: Setup, work: Work | None = None) -> float:
    """Return the floating-point operations of a token.

    They are 42.5 GFLOP for Qwen2.5-7B at 1,024 tokens with checkpointing. With `work` the head counts for
    tokens with a loss, and attention for the rows' mean length; without it for all tokens and the longest.

    Per weight 2 for the forward, 2 for the gradient of its input (frozen weights have none of their own), 2
    if the forward is recomputed. The head's is recomputed only if it trains, and then has a gradient too.
    Layers below the first that trains have only the forward. The adapter adds 2 for its gradients. Attention:
    4 per query width and key, half of them masked, ×2 in the backward (Kaplan et al., arXiv:2001.08361,
    appendix B). `forwards` are added.
    """
    shape = setup.shape
    train = setup.train
    trained = enumerate(targets(setup))
    back = 1 - first_trained(setup) / shape.layers
    again = 2 / int(train.gradient_checkpointing) if train.gradient_checkpointing else 0
    if setup.train.tuning.inside:  # The gradient of every weight is computed, and summed per scale.
        adapter = 2.0 * sum(linear.weights for _, linears in trained for linear in linears)
    else:  # A token uses only the adapters of its own experts.
        adapter = (6 + again) * sum(
            rank_of(linear.path(layer), train) * linear.used * (linear.inputs + linear.outputs)
            for layer, linears in trained
            for linear in linears
        )
    row_tokens = min(work.row_tokens, setup.max_length) if work and work.row_tokens else setup.max_length
    attention = shape.layers * 4 * shape.queries * row_tokens / 2
    weights = shape.used_weights * (2 + (2 + again) * back)
    scores = attention * (1 + (2 + again / 2) * back)
    forward = 2 * (shape.used_weights + shape.table_weights) + attention
    per_weight = 8 if table_trains("lm_head", setup) else 4
    with_loss = 1.0
    if work and work.trained and setup.loss != "plain":  # Plain computes all logits.
        with_loss = work.trained
    head = shape.table_weights * per_weight * with_loss
    return weights + head + adapter + scores + forwards(train) * forward


def forwards(train: Train) -> float:
    """Return the average number of forwards of a token in addition to training's own.

    These are the reference's in the first pass over the data, and KTO's other answers by the model in every
    pass; for GRPO its own likelihoods before a round, and those without the adapter if the divergence counts.
    """
    learning = METHODS[train.method]
    if learning.prompts:
        return 2.0 if train.grpo.kl_beta else 1.0
    passes = max(train.num_train_epochs, 1.0) if train.max_steps <= 0 else 1.0
    others = 1 + 1 / passes if learning.others else 0.0
    return learning.reference / passes + others


def run_of(train: Train, packed_rows: int, tokens: int, *, rows: int = 0, trained: int = 0) -> Work:
    """Return the work of a run over `packed_rows` training rows with `tokens` in all.

    They hold `rows` before packing, with a loss at `trained` tokens; 0 if that is not known. Steps are
    counted as in transformers, tokens on average; for prompts, with all completions at their longest.
    """
    epoch_steps = steps_per_epoch(train, packed_rows)
    epochs = train.max_steps / epoch_steps if train.max_steps > 0 else train.num_train_epochs
    if METHODS[train.method].prompts:
        tokens = train.grpo.group_size * (tokens + packed_rows * train.grpo.max_new_tokens)
        rows = 0  # The drawn completions are as long as nobody knows yet.
        trained = 0
    row_tokens = tokens / rows if rows else None
    share = trained / tokens if trained else None
    steps = total_steps(train, packed_rows)
    return Work(round(tokens * epochs), steps, row_tokens, share, epoch_steps=epoch_steps)


def work_in(root: Path, train: Train) -> Work | None:
    """Return the work in data/tokens; None if nothing is tokenized.

    Raises `DataError` for an unreadable record.
    """
    for name in ("data/tokens/manifest.json", "reports/labels.json"):
        if (root / name).is_file():
            try:
                splits = parse_record((root / name).read_bytes()).get("splits", {})
                split = splits.get("train", {})
            except BadLine as error:
                raise DataError(
                    "Q-PLANNING-004",
                    f"{root / name} can't be read ({error}): run `snakemake --force preprocess`",
                ) from error
            counts = split.get("packed_rows"), split.get("tokens")
            if not all(isinstance(number, int) and number > 0 for number in counts):
                raise DataError(
                    "Q-PLANNING-004",
                    f"{root / name} doesn't say how many rows and tokens there are: run `snakemake --force "
                    "preprocess`",
                )
            # Older manifests lack these.
            rows = split.get("sequences") or 0
            trained = split.get("trained_tokens") or 0
            work = run_of(train, *counts, rows=rows, trained=trained)
            return replace(work, held_out=splits.get("val", {}).get("tokens") or 0)
    return None


def product_tflops(rate: Rate | None) -> float:
    """Return the TFLOP/s of this CPU's products: as measured, else assumed by its cores."""
    if rate and rate.tflops:
        return rate.tflops
    return CORE_TFLOPS[multiplied_in()] * (usable_cores() or 1)


def reached_tflops(card: Card, rate: Rate | None) -> float | None:
    """Return the TFLOP/s that training reaches on this card by its name, or on the CPU by the products' rate.

    Return None for an unknown card.
    """
    if card.device == "cpu":
        return product_tflops(rate) / STEP_FACTOR
    peaks = (peak for name, peak in PEAK.items() if re.search(rf"\b{re.escape(name)}\b", card.name))
    return next((peak * UTILIZATION for peak in peaks), None)


def copied_bytes(setup: Setup) -> float:
    """Return the bytes that are copied to the GPU for a forward and its backward, at most.

    Each offloaded layer is copied once, and again from the first that trains on (if a layer is recomputed,
    that and its backward share a copy). `forwards` are added.
    """
    if not setup.train.offloaded_layers:
        return 0.0
    layers = offloaded_bytes(setup)
    return sum(layers) * (1 + forwards(setup.train)) + sum(layers[first_trained(setup) :])
