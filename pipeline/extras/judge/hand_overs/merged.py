"""Base and adapter → merged folder: every weight, and the settings that determine a model's computation."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.core.checks import Check
from pipeline.core.errors import DataError
from pipeline.core.progress import progress
from pipeline.extras.judge.hand_overs.adapter import Expected
from pipeline.extras.judge.hand_overs.verdicts import failed, passed, reason_of, unmeasured
from pipeline.gguf.safetensors_rows import Entry, read_folder, same_values
from pipeline.gguf.sources import in_model
from pipeline.models.merging.compute import Job
from pipeline.models.merging.fit import Fit, merge_fit
from pipeline.models.merging.inputs import structure
from pipeline.models.merging.nf4 import Nf4
from pipeline.models.merging.plan import Plan
from pipeline.models.runtime import in_turn

KEY = "merged"
NAME = "base + adapter → merged"
AGAIN = "Load the base in 16 bit, put the adapter on it and merge once (merge_and_unload), then convert that"
# compute types of bitsandbytes
DTYPES = ("bfloat16", "float16", "float32")
# double quantization of the scales, on or off
DOUBLE = (True, False)
# settings that determine a model's computation, by transformers' names; rope_parameters has one form there
SETTINGS = (
    "rope_parameters",
    "max_position_embeddings",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "sliding_window",
    "vocab_size",
    "tie_word_embeddings",
)


class Story(NamedTuple):
    """Possible history of a wrong merged tensor, with its id and its remedy."""

    key: str
    sentence: str
    remedy: str
    job: Job
    nf4: Nf4 | None = None


@dataclass(frozen=True)
class Weights:
    """Tensors that should be in the merged model, and those that are."""

    jobs: dict[str, Job]
    merged: dict[str, Entry]
    expected: Expected


def base_alone(base: Path) -> Expected:
    """Return the expected contents of a model that is the base without an adapter."""
    jobs = [Job(name, entry, entry.file.name) for name, entry in read_folder(base).items()]
    return Expected(Plan(jobs), structure(base), None)


def merged_check(base: Path, merged: Path, expected: Expected) -> Check:
    """Return the verdict on the merged folder: the first thing that differs."""
    try:
        entries = read_folder(merged)
    except DataError as error:
        sentence, _, remedy = error.sentence.rpartition(": ")
        return failed(f"{KEY}.damaged", NAME, sentence, remedy.capitalize())
    weights = Weights({job.name: job for job in expected.plan.jobs}, entries, expected)
    # The comparison below assumes that all tensors are present.
    different = next(chain(names(weights), settings(base, merged, expected)), None)
    if different:
        return different
    numbers = sum(job.source.rows * job.source.columns for job in weights.jobs.values())
    fits: dict[str, Fit] = {}
    with progress("judge: weights of the merged folder", numbers) as advance:
        jobs = list(weights.jobs.values())
        for job, fit in zip(jobs, in_turn(lambda job: merge_fit(job, entries[job.name]), jobs), strict=True):
            fits[job.name] = fit
            advance(job.source.rows * job.source.columns)
    return verdict(weights, fits)


def names(weights: Weights) -> Iterator[Check]:
    """Yield a verdict on tensors that are missing in the merged folder, added there, or of another shape."""
    jobs = weights.jobs
    merged = weights.merged
    model = weights.expected.model
    missing = sorted(jobs.keys() - merged.keys())
    if model.head in missing:
        yield failed(
            f"{KEY}.head_lost",
            NAME,
            f"{model.head} is missing: a head of its own was dropped as if it were the embeddings",
            "Set tie_word_embeddings to false before the merged model is saved, and merge again",
        )
    if missing:
        yield failed(
            f"{KEY}.names",
            NAME,
            f"{len(missing)} tensors are missing, first {missing[0]}; the folder has "
            f"{next(iter(merged), '')}",
            AGAIN,
        )
    added = [
        name
        for name in sorted(merged.keys() - jobs.keys())
        # A tied head that is stored next to its twin is the same model.
        if not (
            name == model.head
            and model.embedding in merged
            and same_values(merged[name], merged[model.embedding])
        )
    ]
    if added:
        is_adapter = any(".lora_" in name for name in added)
        yield failed(
            f"{KEY}.not_merged" if is_adapter else f"{KEY}.names",
            NAME,
            f"{len(added)} tensors are neither the base's nor the adapter's, first {added[0]}",
            AGAIN,
        )
    for name, job in jobs.items():
        if job.source.shape != merged[name].shape:
            yield failed(
                f"{KEY}.shapes",
                NAME,
                f"{name} is {merged[name].shape} and should be {job.source.shape}",
                "Merge into the base that the adapter was trained on, with its vocabulary as it was resized "
                "there",
            )


def settings(base: Path, merged: Path, expected: Expected) -> Iterator[Check]:
    """Yield a verdict on each setting of config.json that the merge changed."""
    from pipeline.models.loading import read_config

    try:
        wanted_config = read_config(base).to_dict() | expected.plan.config
        merged_config = read_config(merged).to_dict()
    except (OSError, ValueError, KeyError) as error:
        yield unmeasured(KEY, NAME, f"transformers can't read config.json ({reason_of(error)})")
        return
    for key in SETTINGS:
        if key == "tie_word_embeddings" and merged_config.get(key) and not wanted_config.get(key):
            yield failed(
                f"{KEY}.head_lost",
                NAME,
                "config.json ties the head to the embeddings, and the adapter gave it values of its own, "
                "which transformers and the converter then leave out",
                "Set tie_word_embeddings to false in the merged folder's config.json, and convert again",
            )
        elif wanted_config.get(key) != merged_config.get(key):
            yield failed(
                f"{KEY}.settings",
                NAME,
                f"config.json has {key} {merged_config.get(key)!r} in place of {wanted_config.get(key)!r}",
                "Copy the base's config.json into the merged folder, and convert again",
            )


def verdict(weights: Weights, fits: dict[str, Fit]) -> Check:
    """Return the verdict by the sums over all tensors. For a wrong model, describe how it came about."""
    wrong = [name for name, fit in fits.items() if not fit.is_near()]
    adapted = [name for name in wrong if weights.jobs[name].update]
    whole = sum((fits[name] for name, job in weights.jobs.items() if job.update), Fit())
    if not wrong:
        strength = whole.strength
        if strength is None:
            return passed(KEY, NAME, f"{len(fits)} tensors are the base's, within rounding to 16 bits")
        return passed(
            KEY, NAME, f"{len(fits)} tensors; the adapter is in them at {strength:.2f} times its strength"
        )
    # Of the wrong tensors, choose the one that shows the most.
    name = max(adapted or wrong, key=lambda each: fits[each].size)
    entry = weights.merged[name]
    fit = fits[name]
    first = f"{len(wrong)} of {len(fits)} tensors differ, {name} for one"
    near = []
    for story in stories(weights.jobs[name], weights.expected):
        other = merge_fit(story.job, entry, story.nf4)
        if other.rest < fit.rest / 2 and other.is_near():
            near.append((other.rest, story))
    if near:
        story = min(near, key=lambda pair: pair[0])[1]
        return failed(f"{KEY}.{story.key}", NAME, f"{story.sentence}; {first}", story.remedy)
    others = [each for each in wrong if each not in adapted]
    if others:
        worst = max(others, key=lambda each: fits[each].rest)
        return failed(
            f"{KEY}.other_base",
            NAME,
            f"weights that the adapter does not change are not the base's: {len(others)} of {len(fits)} "
            f"tensors differ, {worst} by {fits[worst].rest:.1%} of its length",
            "Merge into the base that the adapter was trained on; if embeddings were trained, save them with "
            "the adapter",
        )
    strength = fit.strength or 0.0
    return failed(
        f"{KEY}.other_strength" if fit.is_scaled() else f"{KEY}.other_weights",
        NAME,
        f"the adapter is in {name} at {strength:.2f} times its strength, and {fit.unexplained:.1%} of "
        f"the weights' length is neither base nor adapter; {first}",
        AGAIN,
    )


def stories(job: Job, expected: Expected) -> Iterator[Story]:
    """Yield possible errors for a tensor, the likely ones first."""
    if job.update and expected.adapter:
        yield from _updates(job, expected.adapter.settings, job.update)
    if in_model(job.name) in expected.model.quantized:
        for dtype, double in product(DTYPES, DOUBLE):
            yield Story(
                "nf4_base",
                "The adapter was merged into the 4-bit base, whose rounding is in the weights now",
                AGAIN,
                replace(job, quantized=True),
                Nf4(dtype, double),
            )


def _updates(job: Job, settings: Any, update: Any) -> Iterator[Story]:
    """Yield possible errors of only the update."""

    def scaled(scale: float) -> Job:
        return replace(job, update=replace(update, scale=scale))

    yield Story(
        "absent", "The adapter was not merged: the weights are the base's", AGAIN, replace(job, update=None)
    )
    if update.magnitude is not None:
        yield Story(
            "dora_ignored",
            "DoRA's magnitudes were left out: only scale · B · A was added",
            "Merge with a PEFT that knows DoRA (0.9 or newer)",
            replace(job, update=replace(update, magnitude=None)),
        )
    yield Story("twice", "The adapter was merged twice", AGAIN, scaled(2 * update.scale))
    rank = update.right.shape[1]
    if settings.use_rslora:
        yield Story(
            "rslora_ignored",
            f"The scale is alpha ÷ r, and use_rslora asks for alpha ÷ √r: {rank**0.5:.3g} times as much",
            "Merge with a tool that reads use_rslora (PEFT does)",
            scaled(update.scale / rank**0.5),
        )
    else:
        yield Story(
            "rslora_assumed",
            "The scale is alpha ÷ √r, as if use_rslora were set",
            AGAIN,
            scaled(update.scale * rank**0.5),
        )
    yield Story(
        "scale_ignored",
        f"The scale alpha ÷ r = {update.scale:.3g} was ignored: B · A was added as it is",
        "Merge with a tool that reads lora_alpha and r (PEFT does)",
        scaled(1.0),
    )
