"""Checks of a Hugging Face model folder: whether its files agree, and what the model is."""

import hashlib
import json
import math
from codecs import BOM_UTF8
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from pipeline.chat.new_tokens import text_tokens
from pipeline.chat.tokens import template_of
from pipeline.config.sections.adapters import DEFAULT_TARGETS
from pipeline.core.errors import DataError, QuenchError
from pipeline.core.hashing import file_hash
from pipeline.core.publish import write_json, write_text
from pipeline.core.special_files import need_file
from pipeline.core.text import quoted
from pipeline.gguf.base_files import MODEL_FILE
from pipeline.gguf.file import SMALLEST_BLOCK, check_gguf, nothing_quantized
from pipeline.gguf.safetensors_rows import read_folder
from pipeline.models.experts.recognize import check_experts, weighted_otherwise
from pipeline.models.text_config import is_wrapper, read_text_config, text_part
from pipeline.stages.base.chats import (
    KEY,
    OWN,
    TEMPLATE_FILE,
    ChatSettings,
    Tried,
    tried_tokenizer,
    unreadable,
)
from pipeline.stages.base.model_trial import trained_by_default, tried_model, window_in_training
from pipeline.stages.base.rowless_tokens import drop_tokens, rowless_tokens
from pipeline.stages.base.stored_tensors import (
    count_parameters,
    is_untied,
    need_finite,
    read_tensors,
    settle_index,
)

NEEDED = ("vocab_size", "hidden_size", "num_hidden_layers")
SIZES = (*NEEDED, "num_attention_heads", "num_key_value_heads", "intermediate_size", "head_dim")
# Keys of config.json that only a quantized model has: of transformers, compressed-tensors and MLX.
QUANTIZED = ("quantization_config", "compression_config", "quantization")
# Files that contain the templates if that file is missing; llama.cpp's converter looks there too.
JSON_FILES = ("tokenizer_config.json", "chat_template.json")
MAX_CARD = 1 << 16  # bytes read of a model card; its front matter has a few thousand


def need_packable_rows(folder: Path, levels: Sequence[str]) -> None:
    """Raise `DataError` if no matrix in `folder` has rows that a level could pack."""
    matrices = [entry for entry in read_folder(folder).values() if len(entry.shape) > 1]
    # A tensor of more dimensions holds experts, whose matrices some families store transposed.
    rows = {size for entry in matrices for size in entry.shape[-1 if len(entry.shape) == 2 else 0 :]}
    if all(size % SMALLEST_BLOCK for size in rows):
        raise nothing_quantized(levels, sorted(rows))


def check_config(config: dict[str, Any], source: str) -> None:
    """Raise `DataError` unless transformers knows the model (of a wrapper, its text part) and its weights are
    plain and trainable.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if is_wrapper(config):
        text = text_part(config, source).settings
        check_config(text | {key: config[key] for key in QUANTIZED if key in config}, source)
        return
    kind = config.get("model_type")
    if isinstance(kind, str):
        check_experts(config, source)
        for difference in weighted_otherwise(config):
            raise DataError("Q-BASE-055", f"{source}: {difference}")
    if not isinstance(kind, str) or kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        code = ""
        if "auto_map" in config:
            code = " and would run its author's code (auto_map), which Quench never does"
        raise DataError(
            "Q-BASE-010",
            f"{source} has model_type {quoted(kind)}, which is no causal language model of "
            f"transformers{code}: choose another base",
        )
    names = config.get("architectures")
    if not names:
        raise DataError(
            "Q-BASE-016",
            f"{source}: config.json names no architectures, by which llama.cpp's converter goes: write "
            f'"architectures": ["{MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]}"] into it',
        )
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise DataError(
            "Q-BASE-016", f"{source}: architectures in config.json is {quoted(names)}: fetch it again"
        )
    named = next((key for key in QUANTIZED if config.get(key) is not None), None)
    if named:
        settings = config[named]
        method = settings.get("quant_method") if isinstance(settings, dict) else settings
        if method is None:
            method = "MLX" if config.get("quantization") is not None else named
        raise DataError(
            "Q-BASE-011", f"{source} is quantized already ({quoted(method)}): choose the 16-bit original"
        )


def examine(folder: Path, chats: ChatSettings = OWN) -> tuple[dict[str, Any], str | None]:
    """Return the facts on the model in `folder` for `models/base.json`, and a sentence if a usual kind of
    chats can't be trained on it. Raises `DataError` if its files disagree.

    These facts are present only if they apply:
    - `no_chats`: why no chat can be trained on it; texts can.
    - `never_packed`: why rows can't share a sequence.
    - `default_targets`: what trains by default if the architecture lacks the usual linears.
    - `window_in_training`: number of tokens that attention reaches back, if llama.cpp has no such window.
    - `head_untied`: True if config.json tied a head that is stored with other values than the embeddings.
    - `named_end`: former eos_token ("" for none) if a turn ends in another token, which is now in the files.
    - `prompt_ended_in`: text that was removed from the end of the generation prompt.
    - `template_begun`: True if the tokenizer's beginning of text was added to the template.
    - `template_end_kept`: True if the template still writes `named_end` where it did.
    - `rowless_tokens`: tokens without a row of embeddings, removed from the tokenizer.
    """
    from transformers import GenerationConfig

    config = read_object(folder / "config.json")
    check_config(config, str(folder))
    settle_beginning(folder)
    settle_template_file(folder)
    tried = tried_tokenizer(folder, chats)
    tokenizer = tried.tokenizer
    template = template_of(tokenizer)
    try:
        sizes = read_text_config(folder)
        need_sizes(sizes)
        if (folder / "generation_config.json").exists():
            GenerationConfig.from_pretrained(folder, local_files_only=True)
    except QuenchError:
        raise
    # untrusted files: the libraries raise errors of any kind
    except Exception as error:
        raise unreadable(folder, error) from error
    # A GGUF that is trained on keeps its list of tokens.
    quantized = folder / MODEL_FILE
    head_untied = False
    rowless = [] if quantized.is_file() else rowless_tokens(tokenizer, sizes.vocab_size)
    if rowless:
        drop_tokens(folder, rowless)
        tried = tried_tokenizer(folder, chats)
        tokenizer = tried.tokenizer
    if len(tokenizer) > sizes.vocab_size:
        raise DataError(
            "Q-BASE-013",
            f"{folder} has {len(tokenizer)} tokens for {sizes.vocab_size} rows of embeddings: its "
            "tokenizer is another model's",
        )
    never_packed = tried_model(folder)
    settle_end_of_turn(folder, tried, config.get("eos_token_id"))
    if tried.prompt or tried.is_begun or tried.keeps_end:
        put_template(folder, template)
    settle_bos_and_pad(folder, tokenizer)
    if quantized.is_file():
        parameters, dtype = count_quantized(quantized)
    else:
        tensors = read_tensors(folder)
        need_finite(tensors, folder)
        settle_index(folder, tensors)
        head_untied = is_untied(tensors, sizes)
        if head_untied:
            sizes.tie_word_embeddings = False
            path = folder / "config.json"
            write_json(path, read_object(path) | {"tie_word_embeddings": False}, allow_nan=True)
        parameters, dtype = count_parameters(tensors, sizes, folder)
    text = text_tokens(tokenizer)
    added_tokens = [token.content for _, token in sorted(tokenizer.added_tokens_decoder.items())]
    targets = trained_by_default(folder)
    facts = {
        "architecture": {"model_type": config["model_type"], "architectures": config.get("architectures")},
        "license": read_license(folder / "README.md"),
        "tokenizer_sha256": file_hash(folder / "tokenizer.json"),
        "template_sha256": hashlib.sha256(template.encode()).hexdigest(),
        "added_tokens": [token for token in added_tokens if token not in text],
        "eos_token": tokenizer.eos_token,
        "bos_token": tokenizer.bos_token,
        "pad_token": tokenizer.pad_token,
        "vocab_size": sizes.vocab_size,
        "parameters": parameters,
        "dtype": dtype,
    }
    if rowless:
        facts["rowless_tokens"] = rowless
    if tried.named_end is not None:
        facts["named_end"] = tried.named_end
    if head_untied:
        facts["head_untied"] = True
    if tried.prompt:
        facts["prompt_ended_in"] = tried.prompt.removed
    if tried.is_begun:
        facts["template_begun"] = True
    if tried.keeps_end:
        facts["template_end_kept"] = True
    if tried.no_chats:
        facts["no_chats"] = tried.no_chats
    if never_packed:
        facts["never_packed"] = never_packed
    window = window_in_training(sizes)
    if window:
        facts["window_in_training"] = window
    if targets != DEFAULT_TARGETS:
        facts["default_targets"] = targets
    return facts, tried.note


def need_sizes(config: Any) -> None:
    """Raise `ValueError` if config.json has an impossible size, for the entire model or in a list by layer.
    transformers does not check that.
    """
    written = config.to_dict()
    for name in SIZES:
        # A size that differs by layer has no attribute of its own.
        values = written[name] if name in written else getattr(config, name, None)
        for size in values if isinstance(values, list) else [values]:
            absent = size is None and name not in NEEDED
            if not absent and (type(size) is not int or not 0 < size < 1 << 31):
                raise ValueError(f"{name} in config.json is {quoted(size)}")
    if not math.isfinite(getattr(config, "rms_norm_eps", None) or 0):
        raise ValueError(f"rms_norm_eps in config.json is {config.rms_norm_eps}")


def settle_end_of_turn(folder: Path, tried: Tried, stated: object) -> None:
    """Write the end of turn that was found into the files of `folder`, and let generation stop at it.
    config.json is changed too, because some programs read it there: Qwen3.5 and others name only the end of a
    text in it.

    Generation still stops at its previous tokens too (those of config.json, `stated`, if
    generation_config.json names none). Raises `DataError` if neither a chat nor the settings show which token
    is right, and the files disagree.
    """
    tokenizer = tried.tokenizer
    if tried.named_end is not None:
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            path = folder / name
            if path.is_file():
                write_json(path, read_object(path) | {"eos_token": tokenizer.eos_token}, allow_nan=True)
    path = folder / "config.json"
    ends = ends_with(tokenizer.eos_token_id, stated)
    if ends != stated:
        write_json(path, read_object(path) | {"eos_token_id": ends}, allow_nan=True)
    path = folder / "generation_config.json"
    if not path.exists():
        special = special_ids(tokenizer)
        write_json(path, {name: value for name, value in special.items() if value is not None})
    settings = read_object(path)
    ends = settings.get("eos_token_id")
    if ends is None:
        ends = stated
    listed = ends if isinstance(ends, list) else [ends]
    if tokenizer.eos_token_id in listed:
        return
    if tried.no_chats and tried.named_end is None:  # if named_end is set, base.end_of_turn chose the token
        raise DataError(
            "Q-BASE-014",
            f"{folder}: generation stops at {listed} (generation_config.json), the tokenizer's end of turn "
            f"is {tokenizer.eos_token_id} ({tokenizer.eos_token}): correct one of them",
        )
    settled = settings | {"eos_token_id": ends_with(tokenizer.eos_token_id, ends)}
    write_json(path, settled, allow_nan=True)


def ends_with(token: int, stated: Any) -> Any:
    """Return the `stated` ends of generation (an id, a list, None), with `token` first if it is missing.

    What is no number of a token is left out then: generation could never stop there.
    """
    listed = stated if isinstance(stated, list) else [stated]
    return stated if token in listed else [token, *(end for end in listed if isinstance(end, int))]


def put_template(folder: Path, template: str) -> None:
    """Write `template` into a folder in place of all templates there; "" for none."""
    file = folder / TEMPLATE_FILE
    file.unlink(missing_ok=True)
    if template:
        write_text(file, template)
    for name in JSON_FILES:
        if (folder / name).is_file():
            settings = read_object(folder / name)
            if settings.pop(KEY, None) is not None:
                write_text(folder / name, json.dumps(settings, indent=2, ensure_ascii=False) + "\n")


def settle_template_file(folder: Path) -> None:
    """Take the byte-order mark that some editors write off the template: it would stand before every row."""
    file = folder / TEMPLATE_FILE
    if file.is_file():
        file.write_bytes(file.read_bytes().removeprefix(BOM_UTF8))


def settle_beginning(folder: Path) -> None:
    """Let a SentencePiece tokenizer.json without a post-processor put the beginning of text before every
    text, unless tokenizer_config.json says that there is none.

    Such files are made by hand, and the model was trained with the token. transformers reads `add_bos_token`
    only from folders without a tokenizer.json; llama.cpp's converter reads it from all.
    """
    file = folder / "tokenizer.json"
    if not (file.is_file() and (folder / "tokenizer.model").is_file()):
        return
    content = read_object(file)
    path = folder / "tokenizer_config.json"
    settings = read_object(path) if path.is_file() else {}
    begin = settings.get("bos_token")
    begin = begin.get("content") if isinstance(begin, dict) else begin
    tokens = content.get("added_tokens")
    number = next(
        (
            token.get("id")
            for token in (tokens if isinstance(tokens, list) else [])
            if isinstance(begin, str) and isinstance(token, dict) and token.get("content") == begin
        ),
        None,
    )
    if content.get("post_processor") is not None or settings.get("add_bos_token") is False or number is None:
        return
    special = {"SpecialToken": {"id": begin, "type_id": 0}}
    first = {"Sequence": {"id": "A", "type_id": 0}}
    second = {"Sequence": {"id": "B", "type_id": 1}}
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [special, first],
        "pair": [special, first, special, second],
        "special_tokens": {begin: {"id": begin, "ids": [number], "tokens": [begin]}},
    }
    write_text(file, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def settle_bos_and_pad(folder: Path, tokenizer: Any) -> None:
    """Write the tokenizer's beginning of text and padding into config.json and generation_config.json of
    `folder` if they name others.

    DeepSeek's distillations name others, and a GGUF gets the tokenizer's. An id without a token is removed,
    such as that of a padding token that had no row of embeddings.
    """
    ids = special_ids(tokenizer)
    for name in ("config.json", "generation_config.json"):
        path = folder / name
        settings = read_object(path)
        settled = dict(settings)
        for key in ("bos_token_id", "pad_token_id"):
            stated = settings.get(key)
            if ids[key] is not None and stated is not None:
                settled[key] = ids[key]
            elif isinstance(stated, int) and stated >= len(tokenizer):
                del settled[key]
        if settled != settings:
            write_json(path, settled, allow_nan=True)


def special_ids(tokenizer: Any) -> dict[str, int | None]:
    """Return the ids of the control tokens that a model's configuration names as well."""
    return {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}


def count_quantized(file: Path) -> tuple[int, str]:
    """Return a GGUF's parameter count (a tied head is in it once) and the level that its header names."""
    from gguf import LlamaFileType

    header = check_gguf(file)
    level = header.fields.get("general.file_type")
    if level not in {kind.value for kind in LlamaFileType}:
        return header.parameters, "mixed"
    return header.parameters, LlamaFileType(level).name.removeprefix("MOSTLY_")


def read_license(readme: Path) -> str | None:
    """Return the license that a model card's front matter names, or None. Only the first `MAX_CARD` bytes are
    read, and only text is accepted.
    """
    from huggingface_hub.repocard import REGEX_YAML_BLOCK

    if not readme.is_file():
        return None
    try:  # untrusted file, in any encoding
        with readme.open("rb") as file:
            text = file.read(MAX_CARD).decode("utf-8-sig", errors="replace")
        block = REGEX_YAML_BLOCK.search(text)
        card = yaml.load(block[2], _WithoutAliases) if block else None  # noqa: S506 (a SafeLoader)
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return None
    named = card.get("license") if isinstance(card, dict) else None
    return named if isinstance(named, str) and named else None


class _WithoutAliases(yaml.SafeLoader):
    """YAML loader that refuses aliases. Aliases of aliases turn a few hundred bytes into gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):  # type: ignore[no-untyped-call]
            raise yaml.YAMLError("an alias")
        return super().compose_node(parent, index)  # type: ignore[no-untyped-call]


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises `DataError` if it can't be read or is not an object."""
    need_file(path)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            "Q-BASE-016", f"{path} is not readable JSON ({error}): correct or fetch it again"
        ) from error
    if not isinstance(value, dict):
        raise DataError(
            "Q-BASE-016",
            f"{path} holds {type(value).__name__}, a JSON object is wanted: correct or fetch it again",
        )
    return value
