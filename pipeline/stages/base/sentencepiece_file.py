"""tokenizer.model and what goes with it, from a GGUF with the vocabulary of a Llama 2 or Mistral 7B.

llama.cpp's converter reads scores and types of tokens there; by tokenizer.json alone it would give every
token the same score.
"""

from pathlib import Path

from pipeline.core.publish import read_json, write_json
from pipeline.gguf.header import Header

PIECES_FILE = "tokenizer.model"
USER_DEFINED = 4  # LLAMA_TOKEN_TYPE_USER_DEFINED; the numbers of all types are SentencePiece's own
SETTINGS_FILE = "tokenizer_config.json"


def puts_spaces(header: Header) -> bool:
    """Return True if the vocabulary of a GGUF has scored pieces of text, as SentencePiece's BPE, and
    llama.cpp puts a space before a text, as for Llama 2 and Mistral 7B; it doesn't for Gemma.
    """
    fields = header.fields
    is_scored = fields["tokenizer.ggml.model"] == "llama" and "tokenizer.ggml.scores" in fields
    return is_scored and bool(fields.get("tokenizer.ggml.add_space_prefix", True))


def write_pieces(header: Header, folder: Path) -> None:
    """Write tokenizer.model into `folder`, and into its tokenizer_config.json the tokens that are taken out
    of any text, which the converter reads there.
    """
    from sentencepiece import sentencepiece_model_pb2 as protocol

    tokens: list[str] = header.fields["tokenizer.ggml.tokens"]
    types = header.fields.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    model = protocol.ModelProto()  # type: ignore[attr-defined]
    for token, score, kind in zip(tokens, header.fields["tokenizer.ggml.scores"], types, strict=True):
        model.pieces.add(piece=token, score=score, type=kind)
    model.trainer_spec.model_type = model.trainer_spec.BPE
    model.trainer_spec.byte_fallback = True
    model.trainer_spec.vocab_size = len(tokens)
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = True
    model.normalizer_spec.remove_extra_whitespaces = False
    (folder / PIECES_FILE).write_bytes(model.SerializeToString())
    whole = {
        str(number): {"content": token, "special": False, "normalized": False}
        for number, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind == USER_DEFINED
    }
    if whole:
        settings = read_json(folder / SETTINGS_FILE, "run `snakemake --force base`")
        write_json(folder / SETTINGS_FILE, settings | {"added_tokens_decoder": whole})
