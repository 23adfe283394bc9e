"""base: four sources give one checked folder and its record; what is unsafe, torn or out of reach is one
sentence.
"""

import codecs
import json
import math
import os
import shutil
import struct
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import pytest
import tiny
import yaml
from draws import SHARE, draws, some
from fake_hub import COMMIT, REPO, digests, fake_hub, hub_here
from gguf_edit import change_rows, change_tensors
from hypothesis import given, settings
from hypothesis import strategies as st
from make import ended
from qwen2_variants import change_json
from safetensors.numpy import load_file, save_file
from shaped_gguf import shaped, written
from tokenizer_folders import bent_folders

from pipeline.chat.tokens import load_tokenizer
from pipeline.config.sections import Base, Quantize
from pipeline.core.errors import ConfigError, DataError, MachineError, QuenchError
from pipeline.gguf.header import NotGguf, read_header
from pipeline.gguf.tensors import gguf_tensors
from pipeline.llamacpp.tools import load_binding, run_tool
from pipeline.stages.base.hf_folder import read_license
from pipeline.stages.base.stage import base


@pytest.fixture(scope="session")
def llama_folder(gguf_file, tools, tmp_path_factory):
    """The same model as a Hugging Face folder of 40 KB."""
    folder = tmp_path_factory.mktemp("llama") / "hf"
    base(Base(model=str(gguf_file)), target=folder, record=folder.with_suffix(".json"))
    return folder


@pytest.fixture
def folder(llama_folder, tmp_path):
    """A copy of the tiny folder, to spoil."""
    return Path(shutil.copytree(llama_folder, tmp_path / "source"))


@pytest.fixture
def bring(tmp_path):
    """Run the stage into tmp_path; the facts it recorded."""

    def run(model, **more):
        target, record = tmp_path / "models" / "base", tmp_path / "models" / "base.json"
        chosen = Base(model=str(model), **more)
        facts = base(chosen, target=target, record=record, root=tmp_path)
        assert json.loads(record.read_text(encoding="utf-8")) == facts
        assert facts["files"] == digests(target)
        assert sorted(path.name for path in target.parent.iterdir()) == ["base", "base.json"]
        return facts

    return run


# --- the four sources ---

ENDS = ("bos", "eos", "pad")


def test_a_folder_is_copied_file_by_file_and_recorded(whole_qwen2, bring, tmp_path):
    facts = bring(whole_qwen2)
    added = [*tiny.QWEN_ADDED]
    assert facts["files"] == digests(whole_qwen2)
    assert facts["architecture"] == {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    assert (facts["vocab_size"], facts["added_tokens"], facts["dtype"]) == (151_936, added, "bfloat16")
    assert [facts[f"{name}_token"] for name in ENDS] == [None, "<|im_end|>", "<|endoftext|>"]
    # embeddings (tied), 2 layers of q, k, v with biases, o, gate, up, down, two norms, and the last norm
    layer = 2 * (256 * 256) + 2 * 256 * 128 + 256 + 2 * 128 + 3 * 256 * 256 + 2 * 256
    assert facts["parameters"] == 151_936 * 256 + 2 * layer + 256
    with (tmp_path / "models" / "base" / "config.json").open("a") as file:
        file.write(" ")
    assert facts["files"] == digests(whole_qwen2)  # which a write into models/base did not reach


def test_nothing_that_runs_or_is_pickled_is_copied(folder, bring):
    wanted = {"LICENSE", "README.md", *(path.name for path in folder.iterdir())}
    for name in (
        "modeling_x.py",
        "pytorch_model.bin",
        "optimizer.pt",
        "consolidated.safetensors",
        "notes.txt",
    ):
        (folder / name).write_bytes(b"x")
    (folder / "original").mkdir()
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# Model\n")
    (folder / "LICENSE").write_text("MIT\n")
    facts = bring(folder)
    assert set(facts["files"]) == wanted and len(wanted) == 8
    assert facts["license"] == "mit"


# ten to the ninth texts
TENFOLD = (f"a{level}: &a{level} [{f'*a{level - 1}, ' * 9}x]" for level in range(1, 9))
ALIASES = "\n".join([f"a0: &a0 [{'x, ' * 9}x]", *TENFOLD])


@pytest.mark.parametrize(
    ("front", "license"),
    [
        ("license: mit", "mit"),
        ("tags: [a, b]\nlicense: apache-2.0\nmodel-index: [{name: x}]", "apache-2.0"),
        ("license: [mit, gpl]", None),
        ("license: {a: b}", None),
        (f"{ALIASES}\nlicense: *a8", None),
        ("tags: " + "[" * 5000 + "\nlicense: mit", None),
        ("x: " + "y" * (1 << 17) + "\nlicense: mit", None),
    ],
    ids=["plain", "among others", "a list", "a mapping", "aliases of aliases", "deep", "beyond its bound"],
)
def test_a_models_card_names_its_license_and_costs_nothing(
    tmp_path: Path, front: str, license: str | None
) -> None:
    (tmp_path / "README.md").write_text(f"---\n{front}\n---\n# Model\n")
    assert read_license(tmp_path / "README.md") == license


def test_a_card_that_is_a_named_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "README.md")
    assert read_license(tmp_path / "README.md") is None


def test_a_gguf_becomes_a_folder_whose_logits_are_llama_cpps(gguf_file, bring, tmp_path, tools):
    import torch
    from transformers import AutoModelForCausalLM

    facts = bring(gguf_file)
    assert (facts["dtype"], facts["license"], facts["vocab_size"]) == ("float16", "apache-2.0", 261)
    assert [facts[f"{name}_token"] for name in ENDS] == ["<|im_start|>", "<|im_end|>", "<|im_end|>"]
    generation = json.loads((tmp_path / "models" / "base" / "generation_config.json").read_text())
    assert [generation[f"{name}_token_id"] for name in ENDS] == [259, 260, 260]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "models" / "base", dtype=torch.float32)
    ids = list(range(100, 140))
    with torch.no_grad():
        ours = model(torch.tensor([ids])).logits[0, -1].numpy()
    np.testing.assert_allclose(ours, llama_cpp_logits(gguf_file, ids, tools), atol=2e-3)


def llama_cpp_logits(file, ids, tools):
    llama = load_binding(tools).Llama(str(file), n_ctx=64, logits_all=True, verbose=False)
    llama.eval(ids)
    return llama.scores[len(ids) - 1]


@pytest.mark.parametrize(("inner", "refused"), [(144, True), (96, False)])
def test_a_base_of_which_no_level_could_pack_a_row_is_refused_here(tmp_path, inner, refused):
    """Rows of 80 and `inner` weights: 32 divides 96 only."""
    file = written(tmp_path / "odd.gguf", shaped(80, inner, tied=True, kv_heads=4))
    target, record = tmp_path / "models" / "base", tmp_path / "models" / "base.json"
    with pytest.raises(DataError, match="Q-GGUF-023") if refused else nullcontext():
        base(Base(model=str(file)), target=target, record=record, quantize=Quantize())
    assert target.exists() == record.exists() == (not refused)


def test_a_package_is_searched_without_running_its_code(gguf_file, bring, tmp_path, monkeypatch):
    site = tmp_path / "site"
    (site / "tinypack").mkdir(parents=True)
    (site / "tinypack" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    shutil.copy(gguf_file, site / "tinypack" / "tiny.gguf")
    info = site / "tiny_pack-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-pack\nVersion: 1.0\n")
    (info / "RECORD").write_text("tinypack/__init__.py,,\ntinypack/tiny.gguf,,\n")
    monkeypatch.syspath_prepend(str(site))
    assert bring("tiny-pack", file="tiny.gguf")["source"] == "package"
    with pytest.raises(DataError, match="Q-BASE-009"):
        bring("tiny-pack", file="other.gguf")


def test_a_tokenizer_that_transformers_cuts_wrongly_is_repaired_or_refused(
    gguf_file, llama_folder, tools, tmp_path
):
    """transformers 5.23 uses GPT-2's pre-tokenizer for Llama GGUFs; SmolLM's splits digits (as llama.cpp)."""
    from tokenizers import Tokenizer

    from pipeline.stages.base.gguf_import import same_ids_as_llama_cpp

    rule = json.loads((llama_folder / "tokenizer.json").read_text())["pre_tokenizer"]
    assert rule["pretokenizers"][0] == {"type": "Digits", "individual_digits": True}
    tokenizer = Tokenizer.from_file(str(llama_folder / "tokenizer.json"))
    assert tokenizer.encode("hello").tokens == ["he", "ll", "o"]
    bad = Path(shutil.copytree(llama_folder, tmp_path / "bad"))
    change_json(bad / "tokenizer.json", pre_tokenizer={"type": "Whitespace"})
    with pytest.raises(DataError, match="Q-BASE-005"):
        same_ids_as_llama_cpp(gguf_file, tmp_path / "bad", tools, "<|im_end|>")


# --- one matrix, rounded twice ---


@pytest.fixture(scope="session")
def rounded_twice(tiny_gguf_base, tools, tmp_path_factory):
    """The tiny Qwen2, whose one matrix for head and embeddings is stored as Q8_0 and as Q5_0."""
    folder = tmp_path_factory.mktemp("rounded")
    whole = Path(shutil.copy(tiny_gguf_base, folder / "whole.gguf"))
    change_tensors(whole, lambda tensors: tensors | {"output.weight": tensors["token_embd.weight"]})
    types = ["--output-tensor-type", "q8_0", "--token-embedding-type", "q5_0"]
    run_tool([tools.tool("llama-quantize"), *types, whole, folder / "tiny.gguf", "Q8_0"])
    return folder / "tiny.gguf"


def test_a_matrix_rounded_twice_is_unpacked_once_with_the_finer_values(
    rounded_twice, bring, tmp_path, tools, capsys
):
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    facts, tensors = bring(rounded_twice), gguf_tensors(rounded_twice)[1]
    head, embeddings = tensors["output.weight"], tensors["token_embd.weight"]
    farthest = facts["tied"].pop("farthest_row")
    kept = {"kept": "output.weight", "kept_type": "Q8_0"}
    assert facts["tied"] == kept | {"dropped": "token_embd.weight", "dropped_type": "Q5_0"}
    assert 0.01 < farthest < 0.07 and "base.tie" in capsys.readouterr().out
    assert facts["parameters"] == read_header(rounded_twice).parameters - tiny.ROWS * 256
    weights = load_file(tmp_path / "models/base/model.safetensors")
    assert "lm_head.weight" not in weights
    table = weights["model.embed_tokens.weight"].float().numpy()
    np.testing.assert_allclose(table, head.values(0, tiny.ROWS), rtol=1e-3, atol=1e-6)
    assert not np.allclose(table, embeddings.values(0, tiny.ROWS), rtol=1e-3, atol=1e-6)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "models/base", dtype=torch.float32)
    assert model.lm_head.weight is model.get_input_embeddings().weight
    ids = list(range(100, 140))
    with torch.no_grad():
        ours = model(torch.tensor([ids])).logits[0, -1].numpy()
    np.testing.assert_allclose(ours, llama_cpp_logits(rounded_twice, ids, tools), atol=0.1)


def another_row(rows):
    """One row is that of another token."""
    return np.concatenate([rows[:7], rows[8:9], rows[8:]])


@pytest.mark.parametrize("change", ["kept", "a row"])
def test_a_head_of_its_own_stays_one(rounded_twice, bring, tmp_path, change):
    file = Path(shutil.copy(rounded_twice, tmp_path / "own.gguf"))
    if change == "a row":
        change_rows(file, "output.weight", another_row)
    facts = bring(file, tie="keep" if change == "kept" else "auto")
    assert facts["tied"] is None
    assert facts["parameters"] == read_header(file).parameters
    assert not json.loads((tmp_path / "models/base/config.json").read_text())["tie_word_embeddings"]


# --- the hub ---


@pytest.fixture
def hub(llama_folder, monkeypatch):
    with hub_here(llama_folder, monkeypatch) as server:
        yield server


@pytest.mark.slow
def test_the_hub_is_asked_through_hf_endpoint_by_the_stage_itself(llama_folder, tmp_path):
    params = tiny.tiny_params(llama_folder)
    params["base"] |= {"model": REPO, "revision": COMMIT, "file": None}
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(params))
    with fake_hub(llama_folder) as server:
        env = {**os.environ, "HF_ENDPOINT": server.url, "HF_HUB_OFFLINE": "0"}
        words = ["base", "--root", str(tmp_path), "--params", str(tmp_path / "other.yaml")]
        done = ended([sys.executable, "-m", "pipeline", *words], env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 2
    assert digests(tmp_path / "models" / "base") == digests(llama_folder)
    assert json.loads((tmp_path / "models" / "base.json").read_text())["revision"] == COMMIT


def test_only_safe_files_are_fetched(hub, bring):
    for name in ("pytorch_model.bin", "modeling_x.py", "training_args.pt", "onnx/model.safetensors"):
        hub.files[name] = hub.listed[name] = b"never"
    facts = bring(REPO, revision=COMMIT)
    safe = {name for name in hub.files if hub.files[name] != b"never"}
    assert {name for name, _ in hub.served} == set(facts["files"]) == safe


def test_a_broken_download_goes_on_where_it_stopped(hub, bring, llama_folder, tmp_path):
    hub.broken["model.safetensors"] = 20_480
    with pytest.raises(MachineError, match="Q-BASE-021"):
        bring(REPO, revision=COMMIT)
    assert not (tmp_path / "models" / "base").exists()
    hub.broken.clear()
    hub.served.clear()
    assert bring(REPO, revision=COMMIT)["files"] == digests(llama_folder)
    assert hub.served == [("model.safetensors", 20_480)]  # the rest


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_file_that_differs_from_the_listing_is_thrown_away_and_fetched_again(hub, bring, name):
    good = hub.files[name]
    hub.files[name] = good[:-1] + bytes([good[-1] ^ 1])
    with pytest.raises(DataError, match="Q-BASE-022"):
        bring(REPO, revision=COMMIT)
    hub.files[name] = good
    bring(REPO, revision=COMMIT)


@pytest.mark.parametrize(
    ("refusal", "error", "code", "words"),
    [
        ((404, "RepoNotFound"), DataError, 3, "the hub shows no model"),
        ((401, "RepoNotFound"), DataError, 3, "log in with `hf auth login`"),
        ((403, "GatedRepo"), DataError, 3, "is gated: accept its terms"),
        ((404, "RevisionNotFound"), DataError, 3, f"has no commit {COMMIT}"),
        ((400, ""), MachineError, 6, "can't be fetched from the hub"),
    ],
)
def test_a_refusing_hub_is_one_sentence(hub, bring, refusal, error, code, words):
    hub.refusal = refusal
    with pytest.raises(error, match=words) as raised:
        bring(REPO, revision=COMMIT)
    assert raised.value.exit_code == code
    assert "\n" not in str(raised.value)


def test_a_hub_out_of_reach_is_the_environments_fault(hub, bring):
    hub.shutdown()
    hub.server_close()
    with pytest.raises(MachineError, match="Q-BASE-021"):
        bring(REPO, revision=COMMIT)


def test_a_hub_name_that_is_none_is_a_config_error(hub, bring):
    with pytest.raises(ConfigError, match="Q-BASE-017"):
        bring("a/b/c", revision=COMMIT)


OWN_CODE = {"model_type": "its_own", "auto_map": {"AutoModel": "modeling_x.X"}}
EXPERTS = {"model_type": "gpt_oss", "num_local_experts": 128}


@pytest.mark.parametrize(
    ("config", "file", "id"),
    [
        (OWN_CODE, None, "Q-BASE-010"),
        (EXPERTS, None, "Q-MODELS-010"),
        ({}, None, "Q-BASE-006"),  # pickles only
        ({}, "Q4/tiny.gguf", "Q-BASE-008"),
        ({}, "model.gguf", "Q-MODELS-010"),  # of a mixture, as the hub says
    ],
)
def test_what_is_refused_is_not_fetched(hub, bring, config, file, id):
    own = json.dumps(json.loads(hub.files["config.json"]) | config).encode()
    hub.files["config.json"] = hub.listed["config.json"] = own
    chosen = {"file": file, "quantization": "gguf"} if file else {}
    if file:
        hub.files[file] = hub.listed[file] = b"GGUF"
        hub.gguf = {"architecture": "granitemoe" if file == "model.gguf" else "llama"}
    elif not config:
        hub.listed["pytorch_model.bin"] = hub.listed.pop("model.safetensors")
    with pytest.raises(DataError, match=id):
        bring(REPO, revision=COMMIT, **chosen)
    assert [name for name, _ in hub.served] == ["config.json"] * bool(config)


@pytest.mark.parametrize("source", ["hub", "folder"])
def test_a_broken_template_is_refused_before_the_weights(hub, bring, folder, tmp_path, monkeypatch, source):
    broken = b"{% for m in messages %}{{ m.content }"
    monkeypatch.setattr("pipeline.stages.base.chats.EARLY_BYTES", 0)
    monkeypatch.setattr(shutil, "copyfile", lambda *_: pytest.fail("a file was copied"))
    hub.files["chat_template.jinja"] = hub.listed["chat_template.jinja"] = broken
    (folder / "chat_template.jinja").write_bytes(broken)
    with pytest.raises(DataError, match="Q-BASE-037"):
        bring(REPO, revision=COMMIT) if source == "hub" else bring(folder)
    assert "model.safetensors" not in {name for name, _ in hub.served}


@pytest.mark.parametrize("source", ["hub", "folder"])
def test_a_base_for_texts_alone_says_so_before_the_weights(hub, bring, folder, capsys, monkeypatch, source):
    """Whoever has chats can stop it there: what it says is printed before a file of weights is taken."""
    monkeypatch.setattr("pipeline.stages.base.chats.EARLY_BYTES", 0)
    hub.files["chat_template.jinja"] = hub.listed["chat_template.jinja"] = b"hello"
    (folder / "chat_template.jinja").write_bytes(b"hello")
    hub.broken["model.safetensors"] = 20_480
    monkeypatch.setattr(shutil, "copyfile", lambda *_: (folder / "gone").stat())
    with pytest.raises((MachineError, OSError)):
        bring(REPO, revision=COMMIT) if source == "hub" else bring(folder)
    said = capsys.readouterr().out
    assert (REPO if source == "hub" else str(folder)) in said
    assert "no chat can be trained on" in said and "Ctrl-C" in said


# --- refusals of a folder ---


def drop(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


def edit(name, **values):
    return lambda folder: change_json(folder / name, **values)


def put(name, data):
    return lambda folder: (folder / name).write_bytes(data)


def doubling(times, then=0, by=2):
    twice = {"type": "Replace", "pattern": {"String": "l"}, "content": "l" * by}
    same = {"type": "Replace", "pattern": {"Regex": "l"}, "content": "l"}
    return {"type": "Sequence", "normalizers": [twice] * times + [same] * then}


INDEX = "model.safetensors.index.json"


WITH_SPACE = {
    "add_prefix_space": True,
    "trim_offsets": True,
    "use_regex": True,
}  # how no model of llama.cpp splits


def ends_apart(folder):
    """Without a template nothing shows which end is right."""
    edit("generation_config.json", eos_token_id=258)(folder)
    drop("chat_template.jinja")(folder)


def endless(folder):
    """Neither the settings nor a template show an end."""
    edit("tokenizer_config.json", eos_token=None)(folder)
    drop("chat_template.jinja")(folder)


def few_rows(folder):
    """The embeddings, which are the head too, have fewer rows than there are tokens."""
    edit("config.json", vocab_size=200)(folder)
    tensors = load_file(folder / "model.safetensors")
    rows = {name: value[:200].copy() for name, value in tensors.items() if len(value) == 261}
    save_file(tensors | rows, folder / "model.safetensors", {"format": "pt"})


def adapter_in(file):
    """As Axolotl's folder of outputs, which has a config.json."""

    def spoil(folder):
        (folder / "model.safetensors").rename(folder / file)
        (folder / "adapter_config.json").write_text("{}")

    return spoil


def authors_form(folder):
    (folder / "model.safetensors").rename(folder / "consolidated.safetensors")


def pickled(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def unlinked(folder):
    """A copy of the hub's cache whose links lead nowhere."""
    drop("model.safetensors")(folder)
    (folder / "model.safetensors").symlink_to("../../blobs/0123")


def without_default(folder):
    template = (folder / "chat_template.jinja").read_text()
    drop("chat_template.jinja")(folder)
    names = [{"name": name, "template": template} for name in ("chat", "tool_use")]
    edit("tokenizer_config.json", chat_template=names)(folder)


@pytest.mark.base_refused("Files of pickles (`.bin`) only", "Q-BASE-006")
@pytest.mark.base_refused("A type of which Transformers has no causal language model", "Q-BASE-010")
@pytest.mark.base_refused("AWQ, GPTQ, FP8, 8 bit: files that are quantized already", "Q-BASE-011")
@pytest.mark.base_refused("A tokenizer with more tokens than the model has rows", "Q-BASE-013")
@pytest.mark.base_refused("An architecture that llama.cpp's converter does not know", "Q-LLAMACPP-012")
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (pickled, "Q-BASE-006.*pytorch_model.bin"),
        (drop("model.safetensors"), "Q-BASE-006"),
        (authors_form, "Q-BASE-006.*author's own form"),
        (adapter_in("adapter_model.safetensors"), "Q-BASE-007.*LoRA adapter"),
        (adapter_in("adapter_model.bin"), "Q-BASE-007.*LoRA adapter"),
        (unlinked, "Q-BASE-027.*cp -rL"),
        (without_default, "Q-BASE-037.*chat and tool_use"),
        (drop("tokenizer.json"), "Q-BASE-007"),
        (drop("config.json"), "Q-BASE-007"),
        (edit("config.json", model_type="its_own", auto_map={"AutoModel": "x.X"}), "Q-BASE-010.*auto_map"),
        (edit("config.json", model_type="vit"), "Q-BASE-010"),
        (edit("config.json", num_local_experts=8), "Q-MODELS-010"),
        (edit("config.json", quantization_config={"quant_method": "gptq"}), "Q-BASE-011"),
        (edit("config.json", quantization={"bits": 4}), "Q-BASE-011.*MLX"),
        (edit("config.json", quantization={"bits": 4}, quantization_config={"bits": 4}), "Q-BASE-011.*MLX"),
        (edit("config.json", compression_config={"quant_method": "fp8"}), "Q-BASE-011.*fp8"),
        (ends_apart, "Q-BASE-014"),
        (endless, "names no end-of-turn token"),
        (put("chat_template.jinja", b"{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}"), "Q-CHAT-008"),
        (put("chat_template.jinja", b"{{ messages"), "Q-BASE-037"),
        (edit("tokenizer.json", normalizer=doubling(3, by=9999)), "Q-CHAT-009.*GB of memory"),
        (edit("tokenizer.json", normalizer=doubling(12)), "Q-CHAT-009"),
        (edit("tokenizer.json", normalizer=doubling(14, then=1000)), "Q-CHAT-009.*more than 5 s"),
        (few_rows, "Q-BASE-013"),
        (put("config.json", b"{"), "Q-BASE-016"),
        (edit("config.json", architectures=None), "Q-BASE-016.*LlamaForCausalLM"),  # no converter knows it
        (edit("config.json", architectures=["OPTForCausalLM"]), "Q-LLAMACPP-012.*OPTForCausalLM"),  # nor this
        (edit("tokenizer.json", pre_tokenizer={"type": "ByteLevel", **WITH_SPACE}), "Q-LLAMACPP-012"),
        (put("tokenizer.json", b"{}"), "Q-BASE-012"),
        (put("model.safetensors", b"\xff" * 64), "Q-BASE-015"),
        (put(INDEX, b'{"weight_map": {"a": "model-00002-of-00002.safetensors"}}'), "Q-BASE-015"),
        (shutil.rmtree, "Q-BASE-026"),
    ],
)
def test_a_folder_that_is_no_safe_whole_chat_model_is_one_sentence_and_changes_nothing(
    folder, bring, llama_folder, tmp_path, spoil, words
):
    before = bring(llama_folder)
    spoil(folder)
    with pytest.raises(DataError, match=f"(?s){words}") as raised:
        bring(folder)
    assert "\n" not in str(raised.value)
    assert ".base.writing" not in str(raised.value)
    assert digests(tmp_path / "models" / "base") == before["files"]
    assert json.loads((tmp_path / "models" / "base.json").read_text()) == before


def test_a_template_s_byte_order_mark_is_taken_off(folder, bring, tmp_path):
    file = folder / "chat_template.jinja"
    template = file.read_bytes()
    file.write_bytes(codecs.BOM_UTF8 + template)
    bring(folder)
    assert (tmp_path / "models/base/chat_template.jinja").read_bytes() == template


def test_settings_that_are_no_numbers_of_tokens_end_nothing(folder, bring, tmp_path):
    edit("generation_config.json", eos_token_id=[math.nan, "</s>"])(folder)
    edit("tokenizer_config.json", eos_token=None, own=math.nan)(folder)
    bring(folder)
    generation = json.loads((tmp_path / "models/base/generation_config.json").read_text())
    assert generation["eos_token_id"] == [load_tokenizer(tmp_path / "models/base").eos_token_id]


@pytest.mark.slow
def test_a_bent_folder_is_a_sentence_or_the_same_model(llama_folder, bring, tmp_path):
    facts, tried, accepted = bring(llama_folder), 0, 0
    for what, file, bent in some(bent_folders()):
        source = Path(shutil.copytree(llama_folder, tmp_path / f"bent{tried}"))
        if isinstance(bent, dict):
            bent = json.dumps(json.loads((source / file).read_bytes()) | bent).encode()
        (source / file).write_bytes(bent)
        tried += 1
        try:
            found = bring(source)
        except QuenchError:
            continue
        except BaseException as error:
            pytest.fail(f"{what}: {error!r}")
        accepted += 1
        assert (found["parameters"], found["vocab_size"]) == (facts["parameters"], 261), what
    assert tried > 280 // SHARE and accepted < tried / 2


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (drop("chat_template.jinja"), "has no chat template"),
        (put("chat_template.jinja", b"hello"), "no chat can be trained on"),
        (
            put(
                "chat_template.jinja",
                b"{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}",
            ),
            "opens no answer",
        ),
    ],
)
def test_a_base_for_texts_alone_is_taken_and_says_why(folder, bring, capsys, spoil, why):
    """Only stage curate knows whether there are chats."""
    spoil(folder)
    facts = bring(folder)
    assert why in facts["no_chats"] and str(folder) in facts["no_chats"]
    assert why in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"tokenizer__chat_template": None}, "has no chat template"),
        ({"tokenizer__chat_template": "hello"}, "no chat can be trained on"),
    ],
)
def test_a_gguf_for_texts_alone_is_taken_and_says_why(bring, tmp_path, changed, why):
    assert why in bring(tiny.tiny_gguf(tmp_path / "tiny.gguf", **changed))["no_chats"]


def test_a_template_in_the_file_of_a_processor_is_the_tokenizers(folder, bring, tmp_path):
    """transformers 4 wrote it there for models that read images, and tokenizers look elsewhere."""
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    assert "no_chats" not in bring(folder)
    assert load_tokenizer(tmp_path / "models/base").chat_template == template


def test_a_tokenizer_of_the_authors_code_is_read_as_the_refusal_says(folder, bring):
    change_json(
        folder / "tokenizer_config.json",
        tokenizer_class="OwnTokenizer",
        auto_map={"AutoTokenizer": ["x.X", None]},
    )
    with pytest.raises(DataError, match=r"Q-BASE-012.*OwnTokenizer.*PreTrainedTokenizerFast"):
        bring(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["auto_map"]
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    bring(folder)


def test_a_base_for_chats_says_nothing_of_texts(folder, bring):
    assert "no_chats" not in bring(folder)


def test_a_missing_generation_config_is_written_from_the_tokenizer(folder, bring, tmp_path):
    (folder / "generation_config.json").unlink()
    bring(folder)
    written = json.loads((tmp_path / "models" / "base" / "generation_config.json").read_text())
    assert written == {"bos_token_id": 259, "eos_token_id": 260, "pad_token_id": 260}


# --- foreign GGUF files ---


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"split__count": 3}, "Q-MODELS-004"),
        ({"general__type": "adapter", "llama__block_count": None}, "Q-MODELS-003.*a LoRA adapter"),
        ({"general__type": "mmproj"}, "Q-MODELS-003.*reads images or sound"),
        ({"general__type": "imatrix"}, "Q-MODELS-003.*importance matrix"),
        ({"split__count": 3, "tokenizer__ggml__tokens": None}, "Q-MODELS-004"),  # not the first part
        ({"llama__expert_count": 8}, "Q-BASE-029"),  # a Mixtral
        ({"llama__block_count": 2_000_000_000}, "Q-MODELS-001"),
        ({"llama__rope__scaling__type": "yarn"}, "Q-MODELS-005"),
        ({"tokenizer__ggml__eos_token_id": None}, "Q-BASE-001"),
        ({"tokenizer__chat_template": "{{ messages * 10**10 }}"}, "Q-CHAT-008"),
        ({"llama__block_count": 2}, "Q-BASE-003"),
        ({"tensors": {"rope_freqs.weight": np.ones(4, np.float32)}}, "Q-MODELS-005"),
        ({"tensors": {"blk.0.attn_q.bias": np.ones(32, np.float32)}}, "Q-BASE-003.*18,720.*18,688"),
        ({"tensors": {"output_norm.weight": np.full(32, 1e6, np.float32)}}, "Q-BASE-004"),
    ],
)
def test_a_gguf_that_would_lose_something_is_refused(tmp_path, bring, changed, words):
    file = tiny.tiny_gguf(tmp_path / "odd.gguf", **changed)
    with pytest.raises(DataError, match=words):
        bring(file)
    assert not (tmp_path / "models" / "base").exists()


def array(name, kind):
    """A header whose one field is an array of 2^62 values of a type."""
    field = struct.pack("<Q", len(name)) + name + struct.pack("<IIQ", 9, kind, 1 << 62)
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + field


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GGUF",
        b"GGML" + bytes(40),
        b"GGUF" + struct.pack("<IQQ", 9, 0, 0),
        # 43 bytes that make the reader of the gguf package loop: an array of 2^62 texts
        array(b"abc", 8)[:43],
        array(b"a", 8),
        array(b"a", 9),
        b"GGUF" + struct.pack("<IQQ", 3, 1 << 62, 1 << 62),
    ],
)
def test_a_crafted_gguf_is_given_up_at_once(tmp_path, bring, data):
    (tmp_path / "bad.gguf").write_bytes(data)
    start = time.monotonic()
    with pytest.raises(DataError, match="Q-MODELS-001"):
        bring(tmp_path / "bad.gguf")
    assert time.monotonic() - start < 10


def test_a_pointer_in_the_place_of_a_gguf_says_what_fetches_it(tmp_path, bring):
    (tmp_path / "tiny.gguf").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    with pytest.raises(DataError, match=r"Q-BASE-043.*git lfs pull"):
        bring(tmp_path / "tiny.gguf")


def test_a_missing_or_cut_off_gguf_is_one_sentence(tmp_path, bring, gguf_file):
    with pytest.raises(DataError, match="Q-MODELS-002"):
        bring(tmp_path / "none.gguf")
    (tmp_path / "cut.gguf").write_bytes(gguf_file.read_bytes()[:-100])
    with pytest.raises(DataError, match="Q-MODELS-001"):
        bring(tmp_path / "cut.gguf")


@settings(max_examples=draws(200), deadline=2000)
@given(st.data())
def test_any_damage_to_a_header_is_found_or_harmless_in_bounded_time(tmp_path_factory, gguf_file, data):
    whole = gguf_file.read_bytes()
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, 8000))] = data.draw(st.integers(0, 255))
    file = tmp_path_factory.mktemp("fuzz") / "damaged.gguf"
    file.write_bytes(damaged[: data.draw(st.integers(1, len(whole)))])
    with suppress(NotGguf):
        read_header(file)
