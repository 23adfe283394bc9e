"""Prove the seams: what is served is what was trained. Each seam has a figure, a limit and a verdict.

Reads `data/final/test.jsonl`, `models/adapter/` (tokenizer), `models/merged/`, every tuned GGUF in `models/gguf/`.
Writes `reports/parity.json`; a failed seam fails the run (exit code 5).
Command: `python -m pipeline parity`
"""

import json
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.chat import Message, Unrenderable, encode, load_tokenizer, render
from pipeline.errors import DataError, GateError
from pipeline.jsonl import read_rows
from pipeline.llamacpp.logits import nmse, open_gguf
from pipeline.llamacpp.server import Server, serving
from pipeline.llamacpp.tools import Toolchain, find_toolchain
from pipeline.params import Params, Parity
from pipeline.publish import write_json

CTX_SIZE = 2048  # tokens; parity's conversations are short

# what users send and training sets rarely hold
EDGE_CASES: tuple[list[Message], ...] = (
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "Why?"}],
    [{"role": "user", "content": "One"}, {"role": "assistant", "content": "Two"}, {"role": "user", "content": "Three"}],
    [{"role": "user", "content": "naïve café – “quotes” 東京 Привет مرحبا 🙂👩‍💻 ½ ①"}],
    [{"role": "user", "content": "def f(x):\n    return {'a': x ** 2}\n\n\n\t# tabs  and   spaces"}],
    [{"role": "user", "content": "1234567890 3.14159 1e-5 0x1F"}],
    [{"role": "user", "content": "<b>&amp;</b> \"quoted\" \\n 'single' {{braces}} {% raw %}"}],
)


@dataclass(frozen=True)
class Seam:
    """One hand-over: `figure` against `limit` in `unit`; verdict pass, fail or "not measured"."""

    title: str
    what: str
    figure: float | None
    limit: float | None
    unit: str
    verdict: str
    detail: str


def parity(
    *, rows: Path, tokenizer: Path, merged: Path, f16: Path, levels: list[Path], limits: Parity, threads: int, tools: Toolchain
) -> dict[str, Seam]:
    """Measure every seam; the caller decides what a failed one means. Raises `DataError` where there is no held-out row."""
    loaded = load_tokenizer(tokenizer)
    test_rows = [row["messages"] for row in islice(read_rows(rows), max(limits.conversations, limits.rows))]
    if not test_rows:
        raise DataError(f"{rows} is empty, so parity has nothing to compare: raise curate.test_fraction")
    conversations = [*EDGE_CASES, *test_rows][: max(limits.conversations, len(EDGE_CASES))]
    with serving(tools, f16, ctx_size=CTX_SIZE, threads=threads) as server:
        texts = template_text(loaded, server, conversations)
        tokens = token_ids(loaded, server, conversations)
    return {
        "template_text": texts,
        "token_ids": tokens,
        "special_tokens": special_tokens(loaded, merged, f16),
        "level_vocabularies": level_vocabularies(f16, levels),
        **logits(loaded, merged, f16, test_rows[: limits.rows], limits, threads, tools),
        "adapter_merge": Seam("Trained model → merged model", "NF4 base with adapter against merged weights", None, None, "", "not measured",
                              "the merge goes into the 16-bit weights, training saw their NF4 form"),
    }  # fmt: skip


def template_text(tokenizer: Any, server: Server, conversations: list[list[Message]]) -> Seam:
    """The chats' text by training's template against llama-server's `/apply-template`, byte for byte."""
    first = ""
    different = 0
    for messages, prompt in prompts(conversations):
        ours = render_prompt(tokenizer, messages, prompt)
        theirs = server.post("/apply-template", {"messages": messages, "add_generation_prompt": prompt})["prompt"]
        if ours is not None and ours != theirs:
            different += 1
            first = first or first_difference(ours, theirs)
    return count_seam("Template text", "conversations whose text differs between training and llama-server", different, 2 * len(conversations), first)


def token_ids(tokenizer: Any, server: Server, conversations: list[list[Message]]) -> Seam:
    """The chats' token ids by training's tokenizer against llama-server's, tokenised as it does for a chat (BOS included)."""
    first = ""
    different = 0
    for messages, prompt in prompts(conversations):
        text = render_prompt(tokenizer, messages, prompt)
        if text is None:
            continue
        ours = tokenizer(text, add_special_tokens=False)["input_ids"]
        theirs = server.post("/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]
        if ours != theirs:
            different += 1
            first = first or first_difference(ours, theirs)
    return count_seam("Token ids", "conversations whose token ids differ between training and llama-server", different, 2 * len(conversations), first)


def prompts(conversations: list[list[Message]]) -> list[tuple[list[Message], bool]]:
    """Each conversation as it is and as a question: up to the last turn that isn't the assistant's, with the generation prompt."""
    asked = [messages[:-1] if messages[-1]["role"] == "assistant" else messages for messages in conversations]
    return [(messages, True) for messages in asked] + [(messages, False) for messages in asked]


def render_prompt(tokenizer: Any, messages: list[Message], prompt: bool) -> str | None:
    """The text by training's template, or None where the template itself refuses such a conversation."""
    try:
        return render(tokenizer, messages, add_generation_prompt=prompt)
    except Unrenderable:
        return None


def special_tokens(tokenizer: Any, merged: Path, f16: Path) -> Seam:
    """End-of-turn and beginning-of-text ids in tokenizer, config, generation config and GGUF: all four must agree."""
    from gguf import GGUFReader

    reader = GGUFReader(f16)
    places: dict[str, dict[str, Any]] = {"tokenizer": {"eos": tokenizer.eos_token_id, "bos": tokenizer.bos_token_id}}
    for name in ("config.json", "generation_config.json"):
        if (merged / name).exists():
            values = json.loads((merged / name).read_text(encoding="utf-8"))
            places[name] = {kind: values.get(f"{kind}_token_id") for kind in ("eos", "bos")}
    fields = {kind: reader.get_field(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "bos")}
    places["GGUF"] = {kind: int(field.contents()) if field else None for kind, field in fields.items()}
    wrong = [
        f"{kind} is {values[kind]} in {place} and {places['tokenizer'][kind]} in the tokenizer"
        for place, values in places.items()
        for kind in ("eos", "bos")
        if not agrees(kind, places["tokenizer"][kind], values[kind])
    ]
    return count_seam("Special tokens", "places that disagree about end of turn or beginning of text", len(wrong), 2 * len(places), "; ".join(wrong))


def agrees(kind: str, tokenizer_id: int | None, other: Any) -> bool:
    """Whether a place says the same as the tokenizer. A place may list several ends, and may leave bos out where nobody adds one."""
    if other is None or (kind == "bos" and tokenizer_id is None):
        return kind == "bos"
    return tokenizer_id in other if isinstance(other, list) else tokenizer_id == other


def level_vocabularies(f16: Path, levels: list[Path]) -> Seam:
    """Vocabulary, merges, special ids and chat template of every level against the F16 GGUF's."""
    expected = tokenizer_fields(f16)
    wrong = [f"{level.name}: {key}" for level in levels for key, value in tokenizer_fields(level).items() if expected.get(key) != value]
    wrong += [f"{level.name}: {key} is missing" for level in levels for key in expected.keys() - tokenizer_fields(level).keys()]
    compared = len(levels) * len(expected)
    return count_seam("Level vocabularies", "tokenizer fields that differ between F16 and a level", len(wrong), compared, "; ".join(wrong[:3]))


def tokenizer_fields(path: Path) -> dict[str, bytes]:
    """Every `tokenizer.*` field of a GGUF as a hash over its raw bytes."""
    import hashlib

    from gguf import GGUFReader

    return {
        name: hashlib.sha256(b"".join(part.tobytes() for part in field.parts)).digest()
        for name, field in GGUFReader(path).fields.items()
        if name.startswith("tokenizer.")
    }


def logits(tokenizer: Any, merged: Path, f16: Path, rows: list[list[Message]], limits: Parity, threads: int, tools: Toolchain) -> dict[str, Seam]:
    """The merged model's logits in PyTorch against the F16 GGUF's in llama.cpp, on every token of the held-out rows."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(merged, dtype=compare_dtype(merged), local_files_only=True, trust_remote_code=False)
    errors, same, positions = [], 0, 0
    with open_gguf(tools, f16, ctx_size=CTX_SIZE, threads=threads, n_gpu_layers=0) as gguf, torch.no_grad():
        for messages in rows:
            ids = encode(tokenizer, messages).ids[:CTX_SIZE]
            ours = model(torch.tensor([ids])).logits[0, :, : gguf.vocabulary].float().numpy()  # (T, V)
            theirs = gguf.logits(ids, list(range(len(ids))))
            errors.append(nmse(ours, theirs))
            same += int((ours.argmax(axis=-1) == theirs.argmax(axis=-1)).sum())
            positions += len(ids)
    worst, share = float(np.max(errors)), same / positions
    where = f"{len(rows)} held-out rows, {positions} positions, PyTorch in {str(model.dtype).removeprefix('torch.')}"
    return {
        "logits_nmse": Seam("Merged model → F16 GGUF, logits", "largest normalised squared error of a row's logits", worst, limits.max_nmse, "",
                            "pass" if worst <= limits.max_nmse else "fail", where),
        "logits_same_top": Seam("Merged model → F16 GGUF, first choice", "share of positions where both rank the same token first", round(share, 4),
                                limits.min_same_top, "", "pass" if share >= limits.min_same_top else "fail", where),
    }  # fmt: skip


def compare_dtype(merged: Path) -> Any:
    """float32 where the weights fit twice into the memory that is free, else the type they are stored in."""
    import psutil
    import torch

    stored = sum(shard.stat().st_size for shard in merged.glob("*.safetensors"))
    return torch.float32 if 4 * stored < psutil.virtual_memory().available else "auto"


def count_seam(title: str, what: str, different: int, compared: int, first: str) -> Seam:
    """A seam where nothing may differ."""
    detail = f"{compared} compared" + (f"; first difference: {first}" if first else "")
    return Seam(title, what, float(different), 0.0, "differences", "fail" if different else "pass", detail)


def first_difference(ours: Any, theirs: Any) -> str:
    """Where two sequences part, with what stands there on both sides."""
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    return f"at {at} training has {ours[at : at + 12]!r}, llama-server {theirs[at : at + 12]!r}"


def main(params: Params, root: Path) -> None:
    """Run the stage on the files below `root`; write the report also when a seam failed, then raise `GateError`."""
    folder, name = root / "models/gguf", params.convert.name
    seams = parity(
        rows=root / "data/final/test.jsonl",
        tokenizer=root / "models/adapter",
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
