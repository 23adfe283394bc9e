"""Conversion of a GGUF file to a Hugging Face folder, dequantized to 16 bit.

The tokenizer is checked against llama.cpp's.
"""

import io
import json
import math
import re
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from pipeline.chat.tokenizer_file import PROBES, panics_as_errors, plain_tokenizer
from pipeline.chat.tokens import save_tokenizer
from pipeline.core.errors import DataError
from pipeline.core.text import shortened
from pipeline.gguf.families.registry import TRAINED_ON, family_in
from pipeline.gguf.header import Header
from pipeline.gguf.rope import TENSORS, published_settings
from pipeline.gguf.tensors import gguf_tensors
from pipeline.gguf.tied import HEAD, OneMatrix, one_matrix
from pipeline.llamacpp.quick_reader import quick_reader
from pipeline.llamacpp.tools import Toolchain, run_tool
from pipeline.models.base_header import is_mixture, named_templates, stated_config
from pipeline.models.header_config import header_config
from pipeline.models.tensors import all_finite
from pipeline.stages.base.chats import need_compiled
from pipeline.stages.base.hf_folder import special_ids
from pipeline.stages.base.runs_of_spaces import SPACE, keep_runs_of_spaces
from pipeline.stages.base.sentencepiece_file import has_scores, puts_spaces, write_pieces

# values of tokenizer.ggml.pre for GPT-2-like vocabularies with single digits: SmolLM 1 and 2, Granite 3
SINGLE_DIGITS = ("smollm", "refact")


def unpack_gguf(
    file: Path, header: Header, folder: Path, tools: Toolchain, tie: bool = True
) -> OneMatrix | None:
    """Write the model in `file` to `folder` as Hugging Face does: 16-bit safetensors, tokenizer, template.

    bfloat16 stays bfloat16; every other type becomes float16. With `tie`, look for one matrix that `file`
    stores twice, as head and as embeddings; if there is one, tie the two in the folder and return it. Raises
    `DataError` if the architecture is not known, a weight is surplus, missing or too large, or the tokenizer
    gives other ids than llama.cpp's.
    """
    if is_mixture(header):
        raise DataError(
            "Q-BASE-029",
            f"{file} is a mixture of experts, whose 16-bit weights can't be taken out of a GGUF: set "
            "base.quantization to gguf, or take its Hugging Face folder",
        )
    import torch
    from gguf import GGMLQuantizationType
    from transformers import GenerationConfig

    from pipeline.models.unpacked_model import unpacked_model

    tokenizer = load_tokenizer_of(file, header)
    kinds = {kind for _, kind in header.tensors.values()}
    dtype = torch.bfloat16 if int(GGMLQuantizationType.BF16) in kinds else torch.float16
    family = family_in(header.fields)
    if family and family.model_type:
        config = header_config(header, family, file)
        config.update(
            {"architectures": [family.classes[0]], **stated_config(header), **special_ids(tokenizer)}
        )
        model = unpacked_model(file, config, dtype)
    else:
        model = load_gguf(file, header, dtype)
    check_weights(model, header, file)
    tied = one_matrix(header, gguf_tensors(file)[1]) if tie else None
    if tied:
        tie_head(model, tied)
    rope = published_settings(header, file)
    if rope:
        model.config.update({"rope_parameters": rope})
    model.config.update(special_ids(tokenizer))
    model.generation_config = GenerationConfig(**special_ids(tokenizer))
    with redirect_stderr(io.StringIO()):
        model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    if has_scores(header):
        write_pieces(header, folder)
    same_ids_as_llama_cpp(file, folder, tools, tokenizer.eos_token)
    return tied


def tie_head(model: Any, matrix: OneMatrix) -> None:
    """Tie the model's head and embeddings, with the values of the finer copy."""
    head = model.get_output_embeddings()
    embeddings = model.get_input_embeddings()
    if matrix.finer.name == HEAD:
        embeddings.weight = head.weight
    model.config.tie_word_embeddings = True
    model.tie_weights()


def from_gguf(kind: Any, file: Path, header: Header, **settings: Any) -> Any:
    """Return what transformers' class `kind` reads from a GGUF. Raises `DataError` if it can't."""
    try:
        # Progress bars come from different libraries, and some ignore the logging level.
        with redirect_stderr(io.StringIO()), quick_reader(), panics_as_errors():
            return kind.from_pretrained(
                file.parent, gguf_file=file.name, local_files_only=True, trust_remote_code=False, **settings
            )
    # An untrusted file: the libraries raise errors of any kind.
    except Exception as error:
        reason = shortened(error, 300)
        architecture = header.fields["general.architecture"]
        on_it = ", or set base.quantization to gguf" if architecture in TRAINED_ON else ""
        raise DataError(
            "Q-BASE-002",
            f"transformers can't read {file} (architecture {architecture}): {reason}: take the Hugging Face "
            f"folder of this model{on_it}",
        ) from error


def load_tokenizer_of(file: Path, header: Header) -> Any:
    """Return the tokenizer of a GGUF as transformers reads it, with its template, or with all templates by
    name. Raises `DataError` if it can't be read or names no end of turn.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    family = family_in(header.fields)
    # AutoTokenizer first reads the header's settings, for a class that it then doesn't need.
    kind = PreTrainedTokenizerFast if family and family.model_type else AutoTokenizer
    tokenizer = from_gguf(kind, file, header)
    drop_defaults(tokenizer, header.fields["tokenizer.ggml.tokens"])
    set_pre_tokenizer(tokenizer, header.fields.get("tokenizer.ggml.pre"))
    if has_scores(header):
        keep_runs_of_spaces(tokenizer, header)
    if puts_spaces(header):
        put_spaces(tokenizer)
    templates = named_templates(header.fields)
    need_compiled(templates, str(file))
    tokenizer.chat_template = templates if len(templates) > 1 else templates.get("default")
    if tokenizer.eos_token_id is None:
        raise DataError(
            "Q-BASE-001",
            f"{file} names no end-of-turn token (tokenizer.ggml.eos_token_id): take another file of this "
            "model",
        )
    return tokenizer


def drop_defaults(tokenizer: Any, words: Sequence[str]) -> None:
    """Remove tokens from `tokenizer` that are not in the file's list of `words` and that nothing names.

    transformers 5.23 adds `<|endoftext|>` to every GPT-2-like vocabulary. In a file without it this token is
    one more than there are rows of embeddings, or it names a row that is only padding, and llama.cpp reads
    its letters. Ids of the file's own tokens stay the same, because the added tokens come after them.
    """
    from tokenizers import Tokenizer

    known = {*words, *tokenizer.special_tokens_map.values()}
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    kept = [token for token in state["added_tokens"] if token["content"] in known]
    if len(kept) < len(state["added_tokens"]):
        tokenizer._tokenizer = Tokenizer.from_str(json.dumps(state | {"added_tokens": kept}))


def load_gguf(file: Path, header: Header, dtype: Any) -> Any:
    """Return the model, dequantized to the torch type `dtype`. Raises `DataError` if transformers can't load
    it or leaves out a tensor.
    """
    from transformers import AutoModelForCausalLM, GgufConfig

    model, loaded = from_gguf(
        AutoModelForCausalLM,
        file,
        header,
        dtype=dtype,
        quantization_config=GgufConfig(dequantize=True),
        output_loading_info=True,
    )
    odd = [f"{len(names)} {kind}" for kind, names in loaded.items() if names]
    if odd:
        raise DataError(
            "Q-BASE-003",
            f"{file} does not match its architecture in transformers ({', '.join(odd)}): take this model "
            "from the hub instead",
        )
    return model


def check_weights(model: Any, header: Header, file: Path) -> None:
    """Raise `DataError` unless the model has as many weights as the GGUF, all of them finite."""
    # a tied head counts once
    taken = sum({tensor.data_ptr(): tensor.numel() for tensor in model.state_dict().values()}.values())
    # Rotary factors are settings, and no model in transformers has layers for drafting.
    others = (
        shape
        for name, (shape, _) in header.tensors.items()
        if name in TENSORS or name.startswith(header.drafting)
    )
    held = header.parameters - sum(map(math.prod, others))
    if taken != held:
        raise DataError(
            "Q-BASE-003",
            f"{file} holds {held:,} weights, transformers takes {taken:,} of them: take this "
            "model from the hub instead",
        )
    for name, weights in model.named_parameters():
        if not all_finite(weights):
            raise DataError(
                "Q-BASE-004",
                f"{file}: {name} has values that {weights.dtype} can't hold: take the bfloat16 or a "
                "quantized file of this model",
            )


def set_pre_tokenizer(tokenizer: Any, kind: str | None) -> None:
    """Correct how text is split before merging if transformers departs from the GGUF's `tokenizer.ggml.pre`.

    transformers 5.23 gives SmolLM and Granite GPT-2's rule, which keeps a space and a digit such as "½"
    together. The models were trained with single digits (pre_tokenizer of the published tokenizer.json).
    `same_ids_as_llama_cpp` finds other cases.
    """
    from tokenizers import pre_tokenizers

    if kind in SINGLE_DIGITS:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )


def put_spaces(tokenizer: Any) -> None:
    """Let `tokenizer` put a space before every text that is not split further: the first one, and each that
    follows a special token. The published tokenizer.json of Llama 2 and Mistral and llama.cpp do so.

    transformers 5.23 puts a space only before the first.
    """
    from tokenizers import normalizers

    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    )
    tokenizer.backend_tokenizer.pre_tokenizer = None


def same_ids_as_llama_cpp(file: Path, folder: Path, tools: Toolchain, end: str) -> None:
    """Raise `DataError` unless `tokenizer.json` gives the same ids as llama.cpp with the GGUF's tokens.

    `end` is the end of turn. Chats are full of text that follows this token, and llama.cpp puts a space
    before that text if the vocabulary is SentencePiece's.
    """
    tokenizer = plain_tokenizer(folder)
    for text in (*PROBES, f"Hello{end}Hello{end} Hello{end}\nHello"):
        theirs = ids_by_llama_cpp(file, text, tools)
        ours = tokenizer.encode(text, add_special_tokens=False).ids
        if ours != theirs:
            raise DataError(
                "Q-BASE-005",
                f"{file}: transformers' tokenizer gives {ours[:8]} for {text[:30]!r}, llama.cpp's gives "
                f"{theirs and theirs[:8]}: take this model from the hub instead",
            )


def ids_by_llama_cpp(file: Path, text: str, tools: Toolchain) -> list[int] | None:
    """Return the ids that llama.cpp gives a text with the tokens of a GGUF, without added tokens. Return None
    if it fails.
    """
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="", suffix=".txt") as probe:
        probe.write(text)
        probe.flush()
        shown = ("--ids", "--no-bos", "--no-escape", "--log-disable")
        printed = run_tool([tools.tool("llama-tokenize"), "-m", file, "-f", probe.name, *shown])
    match = re.search(r"^\[[0-9, ]*\]", printed, re.MULTILINE)
    return json.loads(match[0]) if match else None
