"""Measure the distance between two models' next-token distributions on the same tokens, with never more than
one prompt's logits in memory.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.config.products import ModelFiles
from pipeline.core.errors import GateError
from pipeline.core.publish import need_disk
from pipeline.llamacpp.logits import Floats, open_gguf
from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.metrics.log_probabilities import kl_divergence, shifted

POSITIONS = 64  # positions of a prompt that are compared: 39 MB of float32 logits for a vocabulary of 152k
# Positions compared at once: 2.4 MB a side for a vocabulary of 152k, which stay in the CPU's cache.
BLOCK = 4


@dataclass(frozen=True)
class Prompt:
    """Token ids, and the ascending positions after which the next token's distribution is compared."""

    ids: list[int]
    positions: list[int]


Speaker = Callable[[Prompt], Floats]  # a loaded model: returns a prompt's float32 logits, (len(positions), V)


@dataclass(frozen=True)
class Divergence:
    """Divergence of a model from a reference. `kld` in nats is the mean over `kld_rows`, each the mean
    KL(reference ‖ model) of one prompt.

    `nmse` is Σ(difference²) ÷ Σ(reference²) of the worst prompt's logits. `strange` positions have logits
    that are not finite numbers, and `widths` are the two vocabularies. If there are strange ones or the
    widths differ, every other figure is NaN.
    """

    kld_rows: list[float]
    kld: float
    kld_max: float
    same_top: float
    nmse: float
    positions: int
    strange: int
    widths: tuple[int, int]

    @property
    def fault(self) -> str:
        """Reason why the figures are meaningless; empty if they are valid."""
        if self.widths[0] != self.widths[1]:
            return f"the vocabularies have {self.widths[0]:,} and {self.widths[1]:,} tokens"
        return f"{self.strange} positions hold logits that are not finite numbers" if self.strange else ""


class Reference:
    """Logits of every prompt by one model, in a file that is read prompt by prompt."""

    def __init__(self, file: Path, prompts: list[Prompt], width: int) -> None:
        self.prompts = prompts
        self.width = width
        self._values = np.memmap(
            file, np.float32, "r", shape=(sum(len(prompt.positions) for prompt in prompts), width)
        )

    def __iter__(self) -> Iterator[Floats]:
        """Yield each prompt's logits, (len(positions), V)."""
        at = 0
        for prompt in self.prompts:
            yield self._values[at : at + len(prompt.positions)]
            at += len(prompt.positions)


def spread(ids: list[int], most: int = POSITIONS) -> Prompt:
    """Return a prompt of which up to `most` positions are compared, evenly spread, the last one included."""
    count = min(most, len(ids))
    places = np.linspace(len(ids) - 1, 0, count)
    return Prompt(ids, sorted({round(place) for place in places}))


@contextmanager
def kept_logits(
    prompts: list[Prompt], model: AbstractContextManager[Speaker], scratch: Path
) -> Iterator[Reference]:
    """Compute a model's logits of every prompt and keep them in a temporary file below `scratch` of positions
    × V × 4 bytes, which is deleted after the body.

    The model is opened here and closed before the body. Raises `MachineError` if the disk has no room for the
    file.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".logits-", dir=scratch) as folder:
        file = Path(folder) / "logits"
        width = write_logits(file, prompts, model)
        del model  # It may refer to its speaker, and that to the weights.
        yield Reference(file, prompts, width)


def write_logits(file: Path, prompts: list[Prompt], model: AbstractContextManager[Speaker]) -> int:
    """Write the model's logits, float32 (positions of all prompts, V), and return V. When it returns, nothing
    refers to the model any more. Raises `MachineError` if the disk has no room for the file.
    """
    total = sum(len(prompt.positions) for prompt in prompts)
    width = 0
    with model as speaker, file.open("wb") as out:
        for prompt in prompts:
            logits = speaker(prompt)
            if not width:
                width = logits.shape[1]
                need_disk(file.parent, total * width * 4)
            out.write(np.ascontiguousarray(logits, np.float32).data)
    return width


def compare(reference: Iterable[Floats], candidate: Iterable[Floats]) -> Divergence:
    """Compare one model's logits (T, V) of each prompt with another's, prompt by prompt."""
    return summarize(
        [prompt_figures(before, after) for before, after in zip(reference, candidate, strict=True)]
    )


def gguf_divergence(reference: Reference, gguf: Path, *, threads: int, tools: Toolchain) -> Divergence:
    """Compare a GGUF with the reference, on the CPU, without storing its logits.

    Raises `ToolError` if llama.cpp can't load it, `GateError` if the two can't be compared.
    """
    with gguf_speaker(gguf, reference.prompts, threads=threads, tools=tools) as speaker:
        divergence = compare(reference, (speaker(prompt) for prompt in reference.prompts))
    if divergence.fault:
        raise GateError(
            "Q-METRICS-002",
            f"{gguf.name} can't be compared with the trained model ({divergence.fault}): set convert.type "
            "to BF16 if weights are too large for F16; else the base or the adapter is damaged",
        )
    return divergence


@contextmanager
def gguf_speaker(
    gguf: Path, prompts: list[Prompt], *, threads: int, tools: Toolchain, lora: Path | None = None
) -> Iterator[Speaker]:
    """Yield a GGUF loaded on the CPU with a context as long as the longest prompt."""
    longest = max(len(prompt.ids) for prompt in prompts)
    with open_gguf(Llama(tools, threads), ModelFiles(gguf, lora), ctx_size=longest) as model:
        yield lambda prompt: model.logits(prompt.ids, prompt.positions)


def prompt_figures(before: Floats, after: Floats) -> Divergence:
    """Return one prompt's figures from two models' logits (T, V)."""
    widths = before.shape[1], after.shape[1]
    strange = _not_finite(before) + _not_finite(after)
    if strange or widths[0] != widths[1]:
        nothing = float("nan")
        return Divergence([nothing], nothing, nothing, nothing, nothing, len(before), strange, widths)
    starts = range(0, len(before), BLOCK)
    blocks = [_block_figures(before[at : at + BLOCK], after[at : at + BLOCK]) for at in starts]
    klds, errors, squares = zip(*blocks, strict=True)
    kld = np.concatenate(klds)
    wrong = sum(errors)
    power = sum(squares)
    mean = float(kld.mean())
    return Divergence(
        [mean],
        mean,
        float(kld.max()),
        float((before.argmax(axis=-1) == after.argmax(axis=-1)).mean()),
        wrong / power if power else float(wrong > 0),
        len(kld),
        0,
        widths,
    )


def _not_finite(logits: Floats) -> int:
    """Count the positions of logits (T, V) that are not finite numbers."""
    return int((~np.isfinite(logits).all(axis=-1)).sum())


def _block_figures(before: Floats, after: Floats) -> tuple[Floats, float, float]:
    """Return (KL(before ‖ after) per position, Σ(after − before)², Σ before²) of float32 logits (T, V)."""
    wrong = float(np.square(after - before).sum(dtype=np.float64))
    power = float(np.square(before).sum(dtype=np.float64))
    return kl_divergence(shifted(before), shifted(after)), wrong, power


def summarize(parts: list[Divergence]) -> Divergence:
    """Return the figures of all prompts.

    Every prompt counts the same for `kld`, every position for `same_top`.
    """
    rows = [row for part in parts for row in part.kld_rows]
    positions = sum(part.positions for part in parts)
    return Divergence(
        kld_rows=rows,
        kld=float(np.mean(rows)),
        kld_max=float(np.max([part.kld_max for part in parts])),
        same_top=sum(part.same_top * part.positions for part in parts) / positions,
        nmse=float(np.max([part.nmse for part in parts])),
        positions=positions,
        strange=sum(part.strange for part in parts),
        widths=next((part.widths for part in parts if part.widths[0] != part.widths[1]), parts[0].widths),
    )


def thinned(positions: list[int]) -> list[int]:
    """Return at most `POSITIONS` of them, evenly: the logits of each take 0.6 MB for a vocabulary of 152k."""
    return positions[:: max(1, -(-len(positions) // POSITIONS))]
