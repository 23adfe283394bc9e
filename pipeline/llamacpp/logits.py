"""Logits of a GGUF, computed in this process."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.products import ModelFiles
from pipeline.core.errors import ToolError
from pipeline.core.text import common_start
from pipeline.llamacpp.devices import gpu_layers
from pipeline.llamacpp.tools import Llama, Toolchain, load_binding

# Positions whose logits llama.cpp keeps at once when a row is streamed: 156 MB for a vocabulary of 152k.
CHUNK = 256
Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]
Ids = np.ndarray[Any, np.dtype[np.intp]]


@dataclass(frozen=True)
class Token:
    """Token to read at a position of one row or of more rows, and whether the logits after it are wanted."""

    id: int
    position: int
    wanted: bool
    rows: Sequence[int] = (0,)


class GgufModel:
    """GGUF loaded through llama-cpp-python's ctypes binding, with one context of `ctx_size` tokens."""

    def __init__(self, llama: Any, model: Any, context: Any, ctx_size: int) -> None:
        self._llama = llama
        self._context = context
        self._row: list[int] = []  # tokens of the row in llama.cpp's memory, if there is only one
        self._shared: list[int] = []  # tokens that each of the rows in llama.cpp's memory begins with
        self._rows = 0  # number of these rows
        self.ctx_size = ctx_size
        self.vocabulary: int = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))

    def logits(self, ids: list[int], positions: list[int]) -> Floats:
        """Return next-token logits after `positions` (ascending) of `ids`: float32 (len(positions), V).

        A beginning that the row shares with the one before, up to the first position, isn't read again.
        """
        kept = common_start(ids, self._row)
        if positions:
            kept = min(kept, positions[0])
        kept = self.keep(kept)
        wanted = {position - kept for position in positions}
        values = self.read(ids[kept:], kept, wanted)
        return values.copy()  # llama.cpp writes the next row into the same memory.

    def stream(self, ids: list[int], start: int = 0) -> Iterator[Floats]:
        """Yield the logits of the next token after every position of the row `ids` from `start` on, at most
        `CHUNK` positions at a time: float32, (n, V).

        The tokens before `start` must be those that the previous row began with; they aren't read again. Each
        array is llama.cpp's own memory, which the next one overwrites: a row of any length takes CHUNK × V ×
        4 bytes.
        """
        self._need_room(len(ids))
        kept = self.keep(start)
        if kept < start:
            self.read(ids[kept:start], kept, set())
        for place in range(start, len(ids), CHUNK):
            chunk = ids[place : place + CHUNK]
            yield self.read(chunk, place, set(range(len(chunk))))

    def keep(self, tokens: int) -> int:
        """Forget the previous row except for its first `tokens` tokens. Return how many stay: 0 if the
        architecture can't forget a part.
        """
        kept = self._forget_from(tokens, row=0)
        self._row = self._row[:kept]
        self._shared = []
        return kept

    def read(self, ids: list[int], start: int, wanted: set[int]) -> Floats:
        """Read `ids` as the row's tokens from position `start` on. Return the logits after those of `wanted`,
        counted from there, float32, (len(wanted), V).

        The array is llama.cpp's own memory, which the next call overwrites. Raises `ToolError` if llama.cpp
        can't (no memory).
        """
        self._need_room(start + len(ids))
        logits = self._decode([Token(token, start + i, i in wanted) for i, token in enumerate(ids)])
        self._row = [*self._row[:start], *ids]
        return logits

    def read_together(self, rows: Sequence[tuple[list[int], range]]) -> list[Floats]:
        """Read more than one row in one pass over the weights. Return for each row, given as its ids and the
        positions wanted (ascending), the logits after these, float32, (len(positions), V).

        A common prefix of rows is read once. One that all rows share with all of the last call isn't read
        again. Raises `ToolError` as `read`, and if the context was not opened for this many rows.
        """
        shared, kept = self._keep_shared(rows)
        rows_of: dict[tuple[int, ...], list[int]] = {}  # {prefix up to a position: rows with it}
        for number, (ids, _) in enumerate(rows):
            for end in range(kept + 1, len(ids) + 1):
                rows_of.setdefault(tuple(ids[:end]), []).append(number)
        prefixes_of = [[tuple(ids[: position + 1]) for position in positions] for ids, positions in rows]
        needed = {beginning for of_row in prefixes_of for beginning in of_row}
        self._need_room(kept + len(rows_of))
        logits = self._decode(
            [
                Token(beginning[-1], len(beginning) - 1, beginning in needed, of)
                for beginning, of in rows_of.items()
            ]
        )
        self._shared = shared
        self._rows = len(rows)
        place = {
            prefix: number for number, prefix in enumerate(prefix for prefix in rows_of if prefix in needed)
        }
        return [logits[[place[prefix] for prefix in of_row]] for of_row in prefixes_of]

    def _keep_shared(self, rows: Sequence[tuple[list[int], range]]) -> tuple[list[int], int]:
        """Forget the rows of the last call except for the tokens before the first wanted position that they
        and all of `rows` begin with. Return the tokens that all of `rows` begin with, and how many stay.
        """
        first, _ = rows[0]
        shared = min(common_start(first, ids) for ids, _ in rows)
        tokens = 0
        if len(rows) <= self._rows:  # Otherwise some of the rows have no tokens yet.
            tokens = min(common_start(first[:shared], self._shared), *(wanted[0] for _, wanted in rows))
        # These describe llama.cpp's memory again once the rows are read.
        self._row = []
        self._shared = []
        self._rows = 0
        return first[:shared], self._forget_from(tokens, row=-1)

    def _forget_from(self, position: int, row: int) -> int:
        """Forget the tokens of a row (-1: of all rows) from `position` on. Return how many stay: 0 if the
        architecture can't forget a part, and then of all rows.
        """
        memory = self._llama.llama_get_memory(self._context)
        if position and self._llama.llama_memory_seq_rm(memory, row, position, -1):
            return position
        self._llama.llama_memory_clear(memory, True)
        return 0

    def _decode(self, tokens: Sequence[Token]) -> Floats:
        """Return the logits after the wanted ones of these tokens, in llama.cpp's own memory."""
        llama = self._llama
        wanted = sum(token.wanted for token in tokens)
        batch = llama.llama_batch_init(len(tokens), 0, max(len(token.rows) for token in tokens))
        try:
            batch.n_tokens = len(tokens)
            for i, token in enumerate(tokens):
                batch.token[i] = token.id
                batch.pos[i] = token.position
                batch.n_seq_id[i] = len(token.rows)
                batch.logits[i] = token.wanted
                for place, row in enumerate(token.rows):
                    batch.seq_id[i][place] = row
            if llama.llama_decode(self._context, batch) != 0:
                raise ToolError(
                    "Q-LLAMACPP-008",
                    f"llama.cpp could not evaluate a row of {tokens[-1].position + 1} tokens: free "
                    "memory, or lower preprocess.max_length",
                )
        finally:
            llama.llama_batch_free(batch)
        if not wanted:
            return np.empty((0, self.vocabulary), np.float32)  # llama.cpp has no memory to show then.
        values: Floats = np.ctypeslib.as_array(
            llama.llama_get_logits(self._context), shape=(wanted, self.vocabulary)
        )
        return values

    def _need_room(self, tokens: int) -> None:
        if tokens > self.ctx_size:
            raise ValueError(f"a row of {tokens} tokens does not fit a context of {self.ctx_size}")


@contextmanager
def open_gguf(
    llama: Llama, files: ModelFiles, *, ctx_size: int, rows: int = 1, exact: bool = False
) -> Iterator[GgufModel]:
    """Load a GGUF, with its adapter if there is one, for `GgufModel.logits`, and free it after the body. Its
    context of `ctx_size` tokens is shared by up to `rows` rows that are read together. If it is `exact`,
    attention is computed in float32, otherwise in float16 as llama-server does.

    Raises `ToolError` if llama.cpp refuses one of the files.
    """
    path, lora = files
    layers = gpu_layers(llama.tools, path, llama.n_gpu_layers, tokens=ctx_size)
    with loaded_gguf(llama.tools, path, n_gpu_layers=layers) as (binding, model):
        settings = binding.llama_context_default_params()
        settings.n_ctx = settings.n_batch = ctx_size
        settings.n_threads = settings.n_threads_batch = llama.threads
        settings.n_seq_max = rows
        settings.kv_unified = True
        if exact:
            settings.type_k = settings.type_v = binding.GGML_TYPE_F32
            settings.flash_attn_type = binding.LLAMA_FLASH_ATTN_TYPE_DISABLED  # It rounds keys and values.
        context = binding.llama_init_from_model(model, settings)
        if not context:
            raise ToolError(
                "Q-LLAMACPP-008",
                f"llama.cpp has no memory for a context of {ctx_size} tokens of {path}: free "
                "memory, or lower preprocess.max_length",
            )
        try:
            if lora:
                _put_on(binding, model, context, lora)
            yield GgufModel(binding, model, context, ctx_size)
        finally:
            binding.llama_free(context)


@contextmanager
def loaded_gguf(tools: Toolchain, path: Path, **settings: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (the binding, a model loaded with these of llama.cpp's model parameters), freed after the body.

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
    """Add a LoRA GGUF to a context at its full strength. It is freed with the model. Raises `ToolError` if it
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


# llama.cpp keeps the pointer permanently, so the callback must never be collected.
_callbacks: list[Any] = []


def silence(llama: Any) -> None:
    """Keep llama.cpp's log off the terminal."""
    if not _callbacks:
        _callbacks.append(llama.llama_log_callback(lambda level, text, data: None))
        llama.llama_log_set(_callbacks[0], ctypes.c_void_p(0))
