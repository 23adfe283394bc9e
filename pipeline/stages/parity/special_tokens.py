"""Checks that special tokens, chat template, vocabularies and provenance are the same in tokenizer, merged
model and GGUFs.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from pipeline.core.checks import Check
from pipeline.core.publish import read_json
from pipeline.gguf.file import check_gguf
from pipeline.gguf.header import Header
from pipeline.gguf.provenance import OF_A_LEVEL, OWN, folder_fields
from pipeline.llamacpp.tools import Toolchain
from pipeline.models.base_header import named_templates
from pipeline.stages.parity.check import count_check
from pipeline.stages.parity.rendering import in_use
from pipeline.stages.parity.tokens import GgufVocabulary, open_vocabulary

# titles of the checks
TOKENS = "Special tokens"
TEMPLATE = "Chat template"
RECORDS = "Vocabularies, settings and provenance records"
KINDS = ("eos", "bos", "pad")
GGUF = "GGUF"  # place of an id that is not in the merged folder
GGUF_NAMES = {"eos": "eos", "bos": "bos", "pad": "padding"}
PROBE = "a"  # text to which only BOS and EOS can be added
Difference = tuple[str, str]  # a difference, and its likely cause with the remedy


@dataclass(frozen=True)
class SpecialId:
    """Id of one kind of special token in one place. `fault` is how it disagrees with the tokenizer, "" if it
    agrees.
    """

    kind: str
    place: str
    fault: str


def special_tokens(tokenizer: Any, merged: Path, f16: Path, tools: Toolchain) -> Check:
    """Check end of turn, beginning of text and padding in tokenizer, config, generation config and GGUF; the
    tokens that end an answer; the tokens that are added to a text.
    """
    checks = [stored.fault for stored in special_ids(tokenizer, merged, f16)]
    with open_vocabulary(tools, f16) as vocabulary:
        checks += [*ends(tokenizer, merged, f16, vocabulary), *added(tokenizer, f16, vocabulary)]
    wrong = [check for check in checks if check]
    cause = ""
    if wrong:
        cause = (
            f"{wrong[0][0].upper()}{wrong[0][1:]}: run the stages merge and convert again; if nothing "
            "changes, correct the ids in the model that base.model names, and train again."
        )
    return count_check(
        TOKENS,
        what="places that disagree about end of turn, beginning of text or padding",
        different=len(wrong),
        compared=len(checks),
        first="; ".join(wrong),
        cause=cause,
    )


def special_ids(tokenizer: Any, merged: Path, f16: Path) -> Iterator[SpecialId]:
    """Yield the id of each kind in each place, compared with the tokenizer's."""
    expected = {kind: getattr(tokenizer, f"{kind}_token_id") for kind in KINDS}
    fields = check_gguf(f16).fields
    places = settings(merged) | {
        GGUF: {
            f"{kind}_token_id": fields.get(f"tokenizer.ggml.{name}_token_id")
            for kind, name in GGUF_NAMES.items()
        }
    }
    for place, kind in product(places, KINDS):
        value = places[place].get(f"{kind}_token_id")
        fault = ""
        if not agrees(kind, expected[kind], value):
            fault = f"{kind} is {value} in {place} and {expected[kind]} in the tokenizer"
        yield SpecialId(kind, place, fault)


def agrees(kind: str, tokenizer_id: int | None, other: Any) -> bool:
    """Return True if a place agrees with the tokenizer.

    A place may list more than one end. All kinds except the end may be missing on either side.
    """
    if other is None or tokenizer_id is None:
        return kind != "eos"
    return tokenizer_id in other if isinstance(other, list) else tokenizer_id == other


def ends(tokenizer: Any, merged: Path, f16: Path, vocabulary: GgufVocabulary) -> Iterator[str]:
    """Yield one text per id that ends answers in training or transformers: a fault if llama.cpp does not stop
    there, otherwise empty.
    """
    listed = settings(merged).get("generation_config.json", {}).get("eos_token_id")
    for number in sorted({tokenizer.eos_token_id, *(listed if isinstance(listed, list) else [])}):
        if vocabulary.ends(number):
            yield ""
        else:
            yield f"token {number} ({tokenizer.convert_ids_to_tokens(number)}) ends no answer by {f16.name}"


def added(tokenizer: Any, f16: Path, vocabulary: GgufVocabulary) -> Iterator[str]:
    """Yield which tokens GGUF and tokenizer add around a text if they differ, otherwise an empty text."""
    hf = _around(tokenizer(PROBE)["input_ids"], tokenizer(PROBE, add_special_tokens=False)["input_ids"])
    gguf = _around(vocabulary.ids(PROBE, add_special=True), vocabulary.ids(PROBE))
    if hf == gguf:
        yield ""
    else:
        yield (
            f"{f16.name} adds {gguf[0]} before and {gguf[1]} after a text, the tokenizer adds "
            f"{hf[0]} and {hf[1]}"
        )


def chat_template(tokenizer: Any, merged: Path, f16: Path) -> Check:
    """Check by SHA-256 that the adapter's tokenizer, the merged model and the GGUF have the same chat
    template. A template for tools is included.
    """
    templates = {
        merged.name: in_use(stored_template(merged)),
        f16.name: in_use(named_templates(check_gguf(f16).fields)),
    }
    trained = in_use(tokenizer.chat_template)
    template_hash = short_hash(trained)
    other = [place for place, text in templates.items() if text != trained]
    wrong = [f"{place} has {short_hash(templates[place])}, training {template_hash}" for place in other]
    return count_check(
        TEMPLATE,
        what="places whose chat template is not the one of training, by SHA-256",
        different=len(wrong),
        compared=len(templates),
        first="; ".join(wrong),
        cause=f"The template of {' and of '.join(other)} is not the one of training: run the stages merge "
        "and convert again.",
    )


def stored_template(folder: Path) -> Any:
    """Return the chat template of a model's folder, from its file, otherwise from tokenizer_config.json."""
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    return read_json(folder / "tokenizer_config.json", "run the stage that makes it again").get(
        "chat_template"
    )


def vocabularies_and_provenance(merged: Path, f16: Path, levels: list[Path]) -> Check:
    """Check that all GGUFs come from one run: their provenance records, their vocabularies, and a row of
    embeddings for every token.

    A level's weights can't show that: its noise hides that it was made from a slightly different adapter.
    """
    record = folder_fields(merged)
    first = check_gguf(f16)
    wrong = [*of_another_merge(record, f16.name, first), *rows_differ(f16.name, first)]
    compared = len(record) + 1
    for level in levels:
        header = check_gguf(level)
        wrong += [*of_another_run(first, level.name, header), *rows_differ(level.name, header)]
        compared += len(kept_fields(first)) + 1
    return count_check(
        RECORDS,
        what="fields that differ between merged model, 16-bit GGUF and levels, and tables without a row for "
        "every token",
        different=len(wrong),
        compared=compared,
        first="; ".join(text for text, _ in wrong[:3]),
        cause=wrong[0][1] if wrong else "",
    )


def of_another_merge(record: Mapping[str, Any], name: str, header: Header) -> Iterator[Difference]:
    """Yield the provenance fields of the 16-bit GGUF that differ from the merged model's `record`."""
    for key, value in record.items():
        if header.fields.get(key) != value:
            yield (
                f"{name}: {key}",
                f"{name} was made from another merge or another adapter ({key}): run `snakemake --force "
                "convert`.",
            )


def of_another_run(f16: Header, name: str, level: Header) -> Iterator[Difference]:
    """Yield the fields of a level that differ from the 16-bit GGUF that it should be made from."""
    expected = kept_fields(f16)
    stored = kept_fields(level)
    for key in sorted(expected.keys() | stored.keys()):
        if stored.get(key) != expected.get(key):
            cause = (
                f"{name} was quantized from another run's 16-bit GGUF ({key}): run `snakemake --force "
                f"models/gguf/{name}`."
            )
            yield f"{name}: {key}" + ("" if key in stored else " is missing"), cause


def kept_fields(header: Header) -> dict[str, Any]:
    """Return the fields that llama-quantize copies: the settings that the model is computed with, vocabulary,
    special ids, chat template, provenance. A level's type, importance matrix and distillation are its own.
    """
    kept = ("tokenizer.", OWN, f"{header.fields.get('general.architecture')}.")
    return {
        name: value
        for name, value in header.fields.items()
        if name.startswith(kept) and not name.startswith(OF_A_LEVEL)
    }


def rows_differ(name: str, header: Header) -> Iterator[Difference]:
    """Yield a difference for each table of embeddings or of the head without exactly one row per token."""
    tokens = len(header.fields.get("tokenizer.ggml.tokens", []))
    for table in ("token_embd.weight", "output.weight"):
        if table not in header.tensors:
            continue
        rows = header.tensors[table][0][-1]
        if rows != tokens:
            text = f"{name}: {tokens} tokens, {rows} rows in {table}"
            yield (
                text,
                f"Vocabulary and weights are not of one model ({text}): run `snakemake --force convert`.",
            )


def settings(merged: Path) -> dict[str, dict[str, Any]]:
    """Return config.json and generation_config.json of a model's folder, as far as they exist."""
    names = [name for name in ("config.json", "generation_config.json") if (merged / name).exists()]
    return {name: read_json(merged / name, "run `snakemake --force merge`") for name in names}


def short_hash(text: str | None) -> str:
    """Return the first 12 digits of a text's SHA-256."""
    return "no template" if text is None else hashlib.sha256(text.encode()).hexdigest()[:12]


def _around(text: list[int], bare: list[int]) -> tuple[list[int], list[int]]:
    """Return the ids before and after `bare` in `text`."""
    start = next(at for at in range(len(text)) if text[at : at + len(bare)] == bare)
    return text[:start], text[start + len(bare) :]
