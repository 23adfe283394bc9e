"""Measure which weights the training rows use most (llama.cpp's importance matrix).

A level can then round those weights more finely.

Reads `data/final/train.jsonl`, `models/adapter/` (tokenizer and template), `models/gguf/NAME-F16.gguf`.
Writes `models/imatrix/`: `imatrix.json` with what it was measured on, and `imatrix.gguf`. The stage is there
if a level of `quantize.levels` uses it. Command: `python -m pipeline imatrix`
"""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline.chat.rendering import Unrenderable, renderings
from pipeline.chat.selection import has_stand_ins, learned_in
from pipeline.chat.tokens import Row, load_tokenizer
from pipeline.config.params import Params
from pipeline.core.errors import DataError
from pipeline.core.hashing import file_hash
from pipeline.core.publish import publishing, write_json
from pipeline.gguf.file import check_gguf
from pipeline.llamacpp.devices import gpu_layers
from pipeline.llamacpp.tools import Llama, find_llama, run_tool

CHUNK = 512  # tokens of one chunk; llama-imatrix sees them together
FEWEST = 16  # fewest tokens of a chunk; llama-imatrix wants at least two chunks
# Bytes of a row's JSON per token, a generous estimate. It sets how far apart the first rows are. With an
# estimate that is too high those rows still have enough tokens.
ROW_BYTES = 12


def imatrix(
    *, rows: Path, tokenizer: Path, model: Path, folder: Path, tokens: int, llama: Llama
) -> dict[str, Any]:
    """Measure the matrix of `model` on about `tokens` tokens of `rows`, publish `folder`, return its record.

    `rows` must be the training split: a level that has seen the rows it is judged on would look better than
    it is. The rows are rendered as the model was trained on them. The bytes are the same every time, for any
    number of threads. Raises `DataError` if there are too few tokens, `ToolError` if llama-imatrix fails.
    """
    assert rows.name == "train.jsonl", f"{rows} is not the training split"
    check_gguf(model)
    loaded = load_tokenizer(tokenizer)
    texts = list(calibration_texts(loaded, spread(rows, tokens), tokens))
    text = "".join(texts)
    count = len(loaded(text, add_special_tokens=False)["input_ids"])
    chunk = min(CHUNK, count // 2)
    if chunk < FEWEST:
        raise DataError(
            "Q-IMATRIX-001",
            f"{rows} has {count} tokens of chats, an importance matrix needs {2 * FEWEST}: add rows, "
            "or name no level with -imatrix in quantize.levels",
        )
    with publishing(folder) as aside:
        aside.mkdir()
        record = {
            "tokens": count,
            "rows": len(texts),
            "chunk_tokens": chunk,
            "chunks": measure(aside, text, model, chunk, llama),
            "split": "train",
            "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
            "data_sha256": file_hash(rows),
            "model_sha256": file_hash(model),
        }
        write_json(aside / "imatrix.json", record)
    return record


def measure(folder: Path, text: str, model: Path, chunk: int, llama: Llama) -> int:
    """Write `imatrix.gguf` of `model` on `text` to `folder`, `chunk` tokens at a time.

    Return the number of chunks.
    """
    text_file = folder / "train.txt"
    matrix = folder / "imatrix.gguf"
    text_file.write_text(text, encoding="utf-8", newline="")
    options = {
        "--model": model.resolve(),
        "--file": text_file.name,
        "--output-file": matrix.name,
        "--ctx-size": chunk,
        "--batch-size": chunk,
        "--threads": llama.threads,
        "--n-gpu-layers": gpu_layers(llama.tools, model, llama.n_gpu_layers, tokens=chunk),
        "--flash-attn": "off",
    }
    command: list[str | Path] = [
        llama.tools.tool("llama-imatrix").resolve(),
        *(str(part) for option in options.items() for part in option),
        *("--no-ppl", "--parse-special", "--no-escape", "--offline"),
    ]
    # Run in the folder, because llama-imatrix writes the text's path into the file.
    run_tool(command, cwd=folder)
    text_file.unlink()
    return int(check_gguf(matrix).fields["imatrix.chunk_count"])


def spread(rows: Path, tokens: int) -> Iterator[Row]:
    """Yield the chats and texts in an order that begins with rows from all over the file, so that the first
    `tokens` tokens represent the entire file.
    """
    step = max(1, rows.stat().st_size // (tokens * ROW_BYTES))
    stand_ins = has_stand_ins(rows)
    for start in range(step):
        yield from islice(learned_in(rows, stand_ins), start, None, step)


def calibration_texts(tokenizer: Any, rows: Iterator[Row], tokens: int) -> Iterator[str]:
    """Yield rows as the model sees them, until they have `tokens` tokens.

    Rows that can't be rendered are left out.
    """
    left = tokens
    for row in rows:
        if left <= 0:
            return
        text = ""
        if row.get("kind", "chat") == "chat":
            with suppress(Unrenderable):  # preprocess has counted it; the last rendering contains all turns
                text = renderings(tokenizer, row["messages"], row.get("tools"))[-1].text
        else:
            text = "".join(segment["text"] for segment in row["segments"]) + tokenizer.eos_token
        if text:
            left -= len(tokenizer(text, add_special_tokens=False)["input_ids"])
            yield text


def main(params: Params, root: Path) -> None:
    """Run the stage on the files below `root`."""
    record = imatrix(
        rows=root / "data/final/train.jsonl",
        tokenizer=root / "models/adapter",
        model=root / f"models/gguf/{params.convert.name}-{params.convert.type}.gguf",
        folder=root / "models/imatrix",
        tokens=params.quantize.imatrix_tokens,
        llama=find_llama(params.machine),
    )
    print("imatrix: {tokens:,} tokens of {rows:,} training rows, {chunks} chunks".format(**record))
