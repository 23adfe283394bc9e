"""Prove the seams: what is served is what was trained. Each seam has a figure, a limit and a verdict.

Reads `data/final/test.jsonl`, `models/base/`, `models/adapter/`, `models/merged/`, every tuned GGUF in `models/gguf/`.
Writes `reports/parity.json`; a failed seam fails the run (exit code 5).
Command: `python -m pipeline parity`
"""

from dataclasses import asdict
from itertools import islice
from pathlib import Path

from pipeline.chat import Row, chats, encodable, load_tokenizer
from pipeline.errors import DataError, GateError
from pipeline.jsonl import read_rows
from pipeline.llamacpp.server import serving
from pipeline.llamacpp.tools import Toolchain, find_toolchain
from pipeline.params import Params, Parity
from pipeline.publish import write_json
from pipeline.seams.outputs import output_seams
from pipeline.seams.seam import Seam
from pipeline.seams.text import EDGE_CASES, level_vocabularies, rendered, special_tokens, template_text, token_ids

CTX_SIZE = 2048  # tokens; parity's conversations are short
UNMEASURED = Seam(
    "NF4 base with adapter → merged model", "training saw the base in NF4, the merge goes into its 16-bit weights", None, None, "", "not measured", ""
)


def parity(
    *, rows: Path, base: Path, adapter: Path, merged: Path, f16: Path, levels: list[Path], limits: Parity, threads: int, tools: Toolchain
) -> dict[str, Seam]:
    """Measure every seam; the caller decides what a failed one means. Raises `DataError` where there is no held-out row."""
    tokenizer = load_tokenizer(adapter)
    held_out = list(islice(chats(read_rows(rows)), max(limits.conversations, limits.rows)))
    if not held_out:
        raise DataError(f"{rows} holds no chat, so parity has nothing to compare: raise curate.test_fraction")
    conversations = [*EDGE_CASES, *(row["messages"] for row in held_out if in_words(row))][: max(limits.conversations, len(EDGE_CASES))]
    encoded = [row.ids for row in islice(encodable(tokenizer, held_out, CTX_SIZE), limits.rows)]
    if not encoded:
        raise DataError(f"no row of {rows} can be rendered in {CTX_SIZE} tokens, so parity has no logits to compare: look at reports/labels.json")
    texts = list(rendered(tokenizer, conversations))
    with serving(tools, f16, ctx_size=CTX_SIZE, threads=threads) as server:
        seams = {
            "template_text": template_text(server, texts),
            "token_ids": token_ids(tokenizer, server, texts),
            "special_tokens": special_tokens(tokenizer, merged, f16),
            "level_vocabularies": level_vocabularies(f16, levels),
        }
    seams |= output_seams(base=base, adapter=adapter, merged=merged, f16=f16, rows=encoded, limits=limits, threads=threads, tools=tools)
    return seams | {"nf4_merge": UNMEASURED}


def in_words(row: Row) -> bool:
    """Whether a chat has neither tools nor calls, which the seams of text don't compare."""
    return "tools" not in row and not any(message["role"] == "tool" or "tool_calls" in message for message in row["messages"])


def main(params: Params, root: Path) -> None:
    """Run the stage on the files below `root`; write the report also when a seam failed, then raise `GateError`."""
    folder, name = root / "models/gguf", params.convert.name
    seams = parity(
        rows=root / "data/final/test.jsonl",
        base=root / "models/base",
        adapter=root / "models/adapter",
        merged=root / "models/merged",
        f16=folder / f"{name}-F16.gguf",
        levels=[folder / f"{name}-{level}.gguf" for level in params.quantize.levels],
        limits=params.parity,
        threads=params.evaluate.threads,
        tools=find_toolchain(params.llamacpp.home),
    )
    failed = [seam for seam in seams.values() if seam.verdict == "fail"]
    write_json(root / "reports/parity.json", {"verdict": "fail" if failed else "pass", "seams": {key: asdict(seam) for key, seam in seams.items()}})
    for seam in seams.values():
        print(f"parity: {seam.verdict:12} {seam.title}" + (f": {seam.figure:g} (limit {seam.limit:g})" if seam.figure is not None else ""))
    if failed:
        raise GateError("; ".join(f"seam {seam.title} failed: {seam.figure:g} against limit {seam.limit:g} ({seam.detail})" for seam in failed))
