"""Write GGUF metadata on a text's beginning and an answer's end, where llama.cpp's converter writes none or
another one.

llama.cpp ends answers at tokens with certain spellings, and at up to three that a GGUF names.
"""

from pathlib import Path
from typing import Any

from pipeline.chat.tokenizer_file import plain_tokenizer
from pipeline.core.errors import DataError
from pipeline.core.publish import read_if_there
from pipeline.core.text import listed

# src/llama-vocab.cpp puts these spellings into special_eog_ids.
SPELLINGS = frozenset(
    (
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>"),
        *("<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]"),
        *("<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "[e~["),
        "<｜end▁of▁sentence｜>",
    )
)
PROBE = "a"  # a text to which nothing but a beginning and an end can be added
# fields for ends in addition to the tokenizer's eos_token_id
END = "tokenizer.ggml.eos_token_id"
FIELDS = ("tokenizer.ggml.eom_token_id", "tokenizer.ggml.eot_token_id")


def end_fields(folder: Path) -> dict[str, int]:
    """Return the fields that let llama.cpp end an answer at the tokenizer's end, and at every other token at
    which generation stops by the generation_config.json of `folder`, unless its spelling does so already.

    The converter writes config.json's `eod_token_id` for the end of a Hunyuan. GLM-4's `<|observation|>`,
    after a tool call, is an end that it leaves out. Raises `DataError` if a GGUF can't name all of them.
    """
    stated = read_if_there(folder / "generation_config.json").get("eos_token_id")
    listed_ends = stated if isinstance(stated, list) else []
    named = _text(read_if_there(folder / "tokenizer_config.json").get("eos_token"))
    spelled = {
        token["id"]: token["content"]
        for token in read_if_there(folder / "tokenizer.json").get("added_tokens", [])
    }
    others = {
        number: spelled[number]
        for number in listed_ends
        if isinstance(number, int)
        and number in spelled
        and spelled[number] != named
        and spelled[number] not in SPELLINGS
    }
    if len(others) > len(FIELDS):
        raise DataError(
            "Q-LLAMACPP-030",
            f"generation stops at {listed(list(others.values()))} by {folder / 'generation_config.json'}, "
            f"and a GGUF can name {len(FIELDS)} such tokens: take out of its eos_token_id what ends no "
            "answer",
        )
    number = plain_tokenizer(folder).token_to_id(named) if isinstance(named, str) else None
    end = {} if number is None else {END: number}
    return end | dict(zip(FIELDS, others, strict=False))


def beginning_fields(folder: Path) -> dict[str, bool]:
    """Return the field that tells whether the SentencePiece tokenizer of `folder` adds its beginning of text
    to every text; none for another tokenizer.

    llama.cpp adds it for SentencePiece if the field is missing, and the converter writes no field if
    tokenizer.json adds nothing.
    """
    if not (folder / "tokenizer.model").is_file():
        return {}
    tokenizer = plain_tokenizer(folder)
    named = _text(read_if_there(folder / "tokenizer_config.json").get("bos_token"))
    return {"tokenizer.ggml.add_bos_token": tokenizer.encode(PROBE).tokens[0] == named}


def _text(token: Any) -> Any:
    """Return the text of a token. Some files store it as an object."""
    return token.get("content") if isinstance(token, dict) else token
