"""Faster versions of what transformers imports from package `gguf`: reader, dequantizer, map of names.

The reader takes 13 s for a vocabulary of 150,000 words, which `base` reads twice: every word is two slices of
a memory map, and numpy is slow at those. This one slices plain memory. The dequantizer computes 16 rows at a
time; `pipeline.gguf.dequantize` gives the same bits in a tenth of the time. The map of names is built again
for every module of the model: 60 to 300 times.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_LENGTH = struct.Struct("<Q")


@contextmanager
def quick_reader() -> Iterator[None]:
    """Replace the names in `gguf` while the body runs. Modules that import them (transformers, at each call)
    get the same fields, values and names, sooner.
    """
    import gguf

    quick = {
        "GGUFReader": _quick(gguf.GGUFReader),
        "dequantize": _values,
        "get_tensor_name_map": cache(gguf.get_tensor_name_map),
    }
    slow = {name: getattr(gguf, name) for name in quick}
    try:
        vars(gguf).update(quick)
        yield
    finally:
        vars(gguf).update(slow)


def _values(data: Any, kind: Any) -> Any:
    """Return a stored tensor as float32, shaped as it is."""
    import numpy
    import torch
    from gguf.quants import dequantize

    from pipeline.gguf.dequantize import TRAINABLE_TYPES
    from pipeline.gguf.dequantize import dequantize as soon

    if data.dtype != numpy.uint8 or int(kind) not in TRAINABLE_TYPES:
        return dequantize(data, kind)
    return soon(torch.from_numpy(numpy.array(data)), int(kind)).numpy()


def _quick(slow: type) -> type:
    """Return `slow` with lists of texts and numbers (little-endian, as in nearly all files) read at once."""
    import numpy
    from gguf import GGUFValueType

    class Quick(slow):  # type: ignore[misc]
        def _get_field_parts(
            self, orig_offs: int, raw_type: int
        ) -> tuple[int, list[Any], list[int], list[Any]]:
            if raw_type != GGUFValueType.ARRAY or self.byte_order != "I":
                return super()._get_field_parts(orig_offs, raw_type)  # type: ignore[no-any-return]
            head = [self._get(orig_offs, "uint32"), self._get(orig_offs + 4, "uint64")]
            element = GGUFValueType(int(head[0][0]))
            count = int(head[1][0])
            start = orig_offs + 12
            if count and element == GGUFValueType.STRING:
                parts, size = _texts(self.data.view(type=numpy.ndarray), start, count)
                places = range(3, 3 + 2 * count, 2)
            elif count and element in self.gguf_scalar_to_np:
                values = self._get(start, self.gguf_scalar_to_np[element], count).view(type=numpy.ndarray)
                parts = [values[at : at + 1] for at in range(count)]
                size = int(values.nbytes)
                places = range(2, 2 + count)
            else:
                return super()._get_field_parts(orig_offs, raw_type)  # type: ignore[no-any-return]
            return 12 + size, head + parts, list(places), [GGUFValueType.ARRAY, element]

    return Quick


def _texts(data: Any, start: int, count: int) -> tuple[list[Any], int]:
    """Return length and bytes of `count` texts, as the slow reader's parts, and their total bytes."""
    parts: list[Any] = []
    at = start
    memory = memoryview(data)
    for _ in range(count):
        stop = at + 8 + _LENGTH.unpack_from(memory, at)[0]
        parts += (data[at : at + 8].view("uint64"), data[at + 8 : stop])
        at = stop
    return parts, at - start
