"""Outputs of a model that is served without a merge: training's forward against llama.cpp's.

llama.cpp rounds activations to 8 bit before it multiplies them with quantized blocks; training doesn't. The
bare, untrained base shows the cost of that.
"""

from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from math import sqrt
from typing import Any

from pipeline.config.sections import Parity
from pipeline.core.checks import Check
from pipeline.metrics.divergence import Divergence, Reference, Speaker, compare
from pipeline.metrics.forward import trained_model
from pipeline.metrics.level_limits import ADDED_BY_ADAPTER, LEAST_SERVED_SAME_TOP, MOST_SERVED_KLD
from pipeline.stages.parity.check import (
    DIVERGENCE,
    Measure,
    ParityChecks,
    divergence_check,
    figures_of,
    incomparable,
)
from pipeline.stages.parity.outputs import Bench
from pipeline.stages.parity.served_files import BARE_TITLE, Artifact, ServedFiles

# Rows on which training's own arithmetic (usually bfloat16) is compared with float32. The result is a figure
# in addition to the parity check, not a parity check.
OWN_ROWS = 8
# Least share of positions with the same first choice. One in a hundred may be a near tie that rounding flips,
# more only if the bare base has more.
MIN_SAME_TOP = 0.99
SERVED_OVER_BARE = 2.0  # largest ratio of the served model's divergence to that of the bare base


def outputs(files: ServedFiles, tokenizer: Any, measure: Measure) -> ParityChecks:
    """Return the checks of training's float32 forward against llama.cpp's, bare and trained.

    All use the same held-out tokens.
    """
    bench = Bench(measure.prompts(tokenizer), measure.scratch, measure.llama)
    limits = measure.limits
    with ExitStack() as stack:

        def logits_of(model: AbstractContextManager[Speaker]) -> Reference:
            return stack.enter_context(bench.logits_of(model))

        before = logits_of(trained_model(files.base, None, float32=True, settings_of=files.adapter))
        bare = compare(before, stack.enter_context(bench.gguf(files.bare)))
        trained = logits_of(trained_model(files.base, files.adapter, float32=True))
        answers = stack.enter_context(bench.gguf(files.served, files.lora))
        served = compare(trained, answers)
        moved = compare(before, trained)
        few = replace(bench, prompts=bench.prompts[:OWN_ROWS])
        with few.logits_of(trained_model(files.base, files.adapter)) as in_training:
            rounding = compare(in_training, islice(trained, len(few.prompts)))
    measured = Divergences(served, bare, moved, rounding)
    return {
        "outputs_bare": bare_check(bare, bench.where),
        "outputs_served": served_check(measured, limits, bench.where, files.artifact),
    }


def bare_check(bare: Divergence, where: str) -> Check:
    """Return the check of the floor, which must be at most `MOST_SERVED_KLD`.

    The floor is how much llama.cpp's arithmetic changes an untrained model.
    """
    title = BARE_TITLE
    if bare.fault:
        return incomparable(
            title,
            bare,
            sentence=f"{bare.fault}; {where}",
            cause="The GGUF is damaged or of another model: run `snakemake --force base`.",
        )
    cause = (
        "PyTorch and llama.cpp compute another model from this file (positions, order of heads, norms): take "
        "its Hugging Face folder and base.quantization nf4."
    )
    passed = bare.kld <= MOST_SERVED_KLD and bare.same_top >= LEAST_SERVED_SAME_TOP
    return divergence_check(
        title,
        bare,
        limit=MOST_SERVED_KLD,
        sentence=f"{where}, same first choice at {bare.same_top:.1%}: llama.cpp rounds activations to 8 bit "
        "before it multiplies quantized blocks",
        cause="" if passed else cause,
    )


@dataclass(frozen=True)
class Divergences:
    """Divergences of the served model from the trained one (`served`), of the bare base in llama.cpp from the
    one in training (`bare`), of the trained model from the untrained one (`moved`), and of training's
    arithmetic from float32 (`rounding`).
    """

    served: Divergence
    bare: Divergence
    moved: Divergence
    rounding: Divergence


def served_check(measured: Divergences, limits: Parity, where: str, artifact: Artifact) -> Check:
    """Return the check of the served model.

    It must be within `parity.max_kld_served` and `MIN_SAME_TOP`. If the bare base is not, it must be near the
    base's floor (`served_floor`).

    It must also be nearer to the trained model than the bare base is, because otherwise a file without effect
    would pass. If training moves the base by no more than twice the floor, that is not measured.
    """
    title = artifact.title
    file = artifact.file
    served = measured.served
    bare = measured.bare
    moved = measured.moved
    rounding = measured.rounding
    if served.fault or bare.fault:
        faulty = served if served.fault else bare
        cause = f"The base's GGUF or {file} is damaged or of another model: {artifact.again}."
        return incomparable(title, faulty, f"{faulty.fault}; {where}", cause)
    kld, same_top = served_floor(bare)
    limit = max(limits.max_kld_served, kld)
    least = min(MIN_SAME_TOP, same_top)
    within = served.kld <= limit and served.same_top >= least
    if within and moved.kld <= 2 * bare.kld:
        return Check(
            title,
            "not measured",
            f"training moves the base by {moved.kld:.2g} nats, llama.cpp's arithmetic by "
            f"{bare.kld:.2g}: whether it has an effect is not measurable",
            what=DIVERGENCE,
            unit="nats",
            figures=figures_of(served),
        )
    sentences = [
        f"{where}, same first choice at {served.same_top:.1%} (at least {least:.1%})",
        f"training moves the base by {moved.kld:.2g} nats",
    ]
    if not rounding.fault:
        sentences.append(f"training's own rounding is {rounding.kld:.2g} nats")
    if limit > limits.max_kld_served or least < MIN_SAME_TOP:
        floor = f"{bare.kld:.2g} nats and {1 - bare.same_top:.1%}"
        sentences.append(f"limits from the bare base, whose arithmetic alone costs {floor}")
    cause = ""
    if served.kld >= 0.5 * moved.kld:
        cause = (
            f"llama.cpp is no nearer to the trained model than the bare base is: {file} has no effect, "
            f"{artifact.again}."
        )
    elif not within:
        cause = f"Either {file} is of another run, or it was changed after it was made: {artifact.again}."
    return divergence_check(title, served, limit, "; ".join(sentences), cause)


def served_floor(bare: Divergence) -> tuple[float, float]:
    """Return the largest mean KL divergence (nats) and the least share of the same first choice that the
    served model may have, given the cost of llama.cpp's arithmetic for the bare base.

    The limits are twice the base's divergence, and a fifth more other first choices, in addition to three
    standard errors of the difference between two shares. The trained model is another model and is measured
    at some hundred positions: sound runs were 0.8 to 1.6 times as far off as their base. Without the errors,
    two equal models would fail one time in three.
    """
    others = bare.positions * (1 - bare.same_top)
    error = sqrt(2 * max(others, 1)) / bare.positions
    return SERVED_OVER_BARE * bare.kld, bare.same_top - ADDED_BY_ADAPTER * (1 - bare.same_top) - 3 * error
