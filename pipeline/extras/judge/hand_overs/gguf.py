"""Model → GGUF: the weights of every tensor at any level, and the settings of llama.cpp's computation."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.core.checks import Check
from pipeline.core.errors import DataError
from pipeline.core.progress import progress
from pipeline.extras.judge.hand_overs.adapter import Expected
from pipeline.extras.judge.hand_overs.verdicts import failed, passed, plain, unmeasured, warned
from pipeline.gguf.families.registry import family_of
from pipeline.gguf.header import Header
from pipeline.gguf.rope import TENSORS
from pipeline.gguf.safetensors_rows import read_folder
from pipeline.gguf.sources import Piece, gguf_settings, known_family, read_config, sources, text_config
from pipeline.gguf.tensors import NOISE, Floats, GgufTensor, gguf_tensors
from pipeline.gguf.tied import EMBEDDINGS, HEAD
from pipeline.models.merging.compute import Job, Rows
from pipeline.models.merging.fit import HIDDEN, ROUNDED, Fit, fit_of
from pipeline.models.runtime import in_turn
from pipeline.stages.parity.gguf_weights import FLOAT_BYTES, names_faults, settings_faults, tensor_fault
from pipeline.stages.parity.level_weights import SLACK

WEIGHTS = "weights"
SETTINGS = "settings"
AGAIN = "Convert the merged folder again with llama.cpp's convert_hf_to_gguf.py"


@dataclass(frozen=True)
class Planned(Piece):
    """Piece of a tensor as a merge would write it. With `start`, it is the piece before the adapter."""

    rows: Rows | None = None
    start: bool = False

    def stored(self, first: int, last: int) -> Any:
        """Return rows [first, last) as the merged folder would have them."""
        assert self.rows is not None
        values = self.rows.start(first, last)
        if not self.start and self.rows.job.update:
            values = self.rows.total(values, first, last)
        return values


@dataclass(frozen=True)
class Model:
    """Expected contents of a GGUF: the folder with the config, and the pieces of each tensor, before the
    adapter and with it. `exact` is True if these are the very bytes of a folder.
    """

    folder: Path
    config: dict[str, Any]
    label: str
    before: dict[str, list[Piece]]
    after: dict[str, list[Piece]]
    exact: bool

    @property
    def tied(self) -> bool:
        """Return True if config.json ties head and embeddings."""
        return bool(text_config(self.config).get("tie_word_embeddings"))


def model_of(base: Path | None, merged: Path | None, expected: Expected | None) -> Model | str:
    """Return the expected contents of the GGUFs, or the reason why they are not known."""
    folder = merged or base
    if folder is None:
        return "neither --base nor --merged was named"
    if merged is None and expected is None:
        return "it is not known what base and adapter make together"
    config = read_config(folder) | (expected.plan.config if expected and not merged else {})
    if family_of(config) is None:
        architecture = (config.get("architectures") or ["none"])[0]
        return f"how a model of the architecture {architecture} is converted is not known here"
    if merged:
        after = sources(config, read_folder(merged))
        before = after
        if base and read_config(base).get("architectures") == config.get("architectures"):
            before = sources(read_config(base), read_folder(base))
        return Model(folder, config, "the merged folder", before, after, exact=True)
    assert expected is not None
    jobs = {job.name: job for job in expected.plan.jobs}
    entries = {name: replace(job.source, name=name) for name, job in jobs.items()}
    stored = sources(config, entries)
    if expected.adapter is None:
        return Model(folder, config, "the base", stored, stored, exact=True)
    return Model(
        folder,
        config,
        "base + adapter",
        planned(stored, jobs, start=True),
        planned(stored, jobs, start=False),
        exact=False,
    )


def planned(
    stored: Mapping[str, list[Piece]], jobs: Mapping[str, Job], *, start: bool
) -> dict[str, list[Piece]]:
    """Return the pieces as the merge of `jobs` would write them."""
    rows = cache(lambda name: Rows(jobs[name], None))
    return {
        tensor: [
            Planned(
                **{each.name: getattr(piece, each.name) for each in fields(piece)},
                rows=rows(piece.entry.name),
                start=start,
            )
            for piece in pieces
        ]
        for tensor, pieces in stored.items()
    }


def weights_check(gguf: Path, model: Model, name: str) -> Check:
    """Return the verdict on the GGUF's tensors: the first difference."""
    try:
        header, tensors = gguf_tensors(gguf)
    except DataError as error:
        return unmeasured(WEIGHTS, name, error.sentence)
    different = next(names(header, tensors, model, name), None)
    if different:
        return different
    unreadable = [tensor.type for tensor in tensors.values() if noise_of(tensor) is None]
    if unreadable:
        return unmeasured(WEIGHTS, name, f"the noise of {unreadable[0]} is not known here")
    same = sorted(model.after.keys() & tensors.keys())
    is_float = all(tensors[each].type in FLOAT_BYTES for each in same)
    if model.exact and is_float and not any(tensor_fault(tensors[each], model.after[each]) for each in same):
        return passed(WEIGHTS, name, f"{len(same)} tensors are {model.label}'s, bit for bit")
    fits: dict[str, Fit] = {}
    with progress(f"judge: weights of {gguf.name}", header.parameters) as advance:
        results = in_turn(lambda each: piece_fit(tensors[each], model, each), same)
        for each, fit in zip(same, results, strict=True):
            fits[each] = fit
            advance(tensors[each].rows * tensors[each].columns)
    return verdict(fits, tensors, model, name)


def names(header: Header, tensors: dict[str, GgufTensor], model: Model, name: str) -> Iterator[Check]:
    """Yield a verdict on another architecture, and on tensors that are missing, added or of another shape."""
    kind = header.fields.get("general.architecture")
    wanted = known_family(model.config).name
    if kind != wanted:
        yield failed(
            f"{WEIGHTS}.other_model",
            name,
            f"the GGUF is a {kind}, {model.label} a {wanted}",
            "Name its own GGUF",
        )
    if model.tied and HEAD in tensors and tensors[HEAD].type not in FLOAT_BYTES:
        tensors = {key: tensor for key, tensor in tensors.items() if key != HEAD}
    for fault in filter(None, names_faults(model.after, tensors, model.folder, tied=model.tied)):
        key = {HEAD: "head_lost", **dict.fromkeys(TENSORS, "rope")}.get(fault.tensor, "names")
        yield failed(f"{WEIGHTS}.{key}", name, f"{fault.tensor} {fault.seen}", plain(fault.cause))
    for each in sorted(model.after.keys() & tensors.keys()):
        size = sum((piece.last - piece.first) * piece.entry.columns for piece in model.after[each])
        tensor = tensors[each]
        if size != tensor.rows * tensor.columns:
            yield failed(
                f"{WEIGHTS}.{'vocabulary' if each in (HEAD, EMBEDDINGS) else 'other_model'}",
                name,
                f"{each} has shape {list(tensor.shape)} and {model.label} {size:,} weights there",
                AGAIN,
            )


def noise_of(tensor: GgufTensor) -> float | None:
    """Return the largest rounding error of the tensor's type, as a share of its length. None if unknown."""
    if tensor.type in FLOAT_BYTES:
        return ROUNDED
    if tensor.type in NOISE and tensor.readable:
        return NOISE[tensor.type] * SLACK
    return None


def piece_fit(tensor: GgufTensor, model: Model, name: str, *, ordered: bool = True) -> Fit:
    """Measure how near a tensor is to its expected values.

    They are in Hugging Face's order of rows unless `ordered`.
    """
    after = model.after[name]
    before = model.before.get(name, after)
    if _size(before) != _size(after):
        before = after
    if not ordered:
        before, after = ([replace(piece, head=False) for piece in side] for side in (before, after))
    fit = Fit()
    at = 0
    for start, expected in zip(_blocks(before), _blocks(after), strict=True):
        stored = values(tensor, at, len(expected))
        fit += _fit(start, expected, stored)
        at += len(expected)
    return fit


def _fit(start: Floats, expected: Floats, stored: Floats) -> Fit:
    import torch

    return fit_of(
        *(torch.from_numpy(np.ascontiguousarray(side)).double() for side in (start, expected, stored))
    )


def _blocks(pieces: list[Piece]) -> Iterator[Floats]:
    for piece in pieces:
        yield from piece.blocks()


def _size(pieces: list[Piece]) -> list[tuple[int, int, int]]:
    return [(piece.first, piece.last, piece.entry.columns) for piece in pieces]


def values(tensor: GgufTensor, first: int, count: int) -> Floats:
    """Return `count` weights of a tensor from number `first` on, without regard to rows."""
    if tensor.rows == 1:
        return tensor.values(0, 1).reshape(-1)[first : first + count]
    row = first // tensor.columns
    last = -(-(first + count) // tensor.columns)
    inside = first - row * tensor.columns
    return tensor.values(row, last).reshape(-1)[inside : inside + count]


def verdict(fits: dict[str, Fit], tensors: dict[str, GgufTensor], model: Model, name: str) -> Check:
    """Return the verdict by the sums over all tensors. For a wrong model, describe how it came about."""
    noises = {each: noise_of(tensors[each]) or ROUNDED for each in fits}
    wrong = [each for each, fit in fits.items() if not fit.is_near(noises[each])]
    whole = sum((fit for fit in fits.values() if fit.update), Fit())
    if not wrong:
        sentence = f"{len(fits)} tensors are {model.label}'s within their types' rounding"
        if whole.strength is not None and whole.error(max(noises.values())) <= HIDDEN:
            sentence += f"; what was trained is in them at {whole.strength:.2f} times its strength"
        elif whole.strength is not None:
            sentence += "; the level's rounding hides what was trained"
        return passed(WEIGHTS, name, sentence)
    worst = max(wrong, key=lambda each: fits[each].size)
    fit = fits[worst]
    noise = noises[worst]
    first = f"{len(wrong)} of {len(fits)} tensors differ, {worst} for one"
    if any(piece.head for piece in model.after[worst]):
        unordered = piece_fit(tensors[worst], model, worst, ordered=False)
        if unordered.is_near(noise):
            return failed(
                f"{WEIGHTS}.order",
                name,
                "the rows of q and k are in Hugging Face's order, where llama.cpp's rotary embedding pairs "
                f"neighbors; {first}",
                AGAIN,
            )
    if fit.strength is not None and fit.is_scaled(noise):
        return of_strength(fit.strength, first, name)
    return failed(
        f"{WEIGHTS}.other_weights",
        name,
        f"{first}: {fit.unexplained:.1%} of its length is not {model.label}'s, and {tensors[worst].type} "
        f"rounds {noise:.1%} off at most",
        f"{AGAIN}; it is the GGUF of another model, of an older merge, or damaged",
    )


def of_strength(strength: float, first: str, name: str) -> Check:
    """Return the verdict if only the adapter's strength in the file differs."""
    if abs(strength) < 0.1:
        return failed(
            f"{WEIGHTS}.absent",
            name,
            f"the GGUF is the base's: nothing of the adapter is in it; {first}",
            "Merge the adapter into the base first, and convert the merged folder, not the base",
        )
    if abs(strength - 2) < 0.1:
        return failed(
            f"{WEIGHTS}.twice",
            name,
            f"the adapter is in the GGUF twice; {first}",
            "Merge once: take the untuned base, and do not apply the adapter to the merged GGUF",
        )
    return failed(
        f"{WEIGHTS}.other_strength",
        name,
        f"the adapter is in the GGUF at {strength:.2f} times its strength; {first}",
        "See that the merge took lora_alpha, r and use_rslora from adapter_config.json, and convert again",
    )


def settings_check(gguf: Path, model: Model, header: Header, name: str) -> Check:
    """Return the verdict on llama.cpp's settings: heads, norms, rotary embedding, context."""
    checks = list(different_settings(model, header, name))
    wrong = [check for check in checks if check.verdict == "fail"]
    if wrong:
        return wrong[0]
    if checks:
        return checks[0]
    wanted = gguf_settings(model.config)
    return passed(
        SETTINGS, name, f"{len(wanted)} settings of config.json are those of {gguf.name}, rotary ones too"
    )


def different_settings(model: Model, header: Header, name: str) -> Iterator[Check]:
    """Yield a verdict on each setting with another value in the GGUF than in config.json."""
    config = text_config(model.config)
    stored = header.fields
    kind = known_family(model.config).name
    for fault in settings_faults(model.config, stored):
        key = "rope" if ".rope." in fault.tensor else "other"
        yield failed(f"{SETTINGS}.{key}", name, f"{fault.tensor} {fault.seen}", plain(fault.cause))
    positions = config.get("max_position_embeddings")
    context = stored.get(f"{kind}.context_length")
    if isinstance(positions, int) and context != positions:
        yield warned(
            f"{SETTINGS}.context",
            name,
            f"the GGUF's context is {context} tokens, by config.json {positions}",
            "Serve it with a context that both have",
        )
