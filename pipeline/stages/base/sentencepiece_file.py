"""tokenizer.model and its settings, written from a GGUF that has a Llama 2, Mistral 7B or Gemma vocabulary.

llama.cpp's converter reads scores and types of tokens there. With only tokenizer.json it would give every
token the same score. It can't read the tokenizer.json of a Gemma 2, and by its hash it would treat that of a
Gemma 3 as another model's.
"""

from pathlib import Path

from pipeline.core.publish import read_json, write_json
from pipeline.gguf.header import Header

PIECES_FILE = "tokenizer.model"
# LLAMA_TOKEN_TYPE_UNKNOWN and _USER_DEFINED. The numbers of all types are SentencePiece's own.
UNKNOWN = 2
USER_DEFINED = 4
SETTINGS_FILE = "tokenizer_config.json"


def has_scores(header: Header) -> bool:
    """Return True if the vocabulary of a GGUF has scored pieces of text, as SentencePiece's BPE has."""
    return header.fields["tokenizer.ggml.model"] == "llama" and "tokenizer.ggml.scores" in header.fields


def puts_spaces(header: Header) -> bool:
    """Return True if llama.cpp puts a space before a text with the vocabulary of a GGUF. It does for Llama 2
    and Mistral 7B, but not for Gemma.
    """
    return has_scores(header) and bool(header.fields.get("tokenizer.ggml.add_space_prefix", True))


def write_pieces(header: Header, folder: Path) -> None:
    """Write tokenizer.model into `folder`. Write the tokens that are split off any text first into its
    tokenizer_config.json, where the converter reads them.
    """
    from sentencepiece import sentencepiece_model_pb2 as protocol

    tokens: list[str] = header.fields["tokenizer.ggml.tokens"]
    types = list(header.fields.get("tokenizer.ggml.token_type") or [1] * len(tokens))
    outside = {
        number: {"content": token, "special": False, "normalized": False}
        for number, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind == USER_DEFINED
    }
    unknown = header.fields.get("tokenizer.ggml.unknown_token_id")
    if UNKNOWN not in types and unknown is not None:
        # SentencePiece loads no model without an unknown token. The converter treats Gemma's as a control
        # token.
        types[unknown] = UNKNOWN
        outside[unknown] = {"content": tokens[unknown], "special": True, "normalized": False}
    model = protocol.ModelProto()  # type: ignore[attr-defined]
    for token, score, kind in zip(tokens, header.fields["tokenizer.ggml.scores"], types, strict=True):
        model.pieces.add(piece=token, score=score, type=kind)
    model.trainer_spec.model_type = model.trainer_spec.BPE
    model.trainer_spec.byte_fallback = True
    model.trainer_spec.vocab_size = len(tokens)
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = puts_spaces(header)
    model.normalizer_spec.remove_extra_whitespaces = False
    (folder / PIECES_FILE).write_bytes(model.SerializeToString())
    if outside:
        settings = read_json(folder / SETTINGS_FILE, "run `snakemake --force base`")
        decoder = {str(number): token for number, token in sorted(outside.items())}
        write_json(folder / SETTINGS_FILE, settings | {"added_tokens_decoder": decoder})
