"""Parity checks of the outputs at each hand-over: the divergence from the model before, its limit, and a
failure's likely cause.

Rounding that was requested is not damage. If a hand-over rounds and its stored weights have passed their
check, a divergence beyond the limit is the cost of the rounding for this model. Then it is a warning here,
and `report.gate` judges it. If the weights did not pass or could not be checked, the limit decides.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from pipeline.config.sections import AUTO, Parity
from pipeline.core.checks import Check
from pipeline.metrics.divergence import Reference, compare
from pipeline.metrics.level_limits import level_limit
from pipeline.stages.parity.check import divergence_check, incomparable

FROM_SIXTEEN = "16-bit base with adapter → merged model"
FROM_NF4 = "Trained model (NF4 with adapter) → merged model"
MAX_KLD_EXACT = 1.0e-3  # mean in nats if nothing may be lost (merged model to F16 GGUF)
OVERFLOW = "Weights or sums are too large for float16: set convert.type to BF16."


@dataclass(frozen=True)
class Outputs:
    """Logits of the models of a chain for the same prompts.

    `as_trained` is computed like training (usually in bfloat16), `trained` in float32 on the same NF4
    weights, the others in float32. `untuned` measures the 16-bit base without the adapter; only a failure
    calls it.
    """

    as_trained: Reference
    trained: Reference
    sixteen: Reference
    merged: Reference
    gguf: Reference
    untuned: Callable[[], Reference]
    where: str  # rows and positions, for a parity check's sentence
    parameters: int | None = None  # parameters of the model, for limits that depend on its size
    weights: Mapping[str, Check] = field(default_factory=dict)  # checks of the stored weights, by key
    nf4: Callable[[], Check | None] = lambda: None  # check of the weights that training kept in NF4


@dataclass(frozen=True)
class Bound:
    """Largest divergence of a hand-over in nats, and a note on it.

    `weights` returns the check of the stored weights if the hand-over rounds, and is called only beyond
    `nats`. It is None if nothing may be lost. `remedy` is the advice if the rounding costs that much.
    """

    nats: float
    note: str = ""
    weights: Callable[[], Check | None] | None = None
    remedy: str = ""


def hand_over(
    title: str,
    before: Reference,
    after: Reference,
    bound: Bound,
    outputs: Outputs,
    cause: Callable[[], str],
) -> Check:
    """Return one parity check.

    `cause` is called only if it failed. Logits that can't be compared fail too.
    """
    divergence = compare(before, after)
    if divergence.fault:
        return incomparable(
            title,
            divergence,
            sentence=f"{divergence.fault}; {outputs.where}",
            cause=OVERFLOW
            if divergence.strange
            else "The two are not the same model: run the stages from merge on again.",
        )
    from_trained = compare(outputs.as_trained, after)
    within = divergence.kld <= bound.nats
    explained = False
    sentences = [f"{outputs.where}, same first choice at {divergence.same_top:.1%}", bound.note]
    if bound.weights and not within:
        weights = bound.weights()
        explained = weights is not None and weights.verdict == "pass"
        sentences.append(evidence(weights))
    check = divergence_check(
        title,
        divergence,
        limit=bound.nats,
        sentence="; ".join(filter(None, sentences)),
        cause="" if within or explained else cause(),
        more={} if from_trained.fault else {"kld_trained": from_trained.kld},
    )
    return replace(check, verdict="warn", remedy=bound.remedy) if explained else check


def evidence(weights: Check | None) -> str:
    """Describe what the check of a hand-over's stored weights proves."""
    if weights is None or weights.verdict == "not measured":
        why = f" ({weights.sentence})" if weights else ""
        return f"its weights were not checked{why}, so the divergence is the only evidence"
    if weights.verdict == "fail":
        return "its weights did not pass either"
    return "its weights are within the rounding that was asked for, so nothing was damaged"


def level_bound(level: str, outputs: Outputs, limits: Parity, weights: Callable[[], Check | None]) -> Bound:
    """Return the limit for `level`."""
    remedy = (
        f"This is what {level} costs this model, and report.gate.max_kld judges it: take a level of more "
        "bits if it is too much."
    )
    if limits.max_kld_level != AUTO:
        return Bound(limits.max_kld_level, weights=weights, remedy=remedy)
    allowed = level_limit(level, outputs.parameters)
    return Bound(allowed.kld, f"limit: {allowed.source}", weights, remedy)


def merge_checks(outputs: Outputs, merge_base: str) -> dict[str, Check]:
    """Return the checks of the merged model against both models that it could represent. It must equal the
    one it was merged into, and may differ from the other by NF4's rounding of the base.
    """

    def weights() -> Check | None:
        merged = outputs.weights.get("weights_merged")
        # Weights that were merged into NF4 went through its rounding in that check.
        return outputs.nf4() if exact and merged and merged.verdict == "pass" else merged

    allowed = level_limit("nf4", outputs.parameters)
    exact = merge_base == "16-bit"
    rounding = compare(outputs.as_trained, outputs.trained)
    note = ""
    if not rounding.fault:
        note = f"in float32 arithmetic; training's own rounding is {rounding.kld:.2g} nats"
    other = "nf4" if exact else "16-bit"
    rounded = Bound(
        allowed.kld,
        f"limit: {allowed.source}",
        weights,
        f"This is what NF4's rounding of the base costs this model: set merge.base to {other}"
        + (", or leave it to report.gate.max_kld_trained." if exact else " if the 16-bit base is meant."),
    )

    def cause() -> str:
        return merge_cause(outputs, merge_base)

    equal = Bound(MAX_KLD_EXACT)
    notes = f"{note}; {rounded.note}" if note else rounded.note
    return {
        "outputs_sixteen": hand_over(
            FROM_SIXTEEN,
            outputs.sixteen,
            outputs.merged,
            equal if exact else rounded,
            outputs,
            cause,
        ),
        "outputs_trained": hand_over(
            FROM_NF4,
            outputs.trained,
            outputs.merged,
            replace(rounded, note=notes) if exact else replace(equal, note=note),
            outputs,
            cause,
        ),
    }


def merge_cause(outputs: Outputs, merge_base: str) -> str:
    """Describe what the merged model is instead of the expected one, by comparison with all it could be."""
    if same(outputs.untuned(), outputs.merged):
        return (
            "The merged model is the untuned base, the adapter was not merged: run `snakemake --force merge`."
        )
    if merge_base == "16-bit":
        base = "16-bit"
        expected = outputs.sixteen
        other_base = "NF4"
        other = outputs.trained
    else:
        base = "NF4"
        expected = outputs.trained
        other_base = "16-bit"
        other = outputs.sixteen
    if same(expected, outputs.merged):
        loss = compare(outputs.trained, outputs.sixteen).kld
        return (
            f"The merge lost nothing, but the {base} base is {loss:.2g} nats from the other one: set "
            f"merge.base to {other_base.lower()}."
        )
    if same(other, outputs.merged):
        return (
            f"The adapter was merged into the {other_base} base, not into {merge_base} as merge.json says: "
            "merge again."
        )
    return (
        "The merged model is not this base with this adapter (the parity check of the merged weights "
        "names tensors): run `snakemake --force merge`."
    )


def gguf_check(outputs: Outputs, title: str) -> Check:
    """Return the check of the merged model against its 16-bit GGUF, which must be equal."""

    def cause() -> str:
        if same(outputs.untuned(), outputs.gguf):
            return "The GGUF is the untuned base: run `snakemake --force convert`."
        if same(outputs.sixteen, outputs.gguf) or same(outputs.trained, outputs.gguf):
            return (
                "The GGUF is the base with the adapter, the merged model is not: run `snakemake --force "
                "merge`."
            )
        return (
            "The GGUF was made from another model or is damaged: run `snakemake --force convert`; where the "
            "parity check of its weights passed, llama.cpp computes this architecture otherwise than "
            "config.json says."
        )

    return hand_over(title, outputs.merged, outputs.gguf, Bound(MAX_KLD_EXACT), outputs, cause)


def level_check(title: str, before: Reference, after: Reference, bound: Bound, outputs: Outputs) -> Check:
    """Return the check of a 16-bit GGUF against the same model at a level."""
    cause = (
        "The file may be damaged or another's (the parity check of its weights says what was looked at): "
        "make it again, take a level whose weights can be checked, or raise parity.max_kld_level."
    )
    return hand_over(title, before, after, bound, outputs, lambda: cause)


def lora_check(outputs: Outputs, with_lora: Reference, merge_base: str) -> Check:
    """Return the check of the base's GGUF with the adapter's GGUF, against the merged model's GGUF or the
    16-bit base with adapter.
    """
    if merge_base == "16-bit":
        before = outputs.gguf
        name = "16-bit GGUF"
    else:
        before = outputs.sixteen
        name = "16-bit base with adapter"

    def cause() -> str:
        if same(outputs.untuned(), with_lora):
            return "The adapter's GGUF changes nothing: run `snakemake --force convert`."
        return "The base's GGUF or the adapter's is of another run: run `snakemake --force convert`."

    return hand_over(
        f"{name} → base GGUF with LoRA GGUF", before, with_lora, Bound(MAX_KLD_EXACT), outputs, cause
    )


def same(before: Reference, after: Reference) -> bool:
    """Return True if two models have equal outputs, within the limit of an exact hand-over."""
    return bool(compare(before, after).kld <= MAX_KLD_EXACT)
