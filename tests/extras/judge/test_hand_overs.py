"""quench judge --base --adapter --merged --gguf: files as other tools leave them, each damaged as a
user reported it, and the id of the hand-over that is named.
"""

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import merging
import numpy as np
import pytest
import torch
from families import byte_folder
from gguf_edit import change_fields, write_gguf
from make import quench
from qwen2_variants import change_json
from rigged import rigged
from tiny import BYTE_LETTERS, CHATML, tiny_gguf

from pipeline.chat.tokens import load_tokenizer
from pipeline.core.checks import Check
from pipeline.core.errors import QuenchError
from pipeline.core.places import PROJECT
from pipeline.extras.judge.hand_overs import command, inputs, outputs, text
from pipeline.extras.judge.hand_overs.adapter import expected_of
from pipeline.extras.judge.hand_overs.gguf import Model, different_settings
from pipeline.extras.judge.hand_overs.inputs import Files, need_files
from pipeline.gguf.header import CONFIG_FIELDS, Header, read_header
from pipeline.gguf.safetensors_rows import read_folder
from pipeline.gguf.sources import gguf_settings, known_family, read_config, sources
from pipeline.gguf.tensors import gguf_tensors
from pipeline.llamacpp.tools import Llama, Toolchain

FULL = {"r": 8, "lora_alpha": 16, "target_modules": merging.LINEARS}
F16, Q8_0 = 1, 8


def base_in(root: Path, **more: Any) -> Path:
    """A base below `root`, of Llama's kind unless `more` says otherwise."""
    return merging.write_base(root / "base", **{"kind": "Llama"} | more)


def peft_merge(base: Path, adapter: Path, merged: Path, dtype: Any = torch.bfloat16) -> Path:
    """Merge as PEFT's users do, in the base's own type; return the merged folder."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
    PeftModel.from_pretrained(model, adapter).merge_and_unload().save_pretrained(merged)
    return merged


def other_adapter(adapter: Path, folder: Path, **settings: Any) -> Path:
    """A copy of an adapter with other settings, without magnitudes if use_dora is among them; the copy."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(adapter, folder)
    change_json(folder / "adapter_config.json", keep_none=True, **settings)
    if "use_dora" in settings:
        tensors = load_file(folder / "adapter_model.safetensors")
        kept = {name: value for name, value in tensors.items() if "magnitude" not in name}
        save_file(kept, folder / "adapter_model.safetensors")
    return folder


def change_tensors(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Write the folder's weights again as `change` makes them."""
    from safetensors.torch import load_file, save_file

    file = next(folder.glob("*model.safetensors"))
    save_file(change(load_file(file)), file, metadata={"format": "pt"})


def failed(checks: list[Check]) -> list[str]:
    return [check.key for check in checks if check.verdict == "fail"]


def judged(files: Files, tools: Toolchain | None = None) -> list[Check]:
    """All verdicts of files without text."""
    return list(command.judged(files, Llama(tools) if tools else None, files_only=True))  # type: ignore[arg-type]


# --- base and adapter → merged folder ---


def copy_of_base(base: Path, adapter: Path, merged: Path) -> None:
    shutil.copytree(base, merged)


def merged_twice(base: Path, adapter: Path, merged: Path) -> None:
    peft_merge(peft_merge(base, adapter, merged.with_name("once")), adapter, merged)


def merged_as(**settings: Any) -> Callable[[Path, Path, Path], None]:
    """A merge that reads other settings than the adapter has."""

    def merge(base: Path, adapter: Path, merged: Path) -> None:
        peft_merge(base, other_adapter(adapter, merged.with_name("read"), **settings), merged)

    return merge


def merged_into_nf4(base: Path, adapter: Path, merged: Path) -> None:
    merging.add_run(adapter)
    merging.merge_in(base.parent, "bfloat16", "nf4")
    (adapter / "run.json").unlink()


def merged_into_another(base: Path, adapter: Path, merged: Path) -> None:
    other = Path(shutil.copytree(base, merged.with_name("other")))
    noise = torch.Generator().manual_seed(5)
    change_tensors(
        other,
        lambda tensors: {
            name: value + (0.02 * torch.randn(value.shape, generator=noise)).to(value.dtype)
            for name, value in tensors.items()
        },
    )
    peft_merge(other, adapter, merged)


def with_another_rope(base: Path, adapter: Path, merged: Path) -> None:
    config = read_config(peft_merge(base, adapter, merged))
    change_json(merged / "config.json", rope_parameters=config["rope_parameters"] | {"rope_theta": 5e5})


def with_the_adapter_beside(base: Path, adapter: Path, merged: Path) -> None:
    shutil.copytree(base, merged)
    more = {"model.layers.0.self_attn.q_proj.lora_A.weight": torch.ones(8, 64)}
    change_tensors(merged, lambda tensors: tensors | more)


def cut_off(base: Path, adapter: Path, merged: Path) -> None:
    file = peft_merge(base, adapter, merged) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])


def at_half_strength(base: Path, adapter: Path, merged: Path) -> None:
    peft_merge(base, other_adapter(adapter, merged.with_name("read"), lora_alpha=10), merged)


MERGES: dict[str, tuple[str | None, dict[str, Any], Callable[[Path, Path, Path], Any]]] = {
    "as PEFT merges": (None, {}, peft_merge),
    "DoRA as PEFT merges": (None, {"use_dora": True}, peft_merge),
    "rsLoRA as PEFT merges": (None, {"use_rslora": True}, peft_merge),
    # llama.cpp 1631: "the converted model behaves similarly to the base model without the merge"
    "not merged": ("merged.absent", {}, copy_of_base),
    "merged twice": ("merged.twice", {}, merged_twice),
    # PEFT 2321: merge_and_unload of a model that was loaded in 4 bit
    "into the 4-bit base": ("merged.nf4_base", {}, merged_into_nf4),
    "alpha ÷ r ignored": ("merged.scale_ignored", {}, merged_as(lora_alpha=8)),
    "rsLoRA ignored": ("merged.rslora_ignored", {"use_rslora": True}, merged_as(use_rslora=False)),
    "rsLoRA assumed": ("merged.rslora_assumed", {}, merged_as(use_rslora=True)),
    "DoRA ignored": ("merged.dora_ignored", {"use_dora": True}, merged_as(use_dora=False)),
    "another alpha": ("merged.other_strength", {}, at_half_strength),
    "into another base": ("merged.other_base", {}, merged_into_another),
    "another rope": ("merged.settings", {}, with_another_rope),
    "cut off": ("merged.damaged", {}, cut_off),
    "the adapter beside": ("merged.not_merged", {}, with_the_adapter_beside),
}


@pytest.mark.parametrize("case", MERGES)
def test_a_merged_folder_is_named_by_what_went_wrong(case: str, tmp_path: Path) -> None:
    key, settings, merge = MERGES[case]
    base = base_in(tmp_path)
    adapter = merging.write_adapter(base, tmp_path / "adapter", **FULL | settings)
    merge(base, adapter, tmp_path / "merged")
    checks = judged(need_files(str(base), adapter, tmp_path / "merged", []))
    assert failed(checks) == ([key] if key else []), checks
    assert checks[0].verdict == "pass"
    assert not any("snakemake" in check.remedy or "stage" in check.remedy for check in checks)


def test_a_head_that_the_config_ties_again_is_lost(tmp_path: Path) -> None:
    """transformers 45127: the adapter trained a head of its own, and the merged config still ties it."""
    base = base_in(tmp_path, tie_word_embeddings=True)
    adapter = merging.write_adapter(
        base, tmp_path / "adapter", target_modules=["q_proj"], modules_to_save=["lm_head"]
    )
    merging.merge_in(tmp_path, "bfloat16")
    files = need_files(str(base), adapter, tmp_path / "merged", [])
    assert failed(judged(files)) == []
    change_json(tmp_path / "merged/config.json", tie_word_embeddings=True)
    assert failed(judged(files)) == ["merged.head_lost"]
    change_tensors(
        tmp_path / "merged",
        lambda tensors: {name: value for name, value in tensors.items() if name != "lm_head.weight"},
    )
    assert failed(judged(files)) == ["merged.head_lost"]


def test_a_merged_folder_without_an_adapter_is_the_base_or_not_measured(tmp_path: Path) -> None:
    base = base_in(tmp_path)
    adapter = merging.write_adapter(base, tmp_path / "adapter", **FULL)
    peft_merge(base, adapter, tmp_path / "merged")
    assert [check.verdict for check in judged(need_files(str(base), None, tmp_path / "merged", []))] == [
        "not measured"
    ]
    shutil.copytree(base, tmp_path / "same")
    assert failed(judged(need_files(str(base), None, tmp_path / "same", []))) == ["merged.absent"]


# --- base → adapter ---


def test_an_adapter_of_another_base_does_not_fit(tmp_path: Path) -> None:
    base = base_in(tmp_path)
    wide = merging.write_base(tmp_path / "wide", kind="Llama", hidden_size=128)
    adapter = merging.write_adapter(wide, tmp_path / "adapter", **FULL)
    _, check = expected_of(Files(base, adapter, None, ()))
    assert check and (check.key, check.verdict) == ("adapter.other_base", "fail")


def test_an_adapter_that_was_never_trained_changes_nothing(tmp_path: Path) -> None:
    base = base_in(tmp_path)
    adapter = merging.write_adapter(base, tmp_path / "adapter", **FULL)
    change_tensors(
        adapter,
        lambda tensors: {name: value * ("lora_B" not in name) for name, value in tensors.items()},
    )
    _, check = expected_of(Files(base, adapter, None, ()))
    assert check and check.key == "adapter.untrained"


def test_more_tokens_than_rows_are_another_vocabulary(tmp_path: Path) -> None:
    base = base_in(tmp_path)
    adapter = merging.write_adapter(base, tmp_path / "adapter", **FULL)
    byte_folder(tmp_path / "bytes")
    shutil.copy(tmp_path / "bytes/tokenizer.json", adapter)
    _, check = expected_of(Files(base, adapter, None, ()))
    assert check and check.key == "adapter.other_vocabulary" and "261 tokens" in check.sentence


@pytest.mark.parametrize(
    ("named", "verdict"), [("meta/Tiny-Base-bnb-4bit", "pass"), ("meta/Another-1B", "warn"), ("/a/b", "pass")]
)
def test_the_base_that_an_adapter_names_is_looked_at(named: str, verdict: str, tmp_path: Path) -> None:
    base = base_in(tmp_path / "Tiny-Base")
    adapter = merging.write_adapter(base, tmp_path / "adapter", **FULL)
    change_json(adapter / "adapter_config.json", base_model_name_or_path=named)
    _, check = expected_of(Files(base, adapter, None, ()))
    assert check and check.verdict == verdict


# --- model → GGUF ---


def gguf_of(folder: Path, target: Path, kind: int = F16, **fields: Any) -> Path:
    """A GGUF of a Llama's folder as the converter makes it, without vocabulary, its matrices of one type;
    `fields` replace those of the header ("." written as "__").
    """
    config = read_config(folder)
    tensors = {}
    for name, pieces in sources(config, read_folder(folder)).items():
        flat = np.concatenate([block for piece in pieces for block in piece.blocks()])
        columns = pieces[0].entry.shape[-1]
        is_matrix = len(pieces[0].entry.shape) > 1
        tensors[name] = (flat.reshape(-1, columns) if is_matrix else flat, kind if is_matrix else 0)
    sizes = {f"llama.{field}": config[key] for key, field in CONFIG_FIELDS.items() if config.get(key)}
    header = sizes | gguf_settings(config)
    changed = {name.replace("__", "."): value for name, value in fields.items()}
    return write_gguf(target, tensors, header | changed)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Base, adapter and merged folder of a Llama, the last also merged twice. Read only."""
    root = tmp_path_factory.mktemp("models")
    base = base_in(root)
    adapter = merging.write_adapter(base, root / "adapter", **FULL)
    merged_twice(base, adapter, root / "twice")
    shutil.copytree(root / "once", root / "merged")
    return root


def in_order_of_hugging_face(folder: Path, target: Path) -> Path:
    """A copy of a folder whose rows the converter's reordering of q and k brings back as they were."""
    shutil.copytree(folder, target)

    def change(tensors: dict[str, Any]) -> dict[str, Any]:
        for name, value in tensors.items():
            heads = next((count for part, count in (("q_proj", 4), ("k_proj", 2)) if part in name), 0)
            if heads:
                apart = value.view(heads, value.shape[0] // heads // 2, 2, -1)
                tensors[name] = apart.transpose(1, 2).reshape(value.shape).contiguous()
        return tensors

    change_tensors(target, change)
    return target


@pytest.mark.parametrize("kind", [F16, Q8_0])
@pytest.mark.parametrize("given", ["adapter", "merged"])
def test_weights_in_a_gguf_are_those_of_the_model(
    given: str, kind: int, models: Path, tmp_path: Path
) -> None:
    """The merged folder is at hand, or base and adapter only; in 16 bit and quantized."""

    def keys(folder: Path, **fields: Any) -> list[str]:
        gguf = gguf_of(folder, tmp_path / "model.gguf", kind, **fields)
        merged = models / "merged" if given == "merged" else None
        files = Files(models / "base", models / "adapter", merged, (gguf,))
        expected, _ = expected_of(files)
        return failed(list(command.weights_and_settings(files, expected, {gguf: read_header(gguf)})))

    assert keys(models / "merged") == []
    assert keys(models / "base") == ["weights.absent"]
    assert keys(models / "twice") == ["weights.twice"]
    assert keys(in_order_of_hugging_face(models / "merged", tmp_path / "order")) == ["weights.order"]
    assert keys(models / "merged", llama__rope__freq_base=5e5) == ["settings.rope"]
    assert keys(models / "merged", llama__rope__scaling__type="linear", llama__rope__scaling__factor=2.0) == [
        "settings.rope"
    ]
    assert keys(models / "merged", general__architecture="qwen2") == ["weights.other_model"]
    assert keys(merging.write_base(tmp_path / "x", kind="Llama", vocab_size=128))[:1] == [
        "weights.vocabulary"
    ]


def test_a_gguf_that_lost_its_head_and_one_of_the_base_alone(models: Path, tmp_path: Path) -> None:
    whole = gguf_of(models / "base", tmp_path / "whole.gguf")
    files = Files(models / "base", None, None, (whole,))
    header = read_header(whole)
    assert [check.verdict for check in command.weights_and_settings(files, None, {whole: header})] == [
        "pass"
    ] * 2
    kept = {
        name: (tensor.stored(0, tensor.rows).reshape(*tensor.shape[:-1], -1), tensor.ggml_type)
        for name, tensor in gguf_tensors(whole)[1].items()
        if name != "output.weight"
    }
    less = write_gguf(tmp_path / "less.gguf", kept, {k: v for k, v in header.fields.items() if "llama." in k})
    checks = list(command.weights_and_settings(files, None, {less: read_header(less)}))
    assert failed(checks) == ["weights.head_lost"]


# --- tokenizer and template → GGUF ---

OTHER_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
# what is another in the GGUF than in the folder: the id of the first verdict that differs
TEXTS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "the same": (None, {}),
    # llama.cpp 6920: GGUFs without a pre-tokenizer's name, "missing pre-tokenizer type, using: 'default'"
    "default pre-tokenizer": ("tokens.pre_tokenizer", {"tokenizer.ggml.pre": "default"}),
    # llama.cpp 7062: Llama 3's pattern under another name
    "another pre-tokenizer": ("tokens.pre_tokenizer", {"tokenizer.ggml.pre": "llama-bpe"}),
    "a pre-tokenizer that is not known": ("loaded", {"tokenizer.ggml.pre": "no-such"}),
    # unsloth 468: never ending generations, eos_token was <|end_of_text|>
    "another end": ("special.end_of_turn", {"tokenizer.ggml.eos_token_id": 258}),
    # llama-cpp-python 1501: a beginning of text that the tokenizer does not add
    "a beginning that is added": ("special.added", {"tokenizer.ggml.add_bos_token": True}),
    "another template": ("template.other", {"tokenizer.chat_template": OTHER_TEMPLATE}),
    "no template": ("template.missing", {"tokenizer.chat_template": None}),
}


@pytest.mark.parametrize("case", TEXTS)
def test_text_in_a_gguf_is_that_of_the_folder(case: str, tools: Toolchain, tmp_path: Path) -> None:
    key, fields = TEXTS[case]
    folder = byte_folder(tmp_path / "folder")
    for file in folder.iterdir():
        file.write_text(renamed(file.read_text(encoding="utf-8")), encoding="utf-8")
    # a merge of two digits, which only some pre-tokenizers let happen
    model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    model["vocab"] = {"12" if word == "ll" else word: number for word, number in model["vocab"].items()}
    change_json(folder / "tokenizer.json", model=model | {"merges": [["h", "e"], ["1", "2"]]})
    words = [*BYTE_LETTERS, "he", "12", "<|endoftext|>", "<|open|>", "<|stop|>"]
    ours = {
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.merges": ["h e", "1 2"],
        "tokenizer.chat_template": (folder / "chat_template.jinja").read_text(encoding="utf-8"),
    }
    changed = {name.replace(".", "__"): value for name, value in (ours | fields).items()}
    gguf = tiny_gguf(tmp_path / "tiny.gguf", **changed)
    checks = judged(need_files(None, None, folder, [gguf]), tools)
    assert failed(checks)[:1] == ([key] if key else []), checks
    assert not any("snakemake" in check.remedy or "stage" in check.remedy for check in checks)


def test_a_template_that_prints_the_date_is_a_warning(tools: Toolchain, tmp_path: Path) -> None:
    """As Llama 3.2's, which takes llama-server's date and has one of its own without."""
    dated = "{%- if not date_string is defined %}{%- set date_string = '26 Jul 2024' %}{%- endif %}\n"
    template = f"{dated}Today is {{{{ date_string }}}}.\n{CHATML}"
    folder = byte_folder(tmp_path / "folder", template)
    gguf = tiny_gguf(tmp_path / "tiny.gguf", tokenizer__chat_template=template)
    checks = judged(need_files(None, None, folder, [gguf]), tools)
    assert not failed(checks) and "template.date" in [check.key for check in checks]


def renamed(text: str) -> str:
    """ChatML under names by which llama.cpp knows no end of turn."""
    return text.replace("im_end", "stop").replace("im_start", "open")


def test_a_beginning_of_text_that_comes_twice_is_a_warning(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(byte_folder(tmp_path / "folder"))
    of_file: Any = text.Text(tokenizer, tmp_path, tmp_path, None, None)  # type: ignore[arg-type]

    def ids(written: str) -> list[int]:
        return [259, *tokenizer(written, add_special_tokens=False)["input_ids"]]

    assert text.bos_check(of_file, ids, "").key == "bos.doubled"
    assert text.bos_check(of_file, lambda written: ids(written)[1:], "").verdict == "pass"


def test_answers_end_or_do_not(tools: Toolchain, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(byte_folder(tmp_path / "folder"))
    for stops, key in ((True, "ends"), (False, "ends.none")):
        gguf = rigged(tmp_path / "tiny.gguf", stops=stops)
        assert outputs.ends_check(gguf, tokenizer, Llama(tools)).key == key


def test_a_file_that_cant_be_run_leaves_the_verdicts_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (tmp_path / name for name in ("first.gguf", "second.gguf"))
    verdicts = iter([Check("", "pass", "near")])
    monkeypatch.setattr(outputs, "plain_model", lambda *_: None)
    monkeypatch.setattr(outputs, "prompts_of", lambda _: [])
    monkeypatch.setattr(outputs, "kept_logits", lambda *_: nullcontext())
    monkeypatch.setattr(outputs, "gguf_check", lambda *_: next(verdicts, None) or torch.zeros(2).view(3))
    files = Files(tmp_path, None, None, (first, second))
    header = Header({}, {})
    checks = outputs.output_checks(files, dict.fromkeys(files.ggufs, header), None, None, tmp_path)  # type: ignore[arg-type]
    assert [checks[path].verdict for path in (first, second)] == ["pass", "not measured"]
    assert checks[second].sentence.startswith("the base can't be run (shape '[3]' is invalid")


# --- the command ---


def test_what_is_named_wrongly_is_refused_by_its_id(models: Path, tmp_path: Path) -> None:
    base = str(models / "base")
    adapter = models / "adapter"
    quantized = Path(shutil.copytree(models / "base", tmp_path / "quantized"))
    change_json(quantized / "config.json", quantization_config={"quant_method": "bitsandbytes"})
    (tmp_path / "no.gguf").write_bytes(b"no")
    named: dict[str, tuple[str | None, Path | None, Path | None, list[Path]]] = {
        "Q-JUDGE-015": (base, None, None, []),
        "Q-JUDGE-016": (base, models, None, []),
        "Q-JUDGE-017": (str(quantized), adapter, None, []),
        "Q-JUDGE-002": (base, adapter, None, [tmp_path / "no.gguf"]),
    }
    for number, values in named.items():
        with pytest.raises(QuenchError) as refused:
            need_files(*values)
        assert refused.value.id == number
    with pytest.raises(QuenchError, match="Q-JUDGE-016"):
        need_files("nobody/nothing", adapter, None, [])
    assert inputs.base_folder(base) == models / "base"


def test_the_command_ends_with_the_first_that_differs(models: Path) -> None:
    line = ("judge", "--base", models / "base", "--adapter", models / "adapter", "--merged")
    done = quench(*line, models / "merged")
    assert done.exit_code == 0 and done.stdout.endswith("No hand-over differs: 2 equal.\n")
    done = quench(*line, models / "base", "--json")
    report = json.loads(done.stdout)
    assert done.exit_code == 5 and report["first"] == "merged.absent"
    assert [check["verdict"] for check in report["checks"]] == ["pass", "fail"]
    assert quench("judge", "a.gguf", "--base", "b").exit_code == 2


@pytest.mark.parametrize("architecture", ["Gemma3ForCausalLM", "Olmo3ForCausalLM"])
@pytest.mark.parametrize(("asked", "keys"), [("linear", []), ("yarn", ["settings.rope"])])
def test_positions_are_stretched_as_in_layers_without_a_window(
    architecture: str, asked: str, keys: list[str]
) -> None:
    """A Gemma 3 of 4B or more and an OLMo 3, whose config.json has the two kinds of layers apart."""
    config = {
        "architectures": [architecture],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            "full_attention": {"rope_type": asked, "factor": 8.0, "rope_theta": 1e6},
        },
    }
    family = known_family(config).name
    model = Model(Path(), config, "the base", {}, {}, exact=True)
    fields = gguf_settings(config) | {
        f"{family}.rope.scaling.type": "linear",
        f"{family}.rope.scaling.factor": 8.0,
    }
    assert failed(list(different_settings(model, Header(fields, {}), ""))) == keys


def test_another_context_is_a_warning(models: Path, tmp_path: Path) -> None:
    gguf = gguf_of(models / "base", tmp_path / "model.gguf")
    change_fields(gguf, {"llama.context_length": 32})
    files = Files(models / "base", None, None, (gguf,))
    checks = command.weights_and_settings(files, None, {gguf: read_header(gguf)})
    assert [check.key for check in checks] == ["weights", "settings.context"]


# --- all of it ---


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Base with a tokenizer of bytes, adapter, merged folder, and of both folders a GGUF. Read only."""
    root = tmp_path_factory.mktemp("whole")
    ends = {"bos_token_id": 259, "eos_token_id": 260, "pad_token_id": 260}
    base = base_in(root, vocab_size=261, max_position_embeddings=256, **ends)
    adapter = merging.write_adapter(base, root / "adapter", **FULL)
    merged = peft_merge(base, adapter, root / "merged")
    text_of = byte_folder(root / "text")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        for folder in (base, adapter, merged):
            shutil.copy(text_of / name, folder)
    vocabulary = {
        name: value
        for name, value in read_header(tiny_gguf(root / "tiny.gguf")).fields.items()
        if name.startswith("tokenizer.") and not isinstance(value, bool)
    }
    for name, folder in (("my-model-Q8_0", base), ("merged-Q8_0", merged)):
        fields = vocabulary | {"general.file_type": 7}
        gguf_of(folder, root / f"{name}.gguf", Q8_0, **{k.replace(".", "__"): v for k, v in fields.items()})
    return root


def test_a_sound_chain_is_equal_to_its_end(whole: Path, tools: Toolchain) -> None:
    files = need_files(str(whole / "base"), whole / "adapter", whole / "merged", [whole / "merged-Q8_0.gguf"])
    checks = {check.key: check for check in command.judged(files, Llama(tools), files_only=False)}
    verdicts = {key: check.verdict for key, check in checks.items()}
    assert set(verdicts.values()) == {"pass", "warn"}, checks
    # a random model ends no answer
    assert [key for key, verdict in verdicts.items() if verdict == "warn"] == ["ends.none"]
    assert {"adapter", "merged", "weights", "settings", "loaded", "tokens", "special"} <= verdicts.keys()
    assert {"template", "bos", "outputs"} <= verdicts.keys()


def test_other_weights_are_seen_in_what_the_file_says(whole: Path, tools: Toolchain) -> None:
    gguf = whole / "my-model-Q8_0.gguf"
    files = need_files(str(whole / "base"), whole / "adapter", None, [gguf])
    checks = command.judged(files, Llama(tools), files_only=False)
    assert failed(list(checks)) == ["weights.absent", "outputs.level"]


def test_the_example_in_the_docs_is_what_is_printed(
    whole: Path, tools: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(whole)
    line = "judge --base base --adapter adapter --gguf my-model-Q8_0.gguf --files-only"
    done = quench(*line.split())
    assert done.exit_code == 5
    page = (PROJECT / "docs/judging.md").read_text(encoding="utf-8")
    keys = {key for key, *_ in (*MERGES.values(), *TEXTS.values()) if key}
    assert [key for key in keys if f"`{key}`" not in page] == []
    example = page.partition("```text\n")[2]
    assert example.partition("```")[0].split() == done.stdout.split(), done.stdout


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("judge --base base --gguf a.gguf --data chats.jsonl", "--data"),
        ("judge --merged merged --gguf a.gguf --scorer rouge_l", "--scorer"),
        ("judge --merged merged --gguf a.gguf --threads 2", "--threads"),
        ("judge a.gguf --files-only", "--files-only"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(
    line: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = quench(*line.split())
    assert done.exit_code == 2
    assert f"{option} is for" in " ".join(done.stderr.split())
