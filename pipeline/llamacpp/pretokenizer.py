"""Check that llama.cpp supports a model's architecture, and find its pre-tokenizer that splits text alike.

llama.cpp identifies a tokenizer by the hash of the ids that a check text gets. One with another vocabulary is
unknown to it, even if it splits text in the very same way. So if the hash is unknown, the structure decides:
normalizer, patterns, and how merges are used.
"""

import ast
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.chat.tokenizer_file import plain_tokenizer
from pipeline.core.errors import DataError
from pipeline.llamacpp.tools import Toolchain

CONTRACTIONS, ENDS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# The tokenizers package's own pattern of ByteLevel(use_regex=True).
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DIGIT = r"\p{N}"
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + ENDS
QWEN35 = (
    CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + ENDS


@dataclass(frozen=True)
class Structure:
    """Structure of a byte-level BPE tokenizer without its vocabulary: patterns that split one after the
    other, merges, beginning of text.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # A word that is a token is not split.
    adds_bos: bool = False


# src/llama-vocab.cpp: regex_exprs, ignore_merges and add_bos of each name. Normalizers are left out:
# llama.cpp has none here, and NFC changes nothing in text that curate has normalized to NFC.
KNOWN = {
    Structure((GPT2,)): "gpt-2",
    Structure((DIGIT, GPT2)): "smollm",
    Structure((QWEN2,)): "qwen2",
    Structure((QWEN35,)): "qwen35",
    Structure((LLAMA3,)): "smaug-bpe",
    Structure((LLAMA3,), ignore_merges=True, adds_bos=True): "llama-bpe",
}


@dataclass(frozen=True)
class PreTokenizer:
    """Name of a pre-tokenizer in llama.cpp, and how it was found. There is no name if llama.cpp needs none
    (no byte-level BPE).
    """

    name: str | None
    found_by: Literal["hash", "structure", "converter"]


def find_pre_tokenizer(folder: Path, tools: Toolchain) -> PreTokenizer:
    """Return the pre-tokenizer of `folder`'s model, by llama.cpp's list of hashes, otherwise by structure.

    Raises `DataError` if neither knows it: llama.cpp would split text in another way than training did.
    """
    file = folder / "tokenizer.json"
    if not file.exists():
        return PreTokenizer(None, "converter")  # A SentencePiece model has no pre-tokenizer.
    content = json.loads(file.read_text(encoding="utf-8"))
    is_byte_level = '"ByteLevel"' in json.dumps(content.get("pre_tokenizer"))
    if content["model"].get("type") != "BPE" or not is_byte_level:
        return PreTokenizer(None, "converter")
    tokenizer = plain_tokenizer(folder)
    text, names = known_hashes(tools)
    ids = tokenizer.encode(text).ids
    name = names.get(hashlib.sha256(str(ids).encode()).hexdigest())
    if name:
        return PreTokenizer(name, "hash")
    structure = read_structure(content, adds_bos=bool(tokenizer.encode("").ids))
    if isinstance(structure, Structure) and structure in KNOWN:
        return PreTokenizer(KNOWN[structure], "structure")
    if isinstance(structure, str):
        why = structure
    else:
        why = "its patterns, or how it uses merges and the beginning of text, are none of llama.cpp's"
    raise DataError(
        "Q-LLAMACPP-012",
        f"{file} splits text in a way that this llama.cpp does not know ({why}): train on a base whose "
        "tokenizer it knows",
    )


def need_convertible(folder: Path, tools: Toolchain) -> PreTokenizer:
    """Return the pre-tokenizer of the model in `folder`. Raises `DataError` if this llama.cpp doesn't support
    the model, or none of its pre-tokenizers is the model's.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    names = {
        *(config.get("architectures") or []),
        *((config.get("text_config") or {}).get("architectures") or []),
    }
    if not names & converted_architectures(tools):
        raise DataError(
            "Q-LLAMACPP-012",
            f"{folder} is of {' or '.join(sorted(names))}, an architecture this llama.cpp can't convert: "
            "train on another base",
        )
    return find_pre_tokenizer(folder, tools)


def converted_architectures(tools: Toolchain) -> set[str]:
    """Return the names of the supported architectures, from `TEXT_MODEL_MAP` in the converter's source."""
    source = (tools.source / "conversion" / "__init__.py").read_text(encoding="utf-8")
    (names,) = (
        set(ast.literal_eval(node.value))
        for node in ast.parse(source).body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "TEXT_MODEL_MAP" and node.value
    )
    return names


def known_hashes(tools: Toolchain) -> tuple[str, dict[str, str]]:
    """Return the check text and {sha256 of its ids: name} from the converter's `get_vocab_base_pre`."""
    source = (tools.source / "conversion" / "base.py").read_text(encoding="utf-8")
    (function,) = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == "get_vocab_base_pre"
    )
    text = None
    names = {}
    for node in function.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="chktxt")], value=ast.Constant(value=str(value))):
                text = value
            case ast.If(
                test=ast.Compare(comparators=[ast.Constant(value=str(digest))]),
                body=[ast.Assign(value=ast.Constant(value=str(name)))],
            ):
                names[digest] = name
    assert text and names, "the converter's list of hashes is written in another way than this reads"
    return text, names


def read_structure(content: dict[str, Any], *, adds_bos: bool) -> Structure | str:
    """Return a tokenizer.json's structure, or the part of it that llama.cpp has no counterpart for."""
    normalizer = content.get("normalizer")
    if normalizer is not None and normalizer != {"type": "NFC"}:
        return f"normalizer {normalizer.get('type')}"
    pre = content.get("pre_tokenizer") or {}
    patterns = []
    for part in pre.get("pretokenizers", []) if pre.get("type") == "Sequence" else [pre]:
        match part:
            case {
                "type": "Split",
                "pattern": {"Regex": str(pattern)},
                "behavior": "Isolated",
                "invert": False,
            }:
                patterns.append(pattern)
            case {"type": "Digits", "individual_digits": True}:
                patterns.append(DIGIT)
            case {"type": "ByteLevel", "add_prefix_space": False}:
                # Older files don't have the switch. tokenizers then assumes that it is on.
                patterns += [GPT2] if part.get("use_regex", True) else []
            case _:
                return f"pre_tokenizer {json.dumps(part, ensure_ascii=False)[:120]}"
    model = content["model"]
    odd = [
        key
        for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback")
        if model.get(key)
    ]
    if odd:
        return f"model.{odd[0]} {model[odd[0]]!r}"
    return Structure(tuple(patterns), bool(model.get("ignore_merges")), adds_bos)
