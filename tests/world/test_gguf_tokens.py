"""GGUFs whose vocabulary has no `<|endoftext|>`, as those of Llama 3 and Mistral Nemo: the base has the
file's tokens and no other, whether it is unpacked or trained on as it is.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from pipeline.chat.tokens import load_tokenizer
from pipeline.config.sections import Base
from pipeline.core.errors import DataError
from pipeline.llamacpp.tools import Toolchain
from pipeline.stages.base.gguf_import import ids_by_llama_cpp
from pipeline.stages.base.stage import base

DEFAULT = "<|endoftext|>"  # which transformers adds to what it reads of a GGUF
LLAMA_3 = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
NEMO = ("<unk>", "<s>", "[INST]", "</s>")
TEMPLATE = (
    "{% for message in messages %}{{ 'OPEN' + message['role'] + '\\n' + message['content'] + 'CLOSE' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'OPENassistant\\n' }}{% endif %}"
)


def gguf_with(folder: Path, control: tuple[str, ...], *, rows: int | None = None) -> Path:
    """A tiny Llama with as many rows of embeddings as it has tokens, or `rows`; the last of the `control`
    tokens ends a turn.
    """
    words = [*tiny.BYTE_LETTERS, "he", "ll", *control]
    plain = len(words) - len(control)
    count = rows or len(words)
    fields: dict[str, Any] = {
        "tokenizer__ggml__tokens": words,
        "tokenizer__ggml__token_type": [1] * plain + [3] * len(control),
        "tokenizer__ggml__pre": "llama-bpe",
        "tokenizer__ggml__unknown_token_id": None,
        "tokenizer__ggml__bos_token_id": plain,
        "tokenizer__ggml__eos_token_id": len(words) - 1,
        "tokenizer__ggml__padding_token_id": None,
        "tokenizer__chat_template": TEMPLATE.replace("OPEN", control[1]).replace("CLOSE", control[-1]),
        "llama__vocab_size": count,
    }
    random = np.random.default_rng(0).normal(0, 0.1, (count, 32)).astype(np.float16)
    return tiny.tiny_gguf(folder / "model.gguf", tensors={"token_embd.weight": random}, **fields)


@pytest.mark.parametrize("quantization", ["gguf", "nf4"])
@pytest.mark.parametrize(
    ("control", "rows"), [(LLAMA_3, None), (NEMO, None), (LLAMA_3, 320)], ids=["llama3", "nemo", "padded"]
)
def test_the_base_has_the_files_tokens_and_no_other(
    control: tuple[str, ...], rows: int | None, quantization: str, tmp_path: Path
) -> None:
    file = gguf_with(tmp_path, control, rows=rows)
    folder = tmp_path / "models/base"
    facts = base(
        Base(model=str(file), quantization=quantization), target=folder, record=tmp_path / "models/base.json"
    )
    tokenizer = load_tokenizer(folder)
    words = [*tiny.BYTE_LETTERS, "he", "ll", *control]
    assert len(tokenizer) == len(words)
    assert tokenizer.convert_ids_to_tokens(range(len(words))) == words  # each has the file's id
    assert facts["added_tokens"] == [*control]
    assert facts["vocab_size"] == (rows or len(words))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert DEFAULT not in (folder / name).read_text(encoding="utf-8")
    assert json.loads((folder / "config.json").read_text())["eos_token_id"] == len(words) - 1


@pytest.mark.parametrize("quantization", ["gguf", "nf4"])
def test_a_token_of_that_name_that_the_file_has_stays(quantization: str, tmp_path: Path) -> None:
    control = ("<|begin_of_text|>", DEFAULT, "<|start|>", "<|end|>")
    folder = tmp_path / "models/base"
    chosen = Base(model=str(gguf_with(tmp_path, control)), quantization=quantization)
    base(chosen, target=folder, record=tmp_path / "models/base.json")
    tokenizer = load_tokenizer(folder)
    assert tokenizer.convert_tokens_to_ids(DEFAULT) == len(tiny.BYTE_LETTERS) + 3
    assert tokenizer.encode(f"he{DEFAULT}", add_special_tokens=False)[-1] == len(tiny.BYTE_LETTERS) + 3


@pytest.mark.parametrize("quantization", ["gguf", "nf4"])
def test_a_vocabulary_with_more_tokens_than_rows_is_refused(quantization: str, tmp_path: Path) -> None:
    """As if a longer model's tokenizer had been written into the file."""
    foreign = (*LLAMA_3[:3], *(f"<extra_{number}>" for number in range(5)), LLAMA_3[3])
    file = gguf_with(tmp_path, foreign, rows=len(tiny.BYTE_LETTERS) + 2 + len(LLAMA_3))
    chosen = Base(model=str(file), quantization=quantization)
    with pytest.raises(DataError):
        base(chosen, target=tmp_path / "models/base", record=tmp_path / "models/base.json")
    assert not (tmp_path / "models/base").exists()


@pytest.mark.parametrize("quantization", ["gguf", "nf4"])
def test_a_space_is_put_behind_special_tokens_as_llama_cpp_does(
    quantization: str, tools: Toolchain, tmp_path: Path
) -> None:
    """As in SentencePiece's vocabularies of Llama 2 and Mistral 7B: else parity finds it, after training."""
    letters = [chr(code) for code in range(33, 127)]
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *letters]
    random = np.random.default_rng(0).normal(0, 0.1, (len(words), 32)).astype(np.float16)
    template = TEMPLATE.replace("OPEN", "<s>").replace("CLOSE", "</s>")
    file = tiny.tiny_gguf(
        tmp_path / "model.gguf",
        tensors={"token_embd.weight": random},
        llama__vocab_size=len(words),
        tokenizer__ggml__model="llama",
        tokenizer__ggml__pre=None,
        tokenizer__ggml__merges=None,
        tokenizer__ggml__tokens=words,
        tokenizer__ggml__scores=[-float(number) for number in range(len(words))],
        tokenizer__ggml__token_type=[2, 3, 3] + [6] * 256 + [1] * (len(words) - 259),
        tokenizer__ggml__unknown_token_id=0,
        tokenizer__ggml__bos_token_id=1,
        tokenizer__ggml__eos_token_id=2,
        tokenizer__ggml__padding_token_id=None,
        tokenizer__chat_template=template,
    )
    chosen = Base(model=str(file), quantization=quantization)
    folder = tmp_path / "models/base"
    base(chosen, target=folder, record=tmp_path / "models/base.json")
    text = "<s>Hello</s>Hello </s>\n<s> Hé"
    found = load_tokenizer(folder)(text, add_special_tokens=False)["input_ids"]
    assert found == ids_by_llama_cpp(file, text, tools)
    pieces = [words[number] for number in found]
    assert pieces[:3] == ["<s>", "\u2581", "H"] and pieces[-2:] == ["<0xC3>", "<0xA9>"]
