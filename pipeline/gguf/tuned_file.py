"""Write a GGUF with other scales in its blocks and more metadata. Every other byte is the base's."""

import shutil
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.core.publish import need_disk, publishing
from pipeline.gguf.file import check_gguf
from pipeline.gguf.header import Header
from pipeline.gguf.provenance import OWN
from pipeline.gguf.tensors import gguf_tensors

BASE_MODEL = "general.base_model."
UINT32, STRING = 4, 8  # value types of ggml/docs/gguf.md
COUNTS = 24  # bytes before the first field: magic, version, number of tensors and of fields


def write_tuned(
    base: Path, target: Path, scales: Iterable[tuple[str, Any]], fields: Mapping[str, str | int]
) -> None:
    """Publish `target`: the GGUF `base` with `fields` in its metadata and `scales`, (tensor, float16 (scales
    of a block, rows, blocks of a row)).

    One tensor is in memory at a time. Raises what `scales` raises.
    """
    import torch

    from pipeline.gguf.scales import with_scales

    header, tensors = gguf_tensors(base)
    # The file records its origin once: the base's own records would be mixed with the tuned file's.
    head = header_with(base, header, fields, dropped=(OWN, BASE_MODEL) if fields else ())
    need_disk(target.parent, base.stat().st_size)
    with publishing(target, check_gguf) as aside:
        _copy_tensors(base, header, head, aside)
        with aside.open("r+b") as new:
            for name, values in scales:
                tensor = tensors[name]
                new.seek(len(head) + tensor.start - header.start)
                rows = torch.from_numpy(tensor.stored(0, tensor.rows))
                new.write(with_scales(rows, tensor.ggml_type, values).numpy().tobytes())


def rewrite_header(
    path: Path, header: Header, fields: Mapping[str, str | int], dropped: tuple[str, ...] = ()
) -> None:
    """Publish the GGUF at `path` again with `fields` in its metadata, and without those whose names begin
    with one of `dropped`. Its tensors keep their bytes.
    """
    head = header_with(path, header, fields, dropped)
    need_disk(path.parent, path.stat().st_size)
    with publishing(path, check_gguf) as aside:
        _copy_tensors(path, header, head, aside)


def _copy_tensors(source: Path, header: Header, head: bytes, target: Path) -> None:
    """Write `target`: `head`, and everything after the header of `source`."""
    with source.open("rb") as old, target.open("wb") as new:
        new.write(head)
        old.seek(header.start)
        shutil.copyfileobj(old, new, 1 << 24)


def header_with(
    path: Path, header: Header, fields: Mapping[str, str | int], dropped: tuple[str, ...] = ()
) -> bytes:
    """Return the bytes of a GGUF before its tensors, with `fields` at the end of its metadata. They replace
    the fields of the same names and those whose names begin with one of `dropped`. The bytes are padded to
    the alignment.
    """
    with path.open("rb") as file:
        old = file.read(header.end)
    kept = [
        old[slice(*span)]
        for name, span in header.spans.items()
        if name not in fields and not name.startswith(dropped)
    ]
    data_end = max((end for _, end in header.spans.values()), default=COUNTS)
    (tensors,) = struct.unpack_from("<Q", old, 8)
    counts = old[:8] + struct.pack("<QQ", tensors, len(kept) + len(fields))
    new = counts + b"".join(kept) + b"".join(_field(*field) for field in fields.items()) + old[data_end:]
    return new + bytes(-len(new) % header.alignment)


def _field(name: str, value: str | int) -> bytes:
    key = struct.pack("<Q", len(name.encode())) + name.encode()
    if isinstance(value, int):
        return key + struct.pack("<II", UINT32, value)
    return key + struct.pack("<IQ", STRING, len(value.encode())) + value.encode()
