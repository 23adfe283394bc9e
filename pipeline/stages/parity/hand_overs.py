"""Each hand-over of what the models say as a parity check: the divergence from the model before, against its
limit, and a failure's likely cause.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pipeline.config.sections import AUTO, Parity
from pipeline.core.checks import Check
from pipeline.metrics.divergence import Divergence, Reference, compare
from pipeline.metrics.level_limits import level_limit
from pipeline.stages.parity.check import divergence_check, incomparable

OVERFLOW = "Weights or sums are too large for float16: set merge.dtype to bfloat16 and convert.type to BF16."


@dataclass(frozen=True)
class Outputs:
    """What the models of a chain said to the same prompts.

    `as_trained` computed as training does (bfloat16, mostly), `trained` in float32 on the same NF4 weights;
    the others in float32. `untuned` measures the 16-bit base alone, which only a failure asks for.
    """

    as_trained: Reference
    trained: Reference
    sixteen: Reference
    merged: Reference
    gguf: Reference
    untuned: Callable[[], Reference]
    where: str  # the rows and positions, for a parity check's detail
    parameters: int | None = None  # of the model, for limits that follow from its size


def hand_over(
    title: str,
    before: Reference,
    after: Reference,
    limit: float,
    outputs: Outputs,
    cause: Callable[[Divergence], str],
    note: str = "",
) -> Check:
    """One parity check; `cause` is asked only where it failed. Logits that can't be compared fail too."""
    found = compare(before, after)
    if found.fault:
        return incomparable(
            title,
            found,
            sentence=f"{found.fault}; {outputs.where}",
            cause=OVERFLOW
            if found.strange
            else "The two are not the same model: run the stages from merge on again.",
        )
    from_trained = compare(outputs.as_trained, after)
    return divergence_check(
        title,
        found,
        limit=limit,
        sentence=f"{outputs.where}, same first choice at {found.same_top:.1%}{note and '; ' + note}",
        cause="" if found.kld <= limit else cause(found),
        more={"kld_trained": from_trained.kld} if from_trained.comparable else {},
    )


def limit_of(given: float | Literal["auto"], level: str, outputs: Outputs) -> tuple[float, str]:
    """A limit as it is given, or what `level` may lose where it is auto; and in the second case, behind "; ",
    where it comes from.
    """
    if given != AUTO:
        return given, ""
    found = level_limit(level, outputs.parameters)
    return found.kld, f"; limit: {found.source}"


def merge_checks(outputs: Outputs, merge_base: str, limits: Parity) -> dict[str, Check]:
    """Both models that the merge could stand for, against it: the one it went into must be equal, the other
    one near.
    """
    rounded, source = limit_of(limits.max_kld_trained, "nf4", outputs)

    def cause(_found: Divergence) -> str:
        return merge_cause(outputs, merge_base, limits)

    own, exact = compare(outputs.as_trained, outputs.trained), merge_base == "16-bit"
    note = f"in float32 arithmetic; training's own rounding is {own.kld:.2g} nats" if own.comparable else ""
    return {
        "outputs_sixteen": hand_over(
            "16-bit base with adapter → merged model",
            outputs.sixteen,
            outputs.merged,
            limits.max_kld_exact if exact else rounded,
            outputs,
            cause,
            "" if exact else source.removeprefix("; "),
        ),
        "outputs_trained": hand_over(
            "Trained model (NF4 with adapter) → merged model",
            outputs.trained,
            outputs.merged,
            rounded if exact else limits.max_kld_exact,
            outputs,
            cause,
            note + source if exact else note,
        ),
    }


def merge_cause(outputs: Outputs, merge_base: str, limits: Parity) -> str:
    """What the merged model is instead of what it should be, found by comparing it with what else it could
    be.
    """
    if same(outputs.untuned(), outputs.merged, limits):
        return (
            "The merged model is the untuned base, the adapter was not merged: run `snakemake --force merge`."
        )
    sixteen, nf4 = ("16-bit", outputs.sixteen), ("NF4", outputs.trained)
    (base, own), (other_base, other) = (sixteen, nf4) if merge_base == "16-bit" else (nf4, sixteen)
    if same(own, outputs.merged, limits):
        loss = compare(outputs.trained, outputs.sixteen).kld
        return (
            f"The merge lost nothing, but the {base} base is {loss:.2g} nats from the other one: set "
            f"merge.base to {other_base.lower()} or auto."
        )
    if same(other, outputs.merged, limits):
        return (
            f"The adapter was merged into the {other_base} base, not into {merge_base} as merge.json says: "
            "merge again."
        )
    return (
        "The merged model is not this base with this adapter (the parity check of the merged weights "
        "names tensors): run `snakemake --force merge`."
    )


def gguf_check(outputs: Outputs, title: str, limits: Parity) -> Check:
    """The merged model against its 16-bit GGUF, which must be equal."""

    def cause(_found: Divergence) -> str:
        if same(outputs.untuned(), outputs.gguf, limits):
            return "The GGUF is the untuned base: run `snakemake --force convert`."
        if same(outputs.sixteen, outputs.gguf, limits) or same(outputs.trained, outputs.gguf, limits):
            return (
                "The GGUF is the base with the adapter, the merged model is not: run `snakemake --force "
                "merge`."
            )
        return (
            "The GGUF was made from another model or is damaged: run `snakemake --force convert`; where the "
            "parity check of its weights passed, llama.cpp computes this architecture otherwise than "
            "config.json says."
        )

    return hand_over(title, outputs.merged, outputs.gguf, limits.max_kld_exact, outputs, cause)


def level_check(
    title: str, level: str, before: Reference, after: Reference, outputs: Outputs, limits: Parity
) -> Check:
    """A 16-bit GGUF against the same at a level."""

    limit, source = limit_of(limits.max_kld_level, level, outputs)
    cause = (
        f"{level} costs this model more than parity.max_kld_level, or the file is damaged (the parity check "
        "of its weights names tensors): take a level of more bits, or make the file again."
    )
    return hand_over(title, before, after, limit, outputs, lambda _found: cause, source.removeprefix("; "))


def lora_check(outputs: Outputs, with_lora: Reference, merge_base: str, limits: Parity) -> Check:
    """The base's GGUF with the adapter's GGUF on it, against the GGUF of the merge; of a merge into NF4,
    against the 16-bit base with adapter.
    """
    before, name = (
        (outputs.gguf, "16-bit GGUF")
        if merge_base == "16-bit"
        else (outputs.sixteen, "16-bit base with adapter")
    )

    def cause(_found: Divergence) -> str:
        if same(outputs.untuned(), with_lora, limits):
            return "The adapter's GGUF changes nothing: run `snakemake --force convert`."
        return "The base's GGUF or the adapter's is of another run: run `snakemake --force convert`."

    return hand_over(
        f"{name} → base GGUF with LoRA GGUF", before, with_lora, limits.max_kld_exact, outputs, cause
    )


def same(before: Reference, after: Reference, limits: Parity) -> bool:
    """Whether two models say the same, up to what an exact hand-over may differ."""
    return bool(compare(before, after).kld <= limits.max_kld_exact)
