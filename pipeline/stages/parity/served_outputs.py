"""What a model without a merge says: training's forward against llama.cpp's on what is served.

llama.cpp rounds activations to 8 bit before it multiplies them with quantized blocks, training doesn't; what
that costs is measured on the bare, untrained base.
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
from pipeline.stages.parity.unmerged_chain import BARE_TITLE, Made, UnmergedChain

# rows that what training's own arithmetic (bfloat16, mostly) differs from float32 by is measured on: a figure
# beside the parity check, not a parity check
OWN_ROWS = 8
# share of positions with the same first choice, at least: one in a hundred may be a near tie that rounding
# turns, more only where the bare base has more
MIN_SAME_TOP = 0.99
SERVED_OVER_BARE = 2.0  # divergence of what is served by that of the bare base, at most


def outputs(chain: UnmergedChain, tokenizer: Any, measure: Measure) -> ParityChecks:
    """Training's float32 forward against llama.cpp's, bare and trained, on the same held-out tokens."""
    bench, limits = Bench(measure.prompts(tokenizer), measure.scratch, measure.llama), measure.limits
    with ExitStack() as files:

        def kept(model: AbstractContextManager[Speaker]) -> Reference:
            return files.enter_context(bench.kept(model))

        before = kept(trained_model(chain.base, None, float32=True, settings_of=chain.adapter))
        bare = compare(before, files.enter_context(bench.gguf(chain.bare)))
        trained = kept(trained_model(chain.base, chain.adapter, float32=True))
        answers = files.enter_context(bench.gguf(chain.served, chain.lora))
        served, moved = compare(trained, answers), compare(before, trained)
        few = replace(bench, prompts=bench.prompts[:OWN_ROWS])
        with few.kept(trained_model(chain.base, chain.adapter)) as in_training:
            rounding = compare(in_training, islice(trained, len(few.prompts)))
    measured = Divergences(served, bare, moved, rounding)
    return {
        "outputs_bare": bare_check(bare, bench.where),
        "outputs_served": served_check(measured, limits, bench.where, chain.made),
    }


def bare_check(bare: Divergence, where: str) -> Check:
    """The floor: what llama.cpp's arithmetic changes of an untrained model; at most `MOST_SERVED_KLD`."""
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
    """Divergences of what is `served` from the trained model, of the bare base in llama.cpp from it in
    training, of the trained model from the untrained one, and of training's arithmetic from float32.
    """

    served: Divergence
    bare: Divergence
    moved: Divergence
    rounding: Divergence


def served_check(measured: Divergences, limits: Parity, where: str, artifact: Made) -> Check:
    """What is served: within `parity.max_kld_served` and `MIN_SAME_TOP`, or where the bare base is
    not, near its floor (`served_floor`).

    And nearer to the trained model than that is to the bare base, or a file without effect would pass;
    where it moves the base by no more than twice the floor, that is not measured.
    """
    title, file = artifact.title, artifact.file
    served, bare, moved, rounding = measured.served, measured.bare, measured.moved, measured.rounding
    if served.fault or bare.fault:
        faulty = served if served.fault else bare
        cause = f"The base's GGUF or {file} is damaged or of another model: {artifact.again}."
        return incomparable(title, faulty, f"{faulty.fault}; {where}", cause)
    kld, same_top = served_floor(bare)
    limit, least = max(limits.max_kld_served, kld), min(MIN_SAME_TOP, same_top)
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
    """The largest mean KL divergence in nats and the least share of the same first choice of what is served,
    by what llama.cpp's arithmetic costs the bare base: twice the divergence; and of other first choices a
    fifth more, besides three standard errors of the difference between two shares.

    The trained model is another one, and is asked at some hundred positions: sound runs were seen 0.8 to 1.6
    times as far off as their base, and without the errors two equal models fail one time in three.
    """
    others = bare.positions * (1 - bare.same_top)
    error = sqrt(2 * max(others, 1)) / bare.positions
    return SERVED_OVER_BARE * bare.kld, bare.same_top - ADDED_BY_ADAPTER * (1 - bare.same_top) - 3 * error
