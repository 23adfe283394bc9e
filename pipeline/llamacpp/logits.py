"""A GGUF's logits, in process, and how far one model's are from another's."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.core.errors import ToolError
from pipeline.llamacpp.tools import Toolchain, load_binding

# positions whose logits llama.cpp holds at once when a row is streamed: 156 MB for a vocabulary of 152k
CHUNK = 256
Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]


class GgufModel:
    """A GGUF loaded through llama-cpp-python's ctypes binding, with one context of `ctx_size` tokens."""

    def __init__(self, llama: Any, model: Any, context: Any, ctx_size: int) -> None:
        self._llama, self._context, self.ctx_size = llama, context, ctx_size
        self.vocabulary: int = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))

    def logits(self, ids: list[int], positions: list[int]) -> Floats:
        """Logits of the next token after each of `positions` (ascending) in the row `ids`: float32,
        (len(positions), V).
        """
        self.keep(0)
        return self.read(ids, 0, set(positions)).copy()  # llama.cpp writes the next row into the same memory

    def stream(self, ids: list[int], start: int = 0) -> Iterator[Floats]:
        """Logits of the next token after every position of the row `ids` from `start` on, at most `CHUNK`
        positions at a time: float32, (n, V).

        What is before `start` must be what the row before began with; it isn't read again. Each array is
        llama.cpp's own memory, which the next one overwrites: a row of any length takes CHUNK × V × 4 bytes.
        """
        self._need_room(len(ids))
        kept = self.keep(start)
        if kept < start:
            self.read(ids[kept:start], kept, set())
        for place in range(start, len(ids), CHUNK):
            some = ids[place : place + CHUNK]
            yield self.read(some, place, set(range(len(some))))

    def keep(self, tokens: int) -> int:
        """Forget the row before but for its first `tokens` tokens; how many stay: none where the architecture
        can't forget a part.
        """
        memory = self._llama.llama_get_memory(self._context)
        if tokens and self._llama.llama_memory_seq_rm(memory, 0, tokens, -1):
            return tokens
        self._llama.llama_memory_clear(memory, True)
        return 0

    def read(self, ids: list[int], start: int, wanted: set[int]) -> Floats:
        """Read `ids` as the row's tokens from position `start` on: logits after those of `wanted`, counted
        from there, float32, (len(wanted), V).

        The array is llama.cpp's own memory, which the next call overwrites. Raises `ToolError` if llama.cpp
        can't (no memory).
        """
        self._need_room(start + len(ids))
        llama = self._llama
        batch = llama.llama_batch_init(len(ids), 0, 1)
        try:
            batch.n_tokens = len(ids)
            for i, token in enumerate(ids):
                batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = (
                    token,
                    start + i,
                    1,
                    i in wanted,
                )
                batch.seq_id[i][0] = 0
            if llama.llama_decode(self._context, batch) != 0:
                raise ToolError(
                    "Q-LLAMACPP-008",
                    f"llama.cpp could not evaluate a row of {start + len(ids)} tokens: lower "
                    "evaluate.ctx_size or free memory",
                )
        finally:
            llama.llama_batch_free(batch)
        if not wanted:
            return np.empty((0, self.vocabulary), np.float32)  # llama.cpp has no memory to show then
        values: Floats = np.ctypeslib.as_array(
            llama.llama_get_logits(self._context), shape=(len(wanted), self.vocabulary)
        )
        return values

    def _need_room(self, tokens: int) -> None:
        if tokens > self.ctx_size:
            raise ValueError(f"a row of {tokens} tokens does not fit a context of {self.ctx_size}")


@contextmanager
def open_gguf(
    tools: Toolchain, path: Path, *, ctx_size: int, threads: int, n_gpu_layers: int, lora: Path | None = None
) -> Iterator[GgufModel]:
    """Load a GGUF, with a LoRA GGUF on it if one is given, for `GgufModel.logits`; freed when the body ends.

    Raises `ToolError` if llama.cpp refuses one of them.
    """
    with loaded_gguf(tools, path, n_gpu_layers=n_gpu_layers) as (llama, model):
        settings = llama.llama_context_default_params()
        settings.n_ctx = settings.n_batch = ctx_size
        settings.n_threads = settings.n_threads_batch = threads
        context = llama.llama_init_from_model(model, settings)
        if not context:
            raise ToolError(
                "Q-LLAMACPP-008",
                f"llama.cpp has no memory for a context of {ctx_size} tokens of {path}: lower "
                "evaluate.ctx_size",
            )
        try:
            if lora:
                _put_on(llama, model, context, lora)
            yield GgufModel(llama, model, context, ctx_size)
        finally:
            llama.llama_free(context)


@contextmanager
def loaded_gguf(tools: Toolchain, path: Path, **settings: Any) -> Iterator[tuple[Any, Any]]:
    """(the binding, a model loaded with these of llama.cpp's model parameters), freed when the body ends.

    Raises `ToolError` if llama.cpp refuses the file.
    """
    llama = load_binding(tools)
    silence(llama)
    llama.llama_backend_init()
    chosen = llama.llama_model_default_params()
    for name, value in settings.items():
        setattr(chosen, name, value)
    model = llama.llama_model_load_from_file(str(path).encode(), chosen)
    if not model:
        what = "the vocabulary of " if settings.get("vocab_only") else ""
        raise ToolError(
            "Q-LLAMACPP-009", f"llama.cpp can't load {what}{path}: run the stage that makes it again"
        )
    try:
        yield llama, model
    finally:
        llama.llama_model_free(model)


def _put_on(llama: Any, model: Any, context: Any, lora: Path) -> None:
    """Add a LoRA GGUF to a context at its full strength; it is freed with the model. Raises `ToolError` if it
    doesn't fit the model.
    """
    adapter = llama.llama_adapter_lora_init(model, str(lora).encode())
    if not adapter:
        raise ToolError(
            "Q-LLAMACPP-010", f"llama.cpp can't put {lora} on its base: run `snakemake --force convert`"
        )
    if (
        llama.llama_set_adapters_lora(
            context, (llama.llama_adapter_lora_p_ctypes * 1)(adapter), 1, (ctypes.c_float * 1)(1.0)
        )
        != 0
    ):
        raise ToolError(
            "Q-LLAMACPP-010", f"llama.cpp can't use {lora} in this context: run `snakemake --force convert`"
        )


_callbacks: list[Any] = []  # llama.cpp keeps the pointer for good: the callback must never be collected


def silence(llama: Any) -> None:
    """Keep llama.cpp's log off the terminal."""
    if not _callbacks:
        _callbacks.append(llama.llama_log_callback(lambda level, text, data: None))
        llama.llama_log_set(_callbacks[0], ctypes.c_void_p(0))


def log_softmax(logits: Floats) -> Floats:
    """log p over the last axis, in float64 so that a divergence of 1e-6 is still a number and not
    rounding.
    """
    shifted: Floats = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def divergence(reference: Floats, candidate: Floats) -> Floats:
    """KL(reference ‖ candidate) per position, in nats; both are log probabilities (T, V)."""
    kld: Floats = (np.exp(reference) * (reference - candidate)).sum(axis=-1)
    return np.maximum(kld, 0.0)  # rounding can leave −1e-17


def nmse(reference: Floats, candidate: Floats) -> float:
    """Normalized mean squared error Σ(c − r)² ÷ Σr² of logits, as llama.cpp's test-backend-ops measures
    it.
    """
    difference = candidate.astype(np.float64) - reference
    return float((difference**2).sum() / (reference.astype(np.float64) ** 2).sum())


def perplexity(losses: Floats) -> tuple[float, float]:
    """exp(mean loss) and its standard error (delta method, as llama-perplexity prints them); losses in nats,
    (T,).
    """
    value = float(np.exp(losses.mean()))
    error = value * float(losses.std(ddof=1)) / float(np.sqrt(len(losses))) if len(losses) > 1 else 0.0
    return value, error
