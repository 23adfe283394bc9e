"""Binary patches between two GGUF files. A patch is tied to the SHA-256 of the file that it applies to.

Both files contain the same tensors, some with other values. A tuned level differs from the level that it was
made from in its blocks' scales: then only those are in the patch. A patch is a safetensors file without code.
The result of applying it is proven by the sha256 of the file that the patch was made from.
"""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from pipeline.core.errors import DataError
from pipeline.core.hashing import file_hash
from pipeline.core.publish import need_disk, publishing
from pipeline.core.special_files import need_file
from pipeline.gguf.file import check_gguf
from pipeline.gguf.header import Header, tensor_bytes
from pipeline.gguf.tensors import SCALES, Bytes, GgufTensor, gguf_tensors

FORMAT = "quench patch 1"
COUNTS = 24  # bytes at the start of a GGUF: magic, version, number of tensors and of fields
# The patch's own entries. A tensor's entry is its name after WHOLE or CHANGED.
HEADER, TAIL = "header", "tail"
WHOLE, CHANGED = "tensor:", "scales:"
MOST_DIMENSIONS = 3
SHA256 = re.compile(r"[0-9a-f]{64}")
SIZE = re.compile(r"[0-9]{1,15}")
KEYS = {"base_sha256", "sha256", "bytes", "header_kept"}
Patch = dict[str, Any]  # the safetensors file's metadata, and its arrays under "arrays"


def write_patch(base: Path, other: Path, target: Path) -> dict[str, int]:
    """Publish as `target` the patch from `base` to `other`. Return how many tensors differ only in scales,
    and how many in more.

    It is proven before it is published: `base` with the patch has `other`'s sha256. Raises `DataError` for
    files that are incomplete or don't contain the same tensors, `MachineError` for a full disk.
    """
    old, before = gguf_tensors(base)
    new, after = gguf_tensors(other)
    different = _other_tensors(old, new)
    if different:
        raise DataError(
            "Q-GGUF-016",
            f"{different} is not the same in {base} and {other}, and a patch changes values alone: give a "
            "file that was made from the other one",
        )
    arrays: dict[str, Bytes] = {}
    for name, tensor in after.items():
        change = _changed(before[name], tensor)
        if change is not None:
            kind, values = change
            arrays[kind + name] = values
    kept, arrays[HEADER] = _header_change(_head(base, old), _head(other, new))
    tail = _tail(other, new)
    if tail:
        arrays[TAIL] = np.frombuffer(tail, np.uint8)
    details = {
        "format": FORMAT,
        "base_sha256": file_hash(base),
        "sha256": file_hash(other),
        "bytes": str(other.stat().st_size),
        "header_kept": ",".join(map(str, kept)),
    }
    need_disk(target.parent, sum(array.nbytes for array in arrays.values()))
    with publishing(target) as aside:
        try:
            save_file(arrays, aside, details)
        except SafetensorError as error:  # safetensors' own error for a full disk
            raise OSError(str(error)) from error
        _prove(_patched(base, read_patch(aside)), details["sha256"], other)
    scales = sum(key.startswith(CHANGED) for key in arrays)
    return {"scales": scales, "tensors": sum(key.startswith(WHOLE) for key in arrays)}


def apply_patch(base: Path, patch: Path, target: Path) -> None:
    """Publish `base` with `patch` as `target`, proven to be the file that the patch was made from.

    Raises `DataError` for a patch that is incomplete or belongs to another file, `MachineError` for a full
    disk.
    """
    read = read_patch(patch)
    check_gguf(base)
    digest = file_hash(base)
    if digest != read["base_sha256"]:
        raise DataError(
            "Q-GGUF-017",
            f"{patch} belongs to the file with sha256 {read['base_sha256'][:12]}…, and {base} has "
            f"{digest[:12]}…: give the file that it was made for",
        )
    need_disk(target.parent, int(read["bytes"]))
    with publishing(target, check_gguf) as aside, aside.open("wb") as file:
        _prove(_written(_patched(base, read), file), read["sha256"], patch)


def read_patch(patch: Path) -> Patch:
    """Return the patch in the file `patch`. Raises `DataError` if it is not one, or cut off."""
    need_file(patch)
    try:
        with safe_open(patch, framework="numpy") as file:
            details = file.metadata() or {}
            names = list(file.keys())
            is_valid = all(_is_ours(name, file.get_slice(name)) for name in names)
            arrays = {name: file.get_tensor(name) for name in names} if is_valid else {}
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
        raise DataError(
            "Q-GGUF-018",
            f"{patch} can't be read as a patch ({error}): fetch it again, or make it with `quench model "
            "patch`",
        ) from error
    if (
        details.get("format") != FORMAT
        or KEYS - details.keys()
        or HEADER not in arrays
        or not all(SHA256.fullmatch(details[key]) for key in ("base_sha256", "sha256"))
        or not SIZE.fullmatch(details["bytes"])
    ):
        raise DataError("Q-GGUF-018", f"{patch} is not a patch of `quench model patch`: make it again")
    return {**details, "arrays": arrays}


def _is_ours(name: str, entry: Any) -> bool:
    """Return True if a patch can contain this entry of a safetensors file: bytes, of a known kind."""
    is_known = name in (HEADER, TAIL) or name.startswith((WHOLE, CHANGED))
    return is_known and entry.get_dtype() == "U8" and len(entry.get_shape()) <= MOST_DIMENSIONS


def _other_tensors(old: Header, new: Header) -> str | None:
    """Return the reason why there is no patch: a tensor in only one file or of another shape or type, the
    order or alignment. None if there is one.
    """
    if list(old.tensors) == list(new.tensors):
        unlike = (f"tensor {name}" for name, info in new.tensors.items() if old.tensors[name] != info)
        return next(unlike, "the alignment" if old.alignment != new.alignment else None)
    extra = sorted(old.tensors.keys() ^ new.tensors.keys())
    return f"tensor {extra[0]}" if extra else "the order of the tensors"


def _changed(before: GgufTensor, after: GgufTensor) -> tuple[str, Bytes] | None:
    """Return the entry of a patch by which `after` differs from `before`; None if it does not differ."""
    rows = list(after.blocks())
    if all(np.array_equal(before.stored(*part), after.stored(*part)) for part in rows):
        return None
    scales: list[Bytes] = []
    for part in rows:
        new_bytes = after.stored(*part)
        values = _scale_bytes(new_bytes, after.ggml_type)
        if values is None or not np.array_equal(
            _with_scales(before.stored(*part), after.ggml_type, values), new_bytes
        ):
            return WHOLE, after.stored(0, after.rows)
        scales.append(values)
    # safetensors writes an array's memory, whatever its strides.
    return CHANGED, np.ascontiguousarray(np.concatenate(scales))


def _scale_bytes(rows: Bytes, ggml_type: int) -> Bytes | None:
    """Return all scales' bytes, (rows, blocks of a row, 2 · scales of a block); None for a type without."""
    places = [at + byte for at in SCALES.get(ggml_type, ()) for byte in (0, 1)]
    return _blocks(rows, ggml_type)[..., places] if places else None


def _with_scales(rows: Bytes, ggml_type: int, values: Bytes) -> Bytes:
    """Return `rows` with the scales `values` in their places."""
    places = [at + byte for at in SCALES[ggml_type] for byte in (0, 1)]
    _blocks(rows, ggml_type)[..., places] = values
    return rows


def _blocks(rows: Bytes, ggml_type: int) -> Bytes:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    size = int(GGML_QUANT_SIZES[GGMLQuantizationType(ggml_type)][1])
    return rows.reshape(len(rows), -1, size)


def _head(path: Path, header: Header) -> bytes:
    """Return the bytes of a file before its tensors."""
    with path.open("rb") as file:
        return file.read(header.start)


def _tail(path: Path, header: Header) -> bytes:
    """Return the bytes of a file after its last tensor and that tensor's padding, usually none."""
    sizes = (tensor_bytes(name, *info) for name, info in header.tensors.items())
    with path.open("rb") as file:
        file.seek(header.start + sum(-(-size // header.alignment) * header.alignment for size in sizes))
        return file.read()


def _header_change(old: bytes, new: bytes) -> tuple[tuple[int, int], Bytes]:
    """Return ((bytes of `old` kept after its counts, bytes kept at its end), the other bytes of `new`)."""
    room = min(len(old), len(new)) - COUNTS
    before, after = (np.frombuffer(text, np.uint8)[COUNTS:] for text in (old, new))
    differs = np.flatnonzero(before[:room] != after[:room])
    first = int(differs[0]) if len(differs) else room
    differs = np.flatnonzero(before[::-1][: room - first] != after[::-1][: room - first])
    last = int(differs[0]) if len(differs) else room - first
    change = new[:COUNTS] + new[COUNTS + first : len(new) - last]
    return (first, last), np.frombuffer(change, np.uint8)


def _patched(base: Path, patch: Patch) -> Iterator[bytes]:
    """Yield the bytes of `base` with `patch` applied, in parts."""
    header, tensors = gguf_tensors(base)
    head = _head(base, header)
    arrays = patch["arrays"]
    first, last = map(int, patch["header_kept"].split(","))
    change = arrays[HEADER].tobytes()
    kept_first = head[COUNTS : COUNTS + first]
    kept_last = head[len(head) - last :]
    start = change[:COUNTS] + kept_first + change[COUNTS:] + kept_last
    yield start
    left = int(patch["bytes"]) - len(start)
    for name, tensor in tensors.items():
        if WHOLE + name in arrays:
            yield arrays[WHOLE + name].tobytes()
        else:
            values = arrays.get(CHANGED + name)
            for part in tensor.blocks():
                rows = tensor.stored(*part)
                if values is not None:
                    rows = _with_scales(rows, tensor.ggml_type, values[slice(*part)])
                yield rows.tobytes()
        size = tensor_bytes(name, *header.tensors[name])
        left -= size
        padding = min(-size % header.alignment, left)  # The last tensor may have no padding.
        left -= padding
        yield bytes(padding)
    if TAIL in arrays:
        yield arrays[TAIL].tobytes()


def _written(parts: Iterator[bytes], file: Any) -> Iterator[bytes]:
    for part in parts:
        file.write(part)
        yield part


def _prove(parts: Iterator[bytes], wanted: str, file: Path) -> None:
    """Raise `DataError` unless the bytes have the sha256 `wanted`."""
    digest = hashlib.sha256()
    try:
        for part in parts:
            digest.update(part)
    except (ValueError, KeyError, IndexError) as error:
        raise DataError(
            "Q-GGUF-018", f"{file} does not fit its base ({error}): make it again with `quench model patch`"
        ) from error
    if digest.hexdigest() != wanted:
        raise DataError(
            "Q-GGUF-019",
            f"{file}: the result has sha256 {digest.hexdigest()[:12]}…, {wanted[:12]}… was announced: make "
            "the patch again with `quench model patch`",
        )
