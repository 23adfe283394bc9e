"""tokenizer.model and what goes with it, from a GGUF with the vocabulary of a Llama 2, Mistral 7B or Gemma.

llama.cpp's converter reads scores and types of tokens there. By tokenizer.json alone it would give every
token the same score; it can't read a Gemma 2's, and a Gemma 3's it would take for another model's, by hash.
"""

from pathlib import Path

from pipeline.core.publish import read_json, write_json
from pipeline.gguf.header import Header

PIECES_FILE = "tokenizer.model"
# LLAMA_TOKEN_TYPE_…; the numbers of all types are SentencePiece's own
UNKNOWN = 2
USER_DEFINED = 4
SETTINGS_FILE = "tokenizer_config.json"


def has_scores(header: Header) -> bool:
    """Return True if the vocabulary of a GGUF has scored pieces of text, as SentencePiece's BPE."""
    return header.fields["tokenizer.ggml.model"] == "llama" and "tokenizer.ggml.scores" in header.fields


def puts_spaces(header: Header) -> bool:
    """Return True if llama.cpp puts a space before a text by the vocabulary of a GGUF, as for Llama 2 and
    Mistral 7B; it doesn't for Gemma.
    """
    return has_scores(header) and bool(header.fields.get("tokenizer.ggml.add_space_prefix", True))


def write_pieces(header: Header, folder: Path) -> None:
    """Write tokenizer.model into `folder`, and into its tokenizer_config.json the tokens that are taken out
    of any text, which the converter reads there.
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
        # SentencePiece loads no model without one. Gemma's is a control token for the converter.
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
