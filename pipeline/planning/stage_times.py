"""The time of each stage on a CPU: its start, what grows with the model, and its operations.

Operations take the time of the products at this machine's rate, divided by the share of that rate which
such code reaches. The figures are those of 2 cores (docs/measurements.md, "Times by the machine's rate").
"""

from dataclasses import dataclass
from math import ceil

from pipeline.config.ggml_types import TYPES
from pipeline.config.levels import ModelName
from pipeline.config.params import Params
from pipeline.config.sections import AUTO
from pipeline.config.sections.models import MERGE_ROWS
from pipeline.core.cpu import multiplied_in
from pipeline.core.hardware import usable_cores
from pipeline.planning.duration import STEP_FACTOR, interval, product_tflops
from pipeline.planning.model.level_bytes import matrices
from pipeline.planning.plan import Plan

CORES = 2  # on which the seconds below were measured
# (seconds of starting, seconds for 10⁹ parameters) besides operations: reading, rounding, writing, loading.
SECONDS = {
    "base": (20.0, 4.0),
    "train": (14.0, 20.0),
    "merge": (22.0, 10.0),
    "convert": (9.0, 7.0),
    "quantize": (1.0, 6.0),
    "parity": (33.0, 43.0),
    "evaluate": (8.0, 6.0),
}
SEARCHED = 45  # additional seconds for 10⁹ weights of types whose scales are searched for
SEARCHES = ("Q2_K", "Q3_K", "Q4_K", "Q5_K")
# Bytes a second that the disk wrote there; only a slower disk is counted.
WRITTEN_THERE = 400e6

# Shares of the products' rate: of a training step, and of prompts in llama.cpp, whose products are of float32
# on any CPU. The share of bfloat16's rate is between those of two hosts (0.42 at 0.40 TFLOP/s, 0.38 at 0.93);
# that of float32's follows from what they are.
STEP_SHARE = 1 / STEP_FACTOR
LLAMA_SHARE = {"bfloat16": 0.4, "float32": 1.0}
# How many times as long as F16's the products of a type take in llama.cpp; others take about as long. Seen in
# Q4_K_M of 1.5 billion parameters, and in Q5_K_M of 0.5.
SLOWNESS = {"Q4_K": 0.55, "Q5_1": 1.8, "Q5_K": 1.8}
SIXTEEN_BIT = ("F16", "BF16")
# A generated token takes the time of reading the weights, shared by the answers that are written at once, or
# as much as this many tokens of a prompt.
GENERATED = 2.5
SECONDS_ALONE = 43e-12  # for a parameter, on any of the levels

# Rows as the demo's, if nothing is tokenized: tokens, and the share of them that is answered.
ROW_TOKENS = 128
ANSWERED = 0.28
PARITY_PASSES = 27  # tokens that the models read for each token of parity.rows
ITSELF = 0.25  # share of the compared rows on which the 16-bit file is compared with itself
GENERAL_TOKENS = 120 * 32  # of the built-in questions of general ability
SPEED_TOKENS = 1400  # prompts of `pipeline.stages.evaluate.speed`
SPEED_GENERATED = 128


@dataclass(frozen=True)
class Times:
    """Seconds of a stage, and those that its operations would take at the rate of the products alone."""

    seconds: float | None
    products: float | None = None


UNKNOWN = Times(None)


def times(name: str, item: str, params: Params, plan: Plan) -> Times:
    """Return the wall time of a stage on this machine's cores, without a download.

    It is unknown on a GPU (except for the steps of training), and for a base that isn't unpacked. `products`
    is only known if this machine was measured.
    """
    rate = product_tflops(plan.rate)
    if plan.setup.device != "cpu":
        return Times(plan.seconds) if name == "train" else UNKNOWN
    if name == "base" and not params.base.gguf_name:
        return UNKNOWN
    if name == "train" and plan.seconds is None:
        return UNKNOWN
    besides = fixed(name, item, params, plan)
    if name == "train":
        assert plan.seconds is not None
        evaluating = evaluated_tokens(params, plan) * forward(plan)
        operations = plan.flops_per_token * (plan.work.tokens if plan.work else 0) + evaluating
        seconds = plan.seconds + evaluating / (rate * 1e12 * STEP_SHARE)
    else:
        operations = llama_tokens(name, item, params, plan, by_time=False) * forward(plan)
        timed = llama_tokens(name, item, params, plan, by_time=True) * forward(plan)
        seconds = timed / (rate * 1e12 * LLAMA_SHARE[multiplied_in()])
    products = None
    if plan.rate and plan.rate.tflops and operations:
        products = operations / (rate * 1e12)
    return Times(seconds + besides, products)


def fixed(name: str, item: str, params: Params, plan: Plan) -> float:
    """Return the seconds of a stage that don't depend on the rate of products."""
    start, by_model = SECONDS[name]
    growing = by_model * plan.setup.shape.parameters / 1e9
    if name == "quantize":
        growing += searching(item, plan)
    if name == "merge" and chooses(params, plan):  # A level of either merge is quantized.
        level = params.quantize.deciding
        growing += 2 * (SECONDS["quantize"][1] * plan.setup.shape.parameters / 1e9 + searching(level, plan))
    if name == "evaluate":
        growing += waiting(ModelName(item), params, plan)
    return start + growing * CORES / (usable_cores() or CORES)


def slow_disk(written: int | None, plan: Plan) -> float:
    """Return the seconds that writing takes longer than on the disk of the measured times."""
    if not (written and plan.rate and plan.rate.written):
        return 0.0
    return max(0.0, written / plan.rate.written - written / WRITTEN_THERE)


def searching(level: str, plan: Plan) -> float:
    """Return the seconds in which the scales of a level's K-quants are searched for."""
    kinds = ((TYPES[kind], size) for _, kind, size in matrices(plan.setup.shape, level) if kind in SEARCHES)
    return SEARCHED * sum(size * kind.weights / kind.bytes for kind, size in kinds) / 1e9


def chooses(params: Params, plan: Plan) -> bool:
    """Return True if the merge measures both bases to choose one."""
    return params.merge.base == AUTO and plan.setup.train.quantization == "nf4"


def forward(plan: Plan) -> float:
    """Return the operations of a token's forward without the head."""
    return 2.0 * plan.setup.shape.used_weights


def evaluated_tokens(params: Params, plan: Plan) -> int:
    """Return the held-out tokens that a training evaluates, at the end and every `train.eval_steps`."""
    if plan.work is None:
        return 0
    between = interval(params.train.eval_steps, plan.work.epoch_steps)
    return plan.work.held_out * ceil(plan.work.steps / between)


def row_tokens(plan: Plan) -> tuple[float, float]:
    """Return the mean tokens of a row's prompt and of its answer."""
    work = plan.work
    tokens: float = ROW_TOKENS
    share = ANSWERED
    if work and work.row_tokens and work.trained:
        tokens = work.row_tokens
        share = work.trained
    tokens = min(tokens, plan.setup.max_length)
    return tokens * (1 - share), tokens * share


def llama_tokens(name: str, item: str, params: Params, plan: Plan, *, by_time: bool) -> float:
    """Return the tokens that a stage reads and generates.

    `by_time` counts a generated token, and tokens of slow types, as so many of a prompt at F16 as take their
    time.
    """
    row = sum(row_tokens(plan))
    head = plan.setup.shape.table_weights / plan.setup.shape.used_weights  # for a token with logits
    if name == "merge" and chooses(params, plan):
        # the trained model, and the 16-bit file and a level of either merge
        return 5 * MERGE_ROWS * row * (1 + head / 2)
    if name == "parity" and params.parity.depth != "quick":
        return PARITY_PASSES * params.parity.rows * row
    if name == "evaluate":
        compared = params.evaluate.perplexity_rows * row * (1 + head)
        general = GENERAL_TOKENS if params.evaluate.general != "none" else 0
        model = ModelName(item)
        questions = asked(model, params, plan)
        generated = GENERATED if by_time else 1.0
        own = compared + general + SPEED_TOKENS + questions.read + generated * questions.written
        if by_time:
            own *= slowness(model, plan)
        # The 16-bit file is its own reference, on few rows.
        reference = ITSELF if model in SIXTEEN_BIT else 1.0
        return own + compared * reference
    return 0.0


@dataclass(frozen=True)
class Asked:
    """Tokens of all questions' prompts, and of the answers."""

    read: float
    written: float


def asked(name: ModelName, params: Params, plan: Plan) -> Asked:
    """Return what an evaluation asks a model.

    The untuned base is assumed to end no answer, except when it is asked again with examples in the prompt.
    """
    settings = params.evaluate
    if not settings.scorers:
        return Asked(0.0, 0.0)
    prompt, answer = row_tokens(plan)
    answer = min(answer, settings.max_new_tokens)
    if not name.untuned:
        return Asked(settings.task_rows * prompt, settings.task_rows * answer)
    read = settings.task_rows * prompt
    written: float = settings.max_new_tokens
    if settings.base_examples:
        # The examples are read once: every prompt begins with them (`pipeline.llamacpp.shared_prompt`).
        read += settings.task_rows * prompt + settings.base_examples * (prompt + answer)
        written += answer
    return Asked(read, settings.task_rows * written)


def waiting(name: ModelName, params: Params, plan: Plan) -> float:
    """Return the seconds that reading the weights adds to the operations of generated tokens."""
    settings = params.evaluate
    alone = SECONDS_ALONE * plan.setup.shape.parameters
    parallel = 1 if settings.parallel == AUTO else min(settings.parallel, settings.task_rows)
    rate = product_tflops(plan.rate)
    computed = GENERATED * forward(plan) / (rate * 1e12 * LLAMA_SHARE[multiplied_in()])
    written = asked(name, params, plan).written
    return SPEED_GENERATED * alone + written * max(0.0, alone / parallel - computed)


def slowness(name: ModelName, plan: Plan) -> float:
    """Return how many times as long as F16's the products of a level take."""
    if name.level in SIXTEEN_BIT:
        return 1.0
    sizes = [
        (kind, size * TYPES[kind].weights / TYPES[kind].bytes)
        for tensor, kind, size in matrices(plan.setup.shape, name)
        if not tensor.startswith("token_embd")
    ]
    as_f16 = sum(weights * SLOWNESS.get(kind, 1.0) for kind, weights in sizes)
    return as_f16 / sum(weights for _, weights in sizes)
