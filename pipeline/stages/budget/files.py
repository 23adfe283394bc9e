"""GGUFs of allocations and of fixed levels, made by llama-quantize from the 16-bit one; what they lose."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.publish import remove
from pipeline.gguf.file import BUDGET_FIELD
from pipeline.llamacpp.converters import Quantizing, quantize_gguf
from pipeline.llamacpp.tools import Llama
from pipeline.metrics.divergence import Prompt, gguf_divergence, gguf_speaker, kept_logits
from pipeline.stages.budget.sizes import Allocation, Sizes, patterns, prove

# what the header calls a file whose weights are mostly of a type; of a type that is not here, by its own name
FILE_TYPES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "MXFP4": "MXFP4_MOE"}


@dataclass(frozen=True)
class Maker:
    """How files are made: from `source`, with `imatrix` or None, for the budget `text`, in `scratch`."""

    source: Path
    imatrix: Path | None
    text: str
    scratch: Path
    llama: Llama

    def make(self, target: Path, allocation: Allocation, sizes: Sizes, most: int | None = None) -> Path:
        """Write the file of an allocation and prove its types and its size; the file."""
        self._quantize(target, file_type(allocation, sizes), allocation)
        prove(target, allocation, most)
        return target

    def make_level(self, target: Path, level: str) -> Path:
        """Write the file of a fixed level, as stage `quantize` does; the file."""
        self._quantize(target, level, {})
        return target

    def _quantize(self, target: Path, level: str, allocation: Allocation) -> None:
        fields = {BUDGET_FIELD: self.text} if allocation else {}
        options = Quantizing(self.imatrix, patterns(allocation), fields=fields)
        quantize_gguf(self.llama, self.source, target, level, options)

    @contextmanager
    def temporary_gguf(self, allocation: Allocation, sizes: Sizes) -> Iterator[Path]:
        """The file of an allocation while the body runs."""
        file = self.scratch / "passing.gguf"
        try:
            yield self.make(file, allocation, sizes)
        finally:
            remove(file)


@contextmanager
def emptied(folder: Path) -> Iterator[Path]:
    """`folder`, emptied of what a killed run left; removed after the body, with the parent if it is empty."""
    remove(folder)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        remove(folder)
        with suppress(OSError):
            folder.parent.rmdir()


def file_type(allocation: Allocation, sizes: Sizes) -> str:
    """The level that the header names: that of the type which most bytes have."""
    stored: dict[str, int] = {}
    for name, kind in allocation.items():
        stored[kind] = stored.get(kind, 0) + sizes[name][kind]
    most = max(stored, key=lambda kind: (stored[kind], kind))
    return "Q8_0" if most in ("F16", "BF16", "F32") else FILE_TYPES.get(most, most)


@contextmanager
def divergence_meter(maker: Maker, prompts: list[Prompt]) -> Iterator[Callable[[Path], list[float]]]:
    """What gives a file's KL divergence from the 16-bit one, in nats for each of `prompts`.

    The 16-bit model's logits are on the disk meanwhile (32 positions of a row at most, 4 bytes for each token
    of the vocabulary).
    """
    threads, tools = maker.llama.threads, maker.llama.tools
    speaker = gguf_speaker(maker.source, prompts, threads=threads, tools=tools)
    with kept_logits(prompts, speaker, maker.scratch) as reference:
        yield lambda file: gguf_divergence(reference, file, threads=threads, tools=tools).kld_rows
