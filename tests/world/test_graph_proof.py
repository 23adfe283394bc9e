"""Stage base proves, before a training, that llama.cpp computes an architecture as transformers does."""

import errno
import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, NoReturn

import pytest
from families import NEMOTRON
from huggingface_hub.utils import are_progress_bars_disabled
from safetensors import SafetensorError
from transformers import PreTrainedModel
from transformers.utils.logging import enable_progress_bar, is_progress_bar_enabled

from pipeline.core.errors import DataError, MachineError, ToolError
from pipeline.core.hashing import file_hash
from pipeline.gguf import families
from pipeline.llamacpp.converters import HeaderFields
from pipeline.llamacpp.tools import Toolchain
from pipeline.models.text_config import SAME_FOR_CONVERTER, WANTED_BY_CONVERTER
from pipeline.stages.base import graph_proof
from pipeline.stages.base.graph_proof import LIMIT, NotConvertedError, Proof, measured, need_same_graph
from pipeline.workflow.keys.imports import read_source

HEADER = HeaderFields("model")
SIZES: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
GEMMA_3N: dict[str, Any] = {
    "vocab_size_per_layer_input": 1024,
    "num_hidden_layers": 30,
    "num_kv_shared_layers": 10,
    "intermediate_size": [512] * 30,
    "laurel_rank": 16,
}
EXAONE = {"head_dim": 64, "sliding_window": 512, "sliding_window_pattern": 4}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 64}
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
# {model_type: what makes a small config.json of the family}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"head_dim": 128, "sliding_window": None},
    "ministral3": {"head_dim": 128},
    "qwen2": {},
    "qwen3": {"head_dim": 64},
    "qwen3_5_text": {
        "head_dim": 64,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
    },
    "gemma": {"head_dim": 64},
    "gemma2": {"head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 512},
    "gemma3_text": {
        "head_dim": 64,
        "query_pre_attn_scalar": 64,
        "sliding_window": 512,
        "num_hidden_layers": 6,
    },
    "gemma4_text": {
        "vocab_size_per_layer_input": 1024,
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 0,
        "final_logit_softcapping": 30.0,
    },
    "gemma4_unified_text": {
        "num_hidden_layers": 6,
        "final_logit_softcapping": 30.0,
        WANTED_BY_CONVERTER: None,
    },
    "exaone4": {"head_dim": 64, "sliding_window": None, "layer_types": ["full_attention"] * 4},
    "hunyuan_v1_dense": {"head_dim": 64},
    "cohere2": {"sliding_window": 512, "rotary_pct": 1.0},
    "cohere": {},
    "apertus": {},
    "ernie4_5": {"head_dim": 64},
    "arcee": {},
    "glm": {"head_dim": 64, "pad_token_id": 0},
    "seed_oss": {"head_dim": 64},
    "nemotron_h": NEMOTRON,
    "qwen2_moe": MIXTURE | {"shared_expert_intermediate_size": 256},
    "qwen3_moe": MIXTURE | {"head_dim": 64, "norm_topk_prob": True},
    "mixtral": {"num_local_experts": 4},
    "phi3": {"sliding_window": None, "pad_token_id": 0},
    "stablelm": {},
    "granite": {},
    "glm4": {"head_dim": 64},
    "olmo2": {},
    "olmo3": {"sliding_window": 512},
    "smollm3": {},
    "lfm2": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "falcon_h1": {"head_dim": 64, "mamba_d_ssm": 512, **MAMBA},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention", "mamba", "attention"],
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": 512,
        **MAMBA,
    },
}
# what a text part's config.json says in place of its class (`pipeline.models.text_config`)
WRITTEN = {"gemma4_unified_text": SAME_FOR_CONVERTER["Gemma4UnifiedForCausalLM"]}


def folder_of(kind: str, folder: Path, **settings: Any) -> Path:
    """Write the config.json of a small model of this type; return the folder."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    config = AutoConfig.for_model(kind, **SIZES | settings)
    config.architectures = [WRITTEN.get(kind, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind])]
    folder.mkdir()
    (folder / "config.json").write_text(config.to_json_string(use_diff=False), encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give every test a cache of its own."""
    monkeypatch.setenv("QUENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def raising(error: Exception) -> Callable[..., NoReturn]:
    """A function that raises this."""

    def call(*_: Any, **__: Any) -> NoReturn:
        raise error

    return call


def put_measured(monkeypatch: pytest.MonkeyPatch, proof: Proof) -> list[Path]:
    """Give this proof for every measurement; return the list of folders that are measured from now on."""
    asked: list[Path] = []

    def measure(folder: Path, tools: Toolchain) -> Proof:
        asked.append(folder)
        return proof

    monkeypatch.setattr(graph_proof, "measured", measure)
    return asked


@pytest.mark.slow
@pytest.mark.base_cells("graph", families="kind")
@pytest.mark.parametrize("kind", FAMILIES)
def test_llama_cpp_computes_the_family_as_transformers_does(
    kind: str, tools: Toolchain, tmp_path: Path
) -> None:
    proof = need_same_graph(folder_of(kind, tmp_path / "model", **FAMILIES[kind]), tools, HEADER)
    assert proof.difference is not None, proof.reason
    assert proof.difference < LIMIT / 2


def test_a_family_that_llama_cpp_computes_otherwise_is_refused(tools: Toolchain, tmp_path: Path) -> None:
    """llama.cpp lets an EXAONE 4 slide only if it has 64 layers."""
    folder = folder_of("exaone4", tmp_path / "model", **EXAONE)
    with pytest.raises(DataError, match="Q-BASE-056"):
        need_same_graph(folder, tools, HEADER)


def test_the_small_model_has_as_many_layers_as_the_base(tools: Toolchain, tmp_path: Path) -> None:
    folder = folder_of("exaone4", tmp_path / "model", **EXAONE | {"num_hidden_layers": 64})
    assert need_same_graph(folder, tools, HEADER).difference is not None


def test_a_small_model_that_cannot_stand_for_the_base_proves_nothing(
    tools: Toolchain, tmp_path: Path
) -> None:
    """llama.cpp wants keys in all layers of a Gemma 3n: published files have them, transformers does not."""
    proof = need_same_graph(folder_of("gemma3n_text", tmp_path / "model", **GEMMA_3N), tools, HEADER)
    assert proof.difference is None and proof.reason


def test_a_window_that_llama_cpp_lacks_is_said(tools: Toolchain, tmp_path: Path) -> None:
    settings = {"sliding_window": 512, "max_position_embeddings": 4096}
    proof = need_same_graph(folder_of("starcoder2", tmp_path / "model", **settings), tools, HEADER)
    assert proof.dropped_window == 512


def test_a_converter_that_stops_at_config_json_is_an_error_before_training(
    tools: Toolchain, tmp_path: Path
) -> None:
    folder = folder_of("gemma3n_text", tmp_path / "model", altup_num_inputs=3, **GEMMA_3N)
    with pytest.raises(DataError, match="Q-BASE-057"):
        need_same_graph(folder, tools, HEADER)


def test_a_proof_is_kept_until_config_json_changes(
    cache: Path, tools: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of("llama", tmp_path / "model")
    first = need_same_graph(folder, tools, HEADER)
    (file,) = (cache / "graphs").iterdir()
    again = Proof(0.001)
    asked = put_measured(monkeypatch, again)
    assert need_same_graph(folder, tools, HEADER) == first and not asked
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}), encoding="utf-8")
    assert need_same_graph(folder, tools, HEADER) == again and asked == [folder]
    assert file.is_file()


@pytest.mark.parametrize(
    "content",
    [
        '{"difference": 0.0',  # torn
        "",
        "[0.001]",
        '{"difference": 0.001, "of_another_version": 1}',
        '{"difference": "small", "reason": "", "dropped_window": null}',
        '{"difference": null, "reason": "", "dropped_window": null}',
    ],
)
def test_what_is_no_proof_in_the_cache_is_measured_again(
    content: str, cache: Path, tools: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = Proof(0.001)
    asked = put_measured(monkeypatch, proof)
    folder = folder_of("llama", tmp_path / "model")
    need_same_graph(folder, tools, HEADER)
    (file,) = (cache / "graphs").iterdir()
    whole = file.read_text(encoding="utf-8")
    file.write_text(content, encoding="utf-8")
    assert need_same_graph(folder, tools, HEADER) == proof
    assert len(asked) == 2 and file.read_text(encoding="utf-8") == whole


IMPORTS = read_source(Path(graph_proof.__file__).read_bytes(), is_python=True).imports
LAYERS = ("pipeline.llamacpp.", "pipeline.models.", "pipeline.stages.")
MODULES = {name for name, module in sys.modules.items() if not hasattr(module, "__path__")}
# The imports are packages and single names, too.
CALLED = {name for name in IMPORTS if name.startswith(LAYERS)} & MODULES
CALLED -= {"pipeline.llamacpp.converters"}  # only the fields of the base's own header
# What those call for the measurement.
CALLED |= {
    "pipeline.gguf.windows",
    "pipeline.llamacpp.logits",
    "pipeline.models.experts.recognize",
    *(f"pipeline.gguf.families.{module.name}" for module in iter_modules(families.__path__)),
}


@pytest.mark.parametrize("module", sorted(CALLED))
def test_a_proof_is_measured_again_where_its_code_has_changed(
    module: str, tools: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = put_measured(monkeypatch, Proof(0.001))
    folder = folder_of("llama", tmp_path / "model")
    need_same_graph(folder, tools, HEADER)
    changed = Path(str(import_module(module).__file__))

    def hash_of(path: Path) -> str:
        return "changed" if path == changed else file_hash(path)

    monkeypatch.setattr(graph_proof, "file_hash", hash_of)
    need_same_graph(folder, tools, HEADER)
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("place", "error", "raised"),
    [
        ("run_converter", MachineError("Q-CORE-005", "no room"), MachineError),
        ("run_converter", TypeError("a mistake here"), TypeError),
        ("logits_apart", DataError("Q-GGUF-006", "ended"), DataError),
        ("logits_apart", AttributeError("a mistake here"), AttributeError),
    ],
)
def test_only_what_the_small_model_lacks_proves_nothing(
    place: str,
    error: Exception,
    raised: type[Exception],
    tools: Toolchain,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = folder_of("llama", tmp_path / "model")
    monkeypatch.setattr(graph_proof, "run_converter", lambda *_, **__: "")
    monkeypatch.setattr(graph_proof, place, raising(error))
    with pytest.raises(raised):
        measured(folder, tools)


@pytest.mark.parametrize(
    "full", [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("I/O error: No space left")]
)
def test_a_disk_without_room_for_the_small_model_is_said(
    full: Exception, tools: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of("llama", tmp_path / "model")
    monkeypatch.setattr(PreTrainedModel, "save_pretrained", raising(full))
    with pytest.raises(MachineError):
        measured(folder, tools)


def test_a_small_model_that_transformers_cannot_build_proves_nothing(
    tools: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of("llama", tmp_path / "model")
    monkeypatch.setattr(graph_proof.small_model, "build", raising(ValueError("sizes of its own")))
    proof = measured(folder, tools)
    assert proof.difference is None and "sizes of its own" in proof.reason


def test_the_proof_shows_no_progress_and_leaves_that_of_others(
    tools: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of("llama", tmp_path / "model")
    monkeypatch.setattr(graph_proof, "run_converter", raising(ToolError("Q-LLAMACPP-019", "failed")))
    enable_progress_bar()  # Another test may have put them off.
    shown = is_progress_bar_enabled(), are_progress_bars_disabled()
    with pytest.raises(NotConvertedError):
        measured(folder, tools)
    assert (is_progress_bar_enabled(), are_progress_bars_disabled()) == shown
    assert "%|" not in capfd.readouterr().err
