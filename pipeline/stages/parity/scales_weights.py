"""Byte-for-byte check of the tuned file against the base's: only trained scales differ, with their values at
the end of training.
"""

from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.levels import ModelName
from pipeline.config.tuners import SCALES_FILE
from pipeline.core.checks import Check
from pipeline.core.hashing import file_hash
from pipeline.core.publish import read_json
from pipeline.gguf.base_files import MODEL_FILE
from pipeline.gguf.header import Header, tensor_bytes
from pipeline.gguf.provenance import DISTILL, OWN, STANDARD
from pipeline.gguf.tensors import SCALES, Bytes, GgufTensor, gguf_tensors
from pipeline.models.tuners.scales import file_scales
from pipeline.stages.parity.check import exact

TITLE = "Base's file and trained scales → tuned file"
PROVENANCE = (OWN, *STANDARD)  # prefixes of the fields that record the origin of the tuned file
WHAT = "tensors and fields that are not the base's with the trained scales"
AGAIN = "run `snakemake --force tuned`"
SHOWN = 3  # faults shown in the sentence
Numbers = np.ndarray[Any, np.dtype[Any]]


def scales_weights(base: Path, adapter: Path, tuned: Path) -> Check:
    """Check all of the file `tuned` against the GGUF in `base` with `adapter`'s scales, in blocks of rows."""
    if not (adapter / SCALES_FILE).is_file():
        cause = "Training left an adapter: set train.tuner to scales, then run `snakemake`."
        return exact(TITLE, 1, "differences", f"{adapter.name}/ holds no trained scales", cause, WHAT)
    old, before = gguf_tensors(base / MODEL_FILE)
    new, after = gguf_tensors(tuned)
    wrong = [f"{name} is not the base's" for name in other_fields(base / MODEL_FILE, old, tuned, new)]
    compared = sum(not name.startswith(PROVENANCE) for name in old.fields.keys() | new.fields.keys())
    different = other_tensors(old, new)
    if different:
        sentence = "; ".join([f"{different} is not the same as in the base's file", *wrong[: SHOWN - 1]])
        cause = f"The tuned file was made from another base: {AGAIN}."
        return exact(TITLE, len(wrong) + 1, "differences", sentence, cause, WHAT)

    faults: dict[str, str] = {}
    scales = 0
    for name, expected in file_scales(base, adapter):
        values = expected.numpy()
        scales += values.size
        faults[name] = trained_fault(before[name], after[name], values)
    if not faults:
        wrong.append(f"{adapter.name}/ holds the scales of no tensor")
    if base_end(base / MODEL_FILE, old) != base_end(tuned, new):
        wrong.append("other bytes stand between or behind the tensors")
    # All tensors in the file's order, so the first reported fault is the first in the file.
    in_order = (faults[name] if name in faults else same_fault(before[name], after[name]) for name in after)
    wrong += list(filter(None, in_order))
    read = sum(tensor.rows * tensor.row_bytes for tensor in after.values())
    sentence = (
        f"{len(after)} tensors of {read:,} bytes and {compared} fields compared, {scales:,} scales of "
        f"{len(faults)} tensors trained"
    )
    cause = f"The file was changed after it was made, or its scales are of another run: {AGAIN}."
    return _check(TITLE, sentence, wrong, cause, WHAT)


def distilled_weights(level: Path, distilled: Path, reports: Path, name: ModelName) -> Check:
    """Check the file `distilled` byte for byte against the `level` that it was made from.

    Only scales may differ, and each must be finite and keep its sign. The file must still be the one that
    distill/LEVEL.json in `reports` names.
    """
    record = reports / "distill" / f"{name.made_of}.json"
    title = f"Weights of {level.stem} → {name}"
    what = "tensors, fields and records that are not the level's"
    recorded = read_json(record, f"run `snakemake --force models/gguf/{distilled.name}`")
    old, before = gguf_tensors(level)
    new, after = gguf_tensors(distilled)
    wrong = [f"{field} is not the level's" for field in other_fields(level, old, distilled, new)]
    different = other_tensors(old, new)
    if different:
        wrong.append(f"{different} is not the same as in the level's file")
    else:
        wrong += filter(None, (trained_fault(before[tensor], after[tensor]) for tensor in after))
        if base_end(level, old) != base_end(distilled, new):
            wrong.append("other bytes stand between or behind the tensors")
    for key, file in (("sha256", distilled), ("level_sha256", level)):
        if recorded.get(key) != file_hash(file):
            wrong.append(f"{record.name} names another {file.name}")
    if new.fields.get(f"{DISTILL}level.sha256") != recorded.get("level_sha256"):
        wrong.append(f"{distilled.name} says that it was made from another file than {level.name}")
    cause = (
        "The file was changed after it was made, or the level was made again: run `snakemake --force "
        f"models/gguf/{distilled.name}`."
    )
    return _check(title, f"{len(after)} tensors compared", wrong, cause, what)


def _check(title: str, compared: str, faults: list[str], cause: str, what: str) -> Check:
    """Return a check that fails for any fault and names the first of them."""
    more = [f"and {len(faults) - SHOWN} more"] if len(faults) > SHOWN else []
    sentence = "; ".join([compared, *faults[:SHOWN], *more])
    return exact(title, len(faults), "differences", sentence, cause, what)


def other_fields(old_file: Path, old: Header, new_file: Path, new: Header) -> list[str]:
    """Return the fields that differ between both files, without those that record a file's origin. "GGUF
    version" is compared too.
    """

    def stored(path: Path, header: Header) -> dict[str, bytes]:
        with path.open("rb") as file:
            head = file.read(header.start)
        fields = {name: head[slice(*span)] for name, span in header.spans.items()}
        kept = {name: value for name, value in fields.items() if not name.startswith(PROVENANCE)}
        return {"GGUF version": head[:8], "padding of the header": head[header.end :].strip(b"\0"), **kept}

    ours, theirs = stored(old_file, old), stored(new_file, new)
    return [name for name in {**theirs, **ours} if ours.get(name) != theirs.get(name)]


def base_end(path: Path, header: Header) -> list[bytes]:
    """Return the bytes after each tensor that belong to no tensor."""
    gaps = []
    starts = sorted(header.start + offset for offset in header.offsets.values())
    ends = {
        header.start + offset: header.start + offset + tensor_bytes(name, *header.tensors[name])
        for name, offset in header.offsets.items()
    }
    with path.open("rb") as file:
        for start, following in zip(starts, [*starts[1:], path.stat().st_size], strict=True):
            file.seek(ends[start])
            gaps.append(file.read(following - ends[start]))
    return gaps


def other_tensors(old: Header, new: Header) -> str:
    """Return the first tensor without a counterpart of the same shape, type and offset; "" without one."""
    for name in [*new.tensors, *old.tensors]:
        if old.tensors.get(name) != new.tensors.get(name):
            return f"tensor {name}"
    return "" if list(old.tensors) == list(new.tensors) else "the order of the tensors"


def same_fault(before: GgufTensor, after: GgufTensor) -> str:
    """Return a sentence if any byte of a tensor that does not train differs; "" if none does."""
    for first, last in after.blocks():
        differs = (before.stored(first, last) != after.stored(first, last)).any(axis=1)
        if differs.any():
            return f"{after.name} does not train, and row {first + int(differs.argmax())} is not the base's"
    return ""


def trained_fault(before: GgufTensor, after: GgufTensor, scales: Numbers | None = None) -> str:
    """Return a sentence on the first fault of a trained tensor; "" if there is none.

    A scale must be finite and equal the one in `scales`, float16 (scales of a block, rows, blocks of a row).
    Without `scales` it must keep its sign. No other byte may differ.
    """
    places = SCALES.get(after.ggml_type)
    if places is None:
        none = f"{after.name} is {after.type}, which has no scales"
        return none if scales is not None else same_fault(before, after)
    if scales is not None and scales.shape != (len(places), after.rows, in_blocks(after, 0, 1).shape[1]):
        return f"{after.name} has other blocks than the trained scales"
    for first, last in after.blocks():
        ours, theirs = in_blocks(before, first, last), in_blocks(after, first, last)
        for number, at in enumerate(places):
            trained = None if scales is None else scales[number, first:last]
            fault = scale_fault(scales_at(ours, at), scales_at(theirs, at), trained, first)
            if fault:
                return f"{after.name} has {fault}"
            ours[:, :, at : at + 2] = theirs[:, :, at : at + 2]
        differs = (ours != theirs).any(axis=-1)
        if differs.any():
            return f"{after.name} has another byte than a scale's changed {place_of(differs, first)[1]}"
    return ""


def scale_fault(old: Numbers, new: Numbers, trained: Numbers | None, first: int) -> str:
    """Return words on the first wrong scale; "" if there is none. The scales are float16 (rows from `first`
    on, blocks). They were `old` before training and `trained` after it (None if not known).
    """
    strange = ~np.isfinite(new)
    if trained is None:
        wrong = strange | (np.signbit(old) != np.signbit(new))
    elif strange.any():
        at, where = place_of(strange, first)
        return f"a scale that is {float(new[at]):.6g} {where}"
    else:
        wrong = new.view(np.uint16) != trained.view(np.uint16)
    if not wrong.any():
        return ""
    at, where = place_of(wrong, first)
    ended = "" if trained is None else f", and {float(trained[at]):.6g} ended training"
    return f"the scale {float(new[at]):.6g} {where}{ended}"


def scales_at(blocks: Bytes, at: int) -> Numbers:
    """Return the float16 scales (rows, blocks) at byte `at` of `blocks` (rows, blocks, bytes of a block)."""
    scales: Numbers = np.ascontiguousarray(blocks[:, :, at : at + 2]).view(np.float16)[..., 0]
    return scales


def in_blocks(tensor: GgufTensor, first: int, last: int) -> Bytes:
    """Return rows [first, last) as their blocks' bytes (rows, blocks of a row, bytes of a block)."""
    return tensor.stored(first, last).reshape(last - first, tensor.columns // tensor.block, -1)


def place_of(wrong: Numbers, first: int) -> tuple[tuple[int, int], str]:
    """Return the first place in `wrong`, booleans (rows from `first` on, blocks), and the same in words."""
    row, block = map(int, np.argwhere(wrong)[0])
    return (row, block), f"in row {first + row}, block {block}"
