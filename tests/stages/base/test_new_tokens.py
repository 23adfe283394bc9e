"""Tokens that `base.new_tokens` adds: each is one id with the mean row, text tokens are learned in answers
and control tokens kept out of chats, and nothing else of the base changes.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import tiny
import torch
from conftest import run_stages
from safetensors.torch import load_file, save_file

from pipeline.chat.tokens import load_tokenizer
from pipeline.config.sections import Base
from pipeline.core.errors import DataError
from pipeline.gguf.safetensors_rows import read_folder
from pipeline.llamacpp.tools import Toolchain
from pipeline.stages.base.stage import base

TEXT, CONTROL = "<tool>", "<|side|>"
EMBEDDINGS, HEAD = "model.embed_tokens.weight", "lm_head.weight"
FULL = 8170  # words that with Qwen's added tokens take every row


@pytest.fixture
def taken(tmp_path: Path) -> Callable[..., tuple[Path, dict[str, Any]]]:
    """Return what brings a folder into models/base by stage base."""

    def bring(model: Path, **settings: Any) -> tuple[Path, dict[str, Any]]:
        chosen = Base.model_validate(
            {"model": str(model), "revision": None, "file": None, "sha256": None, "places": []} | settings
        )
        target = tmp_path / "models/base"
        return target, base(chosen, target=target, record=tmp_path / "models/base.json")

    return bring


@pytest.mark.parametrize("full", [False, True], ids=["padded and tied", "full and untied"])
def test_each_token_is_one_id_with_the_mean_row(
    full: bool,
    tiny_qwen2: Path,
    tools: Toolchain,
    tmp_path: Path,
    taken: Callable[..., tuple[Path, dict[str, Any]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = tiny_qwen2
    if full:
        source = tiny.tiny_qwen2(tmp_path / "full", tools, words=FULL, layers=1, trained=True)
    words = len(load_tokenizer(source))
    folder, facts = taken(source, new_tokens=[TEXT, CONTROL])
    assert facts["new_tokens"] == {TEXT: words, CONTROL: words + 1}
    assert TEXT not in facts["added_tokens"] and CONTROL in facts["added_tokens"]
    assert f"2 new tokens, from id {words} on" in capsys.readouterr().out
    before = load_file(source / "model.safetensors")
    after = load_file(folder / "model.safetensors")
    assert before.keys() == after.keys()
    tables = {EMBEDDINGS, HEAD} & before.keys()
    assert len(tables) == (2 if full else 1)
    for name, old in before.items():
        new = after[name]
        if name not in tables:
            assert torch.equal(new, old)
            continue
        mean = old[:words].double().mean(dim=0)
        assert torch.equal(new[:words], old[:words])
        torch.testing.assert_close(new[words : words + 2].double(), mean.expand(2, -1), rtol=2**-8, atol=0)
        assert torch.equal(new[words + 2 :], old[words + 2 :])
        assert len(new) == (words + 2 if full else len(old))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["vocab_size"] == facts["vocab_size"] == len(after[EMBEDDINGS])
    tokenizer = load_tokenizer(folder)
    ids = tokenizer(f"a{TEXT}b {CONTROL}")["input_ids"]
    assert [number for number in ids if number >= words] == [words, words + 1]
    assert TEXT in tokenizer.decode(ids, skip_special_tokens=True)
    assert CONTROL not in tokenizer.decode(ids, skip_special_tokens=True)


def test_a_token_that_is_there_already_is_refused(
    tiny_qwen2: Path, taken: Callable[..., tuple[Path, dict[str, Any]]]
) -> None:
    with pytest.raises(DataError, match="Q-BASE-050") as caught:
        taken(tiny_qwen2, new_tokens=[TEXT, "<|im_end|>"])
    assert "<|im_end|>" in caught.value.sentence and TEXT not in caught.value.sentence


def test_chats_may_hold_a_text_token_and_no_control_token(
    tiny_params: dict[str, Any], tmp_path: Path
) -> None:
    tiny_params["base"]["new_tokens"] = [TEXT, CONTROL]
    tiny_params["train"]["modules_to_save"] = ["embed_tokens", "lm_head"]
    root = tiny.write_project(tmp_path / "project", tiny_params, rows=10)
    turns = [("user", f"Ask {TEXT} and {CONTROL}"), ("assistant", f"{TEXT}clock it is")]
    row = {"messages": [{"role": role, "content": text} for role, text in turns]}
    with (root / "data/raw/chats.jsonl").open("a", encoding="utf-8") as file:
        for number in range(40):
            row["messages"][0]["content"] = f"Ask {TEXT} and {CONTROL} for the {number}. time"
            file.write(json.dumps(row) + "\n")
    run_stages(root, ("base", "curate", "preprocess"))
    new = json.loads((root / "models/base.json").read_text(encoding="utf-8"))["new_tokens"]
    written = pq.read_table(root / "data/tokens/train.parquet").to_pydict()
    ids = [number for row in written["input_ids"] for number in row]
    labels = [number for row in written["labels"] for number in row]
    assert ids.count(new[TEXT]) == 2 * labels.count(new[TEXT]) > 0
    assert new[CONTROL] not in ids


def test_a_template_is_written_with_new_control_tokens(
    tiny_qwen2: Path, tmp_path: Path, taken: Callable[..., tuple[Path, dict[str, Any]]]
) -> None:
    template = tmp_path / "own.jinja"
    turn = "<|turn|>{{ m.role }}\n{{ m.content }}<|done|>\n"
    prompt = "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
    template.write_text("{% for m in messages %}" + turn + "{% endfor %}" + prompt, encoding="utf-8")
    folder, facts = taken(tiny_qwen2, new_tokens=["<|turn|>", "<|done|>"], chat_template=str(template))
    assert (facts["eos_token"], facts["named_end"]) == ("<|done|>", "<|im_end|>")
    ends = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"]
    assert facts["new_tokens"]["<|done|>"] in ends
    assert "<|turn|>" in facts["added_tokens"] and "no_chats" not in facts


@pytest.mark.slow
def test_a_model_in_several_files_and_one_out_of_a_gguf_get_their_rows(
    tiny_qwen2: Path,
    tiny_gguf_base: Path,
    tmp_path: Path,
    taken: Callable[..., tuple[Path, dict[str, Any]]],
) -> None:
    several = shutil.copytree(tiny_qwen2, tmp_path / "several")
    weights = load_file(several / "model.safetensors")
    (several / "model.safetensors").unlink()
    places = {name: f"model-0000{1 + (name == EMBEDDINGS)}-of-00002.safetensors" for name in weights}
    for file in sorted(set(places.values())):
        inside = {name: weight for name, weight in weights.items() if places[name] == file}
        save_file(inside, several / file, {"format": "pt"})
    index = {
        "metadata": {"total_size": sum(weight.nbytes for weight in weights.values())},
        "weight_map": places,
    }
    (several / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    tokens = [f"<t{number}>" for number in range(200)]  # more than rows that pad the vocabulary
    folder, facts = taken(several, new_tokens=tokens)
    rows = facts["vocab_size"]
    assert rows == facts["new_tokens"][tokens[-1]] + 1 > len(weights[EMBEDDINGS])
    entries = read_folder(folder)
    assert entries[EMBEDDINGS].shape[0] == rows
    written = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
    assert written["metadata"]["total_size"] == sum(entry.nbytes for entry in entries.values())

    folder, facts = taken(tiny_gguf_base, new_tokens=[TEXT])
    table = load_file(folder / "model.safetensors")[EMBEDDINGS]
    number = facts["new_tokens"][TEXT]
    torch.testing.assert_close(
        table[number].float(), table[:number].float().mean(dim=0), rtol=2**-7, atol=1e-6
    )
    assert load_tokenizer(folder)(TEXT)["input_ids"] == [number]
