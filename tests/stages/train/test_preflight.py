"""Preflight: a line per check, state and remedy, before weights load; fake probes, pure parts as tables."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from qwen2_variants import change_json

from pipeline.config.params import load_params
from pipeline.config.sections import Training
from pipeline.core.checks import Check, refuse
from pipeline.core.cpu import Device
from pipeline.core.errors import ConfigError, DataError, MachineError, ToolError
from pipeline.core.hardware import Card
from pipeline.core.places import PROJECT
from pipeline.planning.model.base import published_shape
from pipeline.planning.model.config_file import read_shape
from pipeline.planning.plan import CACHE, make_plan
from pipeline.planning.setup import Setup
from pipeline.stages.train import preflight as checks

RECIPE = load_params(PROJECT / "recipes" / "qwen2.5-7b-8gb.yaml")
DEMO = load_params(PROJECT / "recipes" / "demo.yaml")
CARD = Card("NVIDIA GeForce RTX 4060", 8188 << 20, "cuda")
MEMORY = Card("main memory", 24 << 30, "cpu")


def settings(**changed: Any) -> Training:
    return DEMO.training.model_copy(update=changed)


def preflight(root: Path, base: Path, **changed: Any) -> list[Check]:
    """Every check of the demo on this base, with the rows in `root`/tokens and changes of section train."""
    for place, folder in (("models/base", base), ("data/tokens", root / "tokens")):
        (root / place).parent.mkdir()
        (root / place).symlink_to(folder)
    train = DEMO.train.model_copy(update=changed)
    return checks.preflight(DEMO.model_copy(update={"train": train}), root)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """data/tokens of three packed rows, with its manifest."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder, splits = tmp_path / "tokens", {}
    folder.mkdir()
    for split, lengths in (("train", [[3, 4], [5]]), ("val", [[6]])):
        pq.write_table(
            pa.table({"input_ids": [[1] * sum(row) for row in lengths], "seq_lengths": lengths}),
            folder / f"{split}.parquet",
        )
        counts = {"packed_rows": len(lengths), "tokens": sum(map(sum, lengths))}
        splits[split] = counts | {"rows": 3, "trained_tokens": 2}
    (folder / "manifest.json").write_text(json.dumps({"splits": splits}))
    return folder


# --- what files say -----------------------------------------------------------------------------------------


def put(file: Path, content: bytes | int | None) -> None:
    """These bytes in a file's place, so many of its own, or (None) no file."""
    if content is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:content] if isinstance(content, int) else content)


NOT_WRITTEN = "is not what stage preprocess writes"


@pytest.mark.parametrize(
    ("name", "content", "finding"),
    [
        ("train.parquet", "val.parquet", "train.parquet has 1 packed_rows instead of 2 and 6 tokens"),
        ("val.parquet", None, NOT_WRITTEN),
        ("train.parquet", b"PAR1", NOT_WRITTEN),
        ("manifest.json", None, NOT_WRITTEN),
        ("manifest.json", b'{"splits": []}', NOT_WRITTEN),
    ],
)
def test_data_that_is_not_all_there_fails(tokens: Path, name: str, content: Any, finding: str) -> None:
    put(tokens / name, (tokens / content).read_bytes() if isinstance(content, str) else content)
    check = checks.data(tokens)
    assert check.verdict == "fail" and finding in check.sentence and check.id == "Q-TRAIN-001"


def test_no_row_to_train_on_fails(tokens: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"seq_lengths": pa.array([], pa.list_(pa.int32()))}), tokens / "train.parquet")
    stats = json.loads((tokens / "manifest.json").read_text())
    stats["splits"]["train"] |= {"packed_rows": 0, "tokens": 0}
    (tokens / "manifest.json").write_text(json.dumps(stats))
    assert (checks.data(tokens).verdict, checks.data(tokens).id) == ("fail", "Q-TRAIN-001")


WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("name", "content", "finding"),
    [
        ("", b"", "GB of weights in 1 file"),
        ("tokenizer.json", None, "tokenizer.json missing"),
        ("config.json", b'{"model_type": ', "can't be read (Expecting value"),
        ("config.json", b"[]", "is not a JSON object"),
        ("config.json", b"[" * 100_000, "can't be read (maximum recursion"),
        ("tokenizer.json", b"{", "can't be read (Expecting property name"),
        (INDEX, b"[]", "can't be read"),
        (WEIGHTS, (8).to_bytes(8, "little") + b'{"a":12}', "model.safetensors cut short"),
        (WEIGHTS, None, "model.safetensors missing"),
        (WEIGHTS, 100_000, "model.safetensors cut short"),
        (WEIGHTS, b"\xff" * 64, "model.safetensors cut short"),
        (INDEX, b"{", "can't be read"),
        (
            INDEX,
            b'{"weight_map": {"a": "model.safetensors", "b": "two.safetensors"}}',
            "two.safetensors missing",
        ),
    ],
)
def test_the_base_must_be_whole(
    tiny_qwen2: Path, tmp_path: Path, name: str, content: bytes | int | None, finding: str
) -> None:
    base = Path(shutil.copytree(tiny_qwen2, tmp_path / "base"))
    if name:
        put(base / name, content)
    check = checks.complete_base(base, "nf4")
    assert check.verdict == ("fail" if name else "pass") and finding in check.sentence


def test_a_base_of_another_recipe_is_refused_in_one_sentence(tiny_qwen2: Path, tmp_path: Path) -> None:
    base = Path(shutil.copytree(tiny_qwen2, tmp_path / "base"))
    assert checks.complete_base(base, "gguf").id == "Q-TRAIN-002"
    (base / "model.gguf").write_bytes(b"GGUF")
    assert checks.complete_base(base, "nf4").id == "Q-TRAIN-002"


# --- plans against the machine ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("card", "free", "state", "remedy"),
    [
        (CARD, 8_400_000_000, "pass", ""),
        (CARD, 7_000_000_000, "fail", "end the programs that hold it"),
        (Card("a small card", 6 << 30, "cuda"), 6 << 30, "fail", "set train.offload: embeddings"),
        (Card("a tiny card", 2 << 30, "cuda"), 2 << 30, "fail", "so take a smaller base"),
        (MEMORY, 20_000_000_000, "pass", ""),
        (MEMORY, 5_000_000_000, "warn", "end the programs that hold it"),
    ],
)
def test_the_memory_plan_against_the_card(card: Card, free: int, state: str, remedy: str) -> None:
    shape = published_shape(RECIPE.base.model)
    assert shape
    train = RECIPE.training if card.device == "cuda" else RECIPE.training.model_copy(update={"loss": "auto"})
    check = checks.memory_plan(make_plan(Setup(shape, train, 1024, card, levels=["Q4_K_M"])), free)
    assert (check.verdict, check.id) == (state, "Q-TRAIN-005" if state != "pass" else "")
    assert remedy in check.remedy


@pytest.mark.parametrize(("free", "state"), [(50, "fail"), (1300, "warn"), (3000, "pass")])
def test_disk_for_everything_that_follows(free: int, state: str) -> None:
    assert checks.disk_plan({"merged model": 1000, CACHE: 1000}, free).verdict == state


# --- device -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "native", "chosen", "state"),
    [
        ("cuda", False, "bfloat16", "pass"),
        ("cpu", True, "bfloat16", "pass"),
        ("cpu", False, "float32", "pass"),
        ("cpu", True, "float32", "pass"),
        ("cpu", False, "bfloat16", "pass"),
        ("cpu", False, "float16", "warn"),
        ("cpu", True, "float16", "warn"),
    ],
)
def test_a_type_that_the_cpu_has_no_instructions_for(
    monkeypatch: pytest.MonkeyPatch, device: Device, native: bool, chosen: str, state: str
) -> None:
    monkeypatch.setattr(checks, "multiplies_bfloat16", lambda: native)
    check = checks.arithmetic(Card("here", 8 << 30, device), settings(bnb_4bit_compute_dtype=chosen))
    assert check.verdict == state and chosen in check.sentence
    assert ("auto" in check.remedy) == (state == "warn")


@pytest.mark.parametrize(("known", "state"), [((7, 5), "warn"), ((8, 0), "pass"), ((12, 0), "pass")])
def test_a_gpu_without_units_for_bfloat16_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, known: tuple[int, int], state: str
) -> None:
    monkeypatch.setattr(checks, "capability", lambda: known)
    check = checks.arithmetic(Card("here", 8 << 30, "cuda"), settings(bnb_4bit_compute_dtype="bfloat16"))
    assert check.verdict == state and ("capability 7.5" in check.sentence) == (state == "warn")
    assert (
        checks.arithmetic(Card("here", 8 << 30, "cuda"), settings(bnb_4bit_compute_dtype="float16")).verdict
        == "pass"
    )


def test_nf4_round_trips_here() -> None:
    check = checks.bitsandbytes_works(settings())
    assert check.verdict == "pass" and "0.15" in check.sentence
    assert checks.bitsandbytes_works(settings(quantization="none")).sentence.startswith("not used")


def test_a_broken_bitsandbytes_fails_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    import bitsandbytes.functional as functional

    monkeypatch.setattr(functional, "quantize_4bit", lambda *a, **k: 1 / 0)
    check = checks.bitsandbytes_works(settings())
    assert check.verdict == "fail" and "ZeroDivisionError" in check.sentence and check.remedy


@pytest.mark.parametrize("figure", [0.5, float("nan")])
def test_a_probe_above_its_limit_or_no_number_fails(figure: float) -> None:
    assert checks.probe("x", lambda: figure, 0.2, "is {:.1f}", "repair it", "Q-TRAIN-007").verdict == "fail"


@pytest.mark.parametrize(
    ("loss", "card", "id"),
    [("chunked", CARD, ""), ("auto", MEMORY, ""), ("liger", MEMORY, "Q-TRAIN-008")],
)
def test_triton_is_tried_only_where_the_loss_needs_it(loss: str, card: Card, id: str) -> None:
    check = checks.triton_works(card, settings(loss=loss))
    assert check.verdict == ("fail" if id else "pass")
    with pytest.raises(ToolError, match=id) if id else nullcontext():
        refuse([check])


@pytest.mark.parametrize(("compile", "ids"), [("auto", []), (False, []), (True, ["Q-TRAIN-041"])])
def test_a_compiler_is_tried_only_where_layers_are_compiled(
    compile: Any, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_compiler(function: Any) -> Any:
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr("torch.compile", without_compiler)
    found = checks.compiler_works(settings(compile=compile))
    assert [check.id for check in found] == ids
    assert all("no C++ compiler" in str(check) for check in found)


def fake_gpu(monkeypatch: pytest.MonkeyPatch, answer: Any) -> Check:
    """The GPU's last check, with 5 GB of memory free and nvidia-smi's `answer`."""
    import torch

    def query(*what: str) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=0: (5_000_000_000, 8_585_000_000))
    monkeypatch.setattr(checks, "nvidia_smi", query)
    monkeypatch.setattr(checks.os, "getpid", lambda: 7)
    return checks.gpu(CARD)[-1]


@pytest.mark.parametrize(
    ("answer", "state", "finding"),
    [
        ([], "pass", "5.12 GB of 8.00 GB to be had, no other process is on it"),
        ([["7", "python", "300"]], "pass", "no other process"),
        (
            [["7", "python", "300"], ["4242", "/usr/bin/llama-server", "3000"]],
            "warn",
            "llama-server (pid 4242) holds 3000 MiB",
        ),
        (ToolError("Q-TEST-001", "nvidia-smi fails"), "not measured", "nvidia-smi fails"),
        (FileNotFoundError("nvidia-smi"), "not measured", "nvidia-smi"),
    ],
)
def test_who_holds_the_gpu(monkeypatch: pytest.MonkeyPatch, answer: Any, state: str, finding: str) -> None:
    check = fake_gpu(monkeypatch, answer)
    assert check.verdict == state and finding in check.sentence


# --- all of it ----------------------------------------------------------------------------------------------


def test_a_preflight_on_a_cpu(tiny_qwen2: Path, tokens: Path, tmp_path: Path) -> None:
    found = preflight(tmp_path, tiny_qwen2)
    names = ["data", "base", "arithmetic", "bitsandbytes", "Triton", "memory plan", "disk"]
    assert [check.name for check in found] == names
    assert "2 rows of" in found[0].sentence
    refuse(found)


def test_linears_are_dequantized_with_their_own_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def found(hidden: int, card: Card = MEMORY, **changed: Any) -> list[str]:
        config = {
            "model_type": "llama",
            "hidden_size": hidden,
            "intermediate_size": 2 * hidden,
            "num_attention_heads": 4,
            "head_dim": 64,
            "num_hidden_layers": 1,
            "vocab_size": 512,
        }
        return [check.verdict for check in checks.nf4_widths(read_shape(config), settings(**changed), card)]

    assert found(256) == found(96, CARD) == found(96, quantization="none") == []
    assert found(500) == ["pass"]
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        assert found(96) == ["fail"]
    import bitsandbytes.functional as functional

    monkeypatch.setattr(functional, "dequantize_4bit", lambda packed, state: torch.zeros(state.shape))
    assert found(500) == ["fail"]


def test_the_widths_are_among_the_checks(
    tiny_qwen2: Path, tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        checks, "nf4_widths", lambda *_: [Check("NF4 widths", "fail", "wrong", "take another", "Q-TRAIN-004")]
    )
    found = preflight(tmp_path, tiny_qwen2)
    with pytest.raises(ToolError, match="Q-TRAIN-004: NF4 widths: wrong: take another"):
        refuse(found)


def test_what_cant_be_planned_is_not_measured_and_never_passed(
    tiny_qwen2: Path, tokens: Path, tmp_path: Path
) -> None:
    base = Path(shutil.copytree(tiny_qwen2, tmp_path / "base"))
    change_json(base / "config.json", model_type="gpt2")
    found = preflight(tmp_path, base)
    assert {check.name for check in found if check.verdict == "not measured"} == {"memory plan", "disk"}
    refuse(found)


def test_a_family_that_is_planned_by_building_it_has_its_memory_and_disk_planned(
    tiny_qwen2: Path, tokens: Path, tmp_path: Path
) -> None:
    base = Path(shutil.copytree(tiny_qwen2, tmp_path / "base"))
    change_json(base / "config.json", model_type="granite")
    verdicts = {check.name: check.verdict for check in preflight(tmp_path, base)}
    assert {verdicts[name] for name in ("memory plan", "disk")} <= {"pass", "warn"}


@pytest.mark.parametrize(
    ("config", "changed", "fault"),
    [
        ({}, {"target_modules": ["q_proj", "c_attn"]}, "Q-PLANNING-007"),
        ({}, {"offload": 1}, "Q-PLANNING-008"),
        ({}, {"experts": []}, "Q-MODELS-034"),
        ({"num_experts": 8}, {}, "Q-TRAIN-003"),  # of a kind that has none
    ],
)
def test_what_the_planner_refuses_ends_the_run_before_the_base_is_loaded(
    config: dict[str, Any],
    changed: dict[str, Any],
    fault: str,
    tiny_qwen2: Path,
    tokens: Path,
    tmp_path: Path,
) -> None:
    base = Path(shutil.copytree(tiny_qwen2, tmp_path / "base"))
    change_json(base / "config.json", **config)
    found = preflight(tmp_path, base, **changed)
    assert [check.id for check in found if check.verdict == "fail"] == [fault]
    with pytest.raises(DataError if config else ConfigError, match=fault):
        refuse(found)


def test_what_failed_first_is_raised_as_its_own_kind() -> None:
    good = Check("a", "pass", "fine")
    refuse([good, Check("b", "warn", "so so", "repair it"), Check("c", "not measured", "no tool")])
    failed = [
        Check("disk", "fail", "full", "make room", "Q-TRAIN-006"),
        Check("data", "fail", "gone", "make it", "Q-TRAIN-001"),
    ]
    with pytest.raises(MachineError) as caught:
        refuse([good, *failed])
    assert caught.value.id == "Q-TRAIN-006" and "(data failed too)" in caught.value.sentence
