"""A GGUF's logits, in process, and how far one model's are from another's."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import ToolError
from pipeline.llamacpp.tools import Toolchain, load_binding

Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]


class GgufModel:
    """A GGUF loaded through llama-cpp-python's ctypes binding, with one context of `ctx_size` tokens."""

    def __init__(self, llama: Any, model: Any, context: Any, ctx_size: int) -> None:
        self._llama, self._context, self.ctx_size = llama, context, ctx_size
        self.vocabulary: int = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))

    def logits(self, ids: list[int], positions: list[int]) -> Floats:
        """Logits of the next token after each of `positions` (ascending) in the row `ids`: float32, (len(positions), V)."""
        if len(ids) > self.ctx_size:
            raise ValueError(f"a row of {len(ids)} tokens does not fit a context of {self.ctx_size}")
        llama = self._llama
        llama.llama_memory_clear(llama.llama_get_memory(self._context), True)
        wanted = set(positions)
        batch = llama.llama_batch_init(len(ids), 0, 1)
        try:
            batch.n_tokens = len(ids)
            for i, token in enumerate(ids):
                batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, i in wanted
                batch.seq_id[i][0] = 0
            if llama.llama_decode(self._context, batch) != 0:
                raise ToolError(f"llama.cpp could not evaluate a row of {len(ids)} tokens: lower evaluate.ctx_size or free memory")
        finally:
            llama.llama_batch_free(batch)
        values = np.ctypeslib.as_array(llama.llama_get_logits(self._context), shape=(len(positions), self.vocabulary))
        copied: Floats = values.copy()
        return copied  # llama.cpp writes the next row into the same memory


@contextmanager
def open_gguf(tools: Toolchain, path: Path, *, ctx_size: int, threads: int, n_gpu_layers: int) -> Iterator[GgufModel]:
    """Load a GGUF for `GgufModel.logits`; freed when the body ends. Raises `ToolError` where llama.cpp refuses it."""
    llama = load_binding(tools)
    _silence(llama)
    llama.llama_backend_init()
    model_settings = llama.llama_model_default_params()
    model_settings.n_gpu_layers = n_gpu_layers
    model = llama.llama_model_load_from_file(str(path).encode(), model_settings)
    if not model:
        raise ToolError(f"llama.cpp can't load {path}: run the stage that makes it again")
    settings = llama.llama_context_default_params()
    settings.n_ctx = settings.n_batch = ctx_size
    settings.n_threads = settings.n_threads_batch = threads
    context = llama.llama_init_from_model(model, settings)
    try:
        if not context:
            raise ToolError(f"llama.cpp has no memory for a context of {ctx_size} tokens of {path}: lower evaluate.ctx_size")
        yield GgufModel(llama, model, context, ctx_size)
    finally:
        if context:
            llama.llama_free(context)
        llama.llama_model_free(model)


_callbacks: list[Any] = []  # llama.cpp keeps the pointer for good: the callback must never be collected


def _silence(llama: Any) -> None:
    """Keep llama.cpp's log off the terminal."""
    if not _callbacks:
        _callbacks.append(llama.llama_log_callback(lambda level, text, data: None))
        llama.llama_log_set(_callbacks[0], ctypes.c_void_p(0))


def log_softmax(logits: Floats) -> Floats:
    """log p over the last axis, in float64 so that a divergence of 1e-6 is still a number and not rounding."""
    shifted: Floats = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def divergence(reference: Floats, candidate: Floats) -> Floats:
    """KL(reference ‖ candidate) per position, in nats; both are log probabilities (T, V)."""
    kld: Floats = (np.exp(reference) * (reference - candidate)).sum(axis=-1)
    return np.maximum(kld, 0.0)  # rounding can leave −1e-17


def nmse(reference: Floats, candidate: Floats) -> float:
    """Normalised mean squared error Σ(c − r)² ÷ Σr² of logits, as llama.cpp's test-backend-ops measures it."""
    difference = candidate.astype(np.float64) - reference
    return float((difference**2).sum() / (reference.astype(np.float64) ** 2).sum())


def perplexity(losses: Floats) -> tuple[float, float]:
    """exp(mean loss) and its standard error (delta method, as llama-perplexity prints them); losses in nats, (T,)."""
    value = float(np.exp(losses.mean()))
    error = value * float(losses.std(ddof=1)) / float(np.sqrt(len(losses))) if len(losses) > 1 else 0.0
    return value, error
