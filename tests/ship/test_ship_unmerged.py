"""`quench ship` and `quench ship --check` without a merge: base and adapter leave together, a file with
trained scales alone.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import adapter_inputs
import numpy as np
import pytest
import tiny
import tuned_inputs
from golden import Golden
from make import ran
from shipping import (
    BILL,
    CARD,
    EVALUATION,
    PARITY,
    change,
    edited,
    faults_of,
    flip,
    forged,
    printed,
    script_environment,
    summed_again,
    texts_of,
)

from pipeline.commands import ship as command
from pipeline.commands.project import Project
from pipeline.core.hashing import file_hash
from pipeline.gguf.provenance import provenance
from pipeline.ship.bundle import SCRIPT
from pipeline.ship.verification import bundle_faults

BASE, LORA, TUNED = "model.gguf", "demo-lora.gguf", tuned_inputs.FILE


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with its bundle. Read only: copy it to change it."""
    root = adapter_inputs.write_project(tmp_path_factory.mktemp("ship"))
    assert command.main(Project(adapter_inputs.params(), root), "Adapter", None, None) == 0
    return root


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "models/bundle/demo-adapter", tmp_path / "bundle"))


def test_the_bundle_holds_both_files_and_verifies(bundle: Path, made: Path, snapshot: Any) -> None:
    assert bundle_faults(bundle) == []
    assert texts_of(bundle) == snapshot(extension_class=Golden)
    assert file_hash(bundle / BASE) == file_hash(made / "models/base/model.gguf")
    assert file_hash(bundle / LORA) == file_hash(made / "models/gguf" / LORA)
    assert printed((bundle / CARD).read_text(encoding="utf-8")) == provenance(bundle / LORA)


@pytest.mark.parametrize("folder", ["plain", "a place, with commas", 'a "quoted" place'])
def test_the_serve_script_puts_the_adapter_on_its_base(bundle: Path, tmp_path: Path, folder: str) -> None:
    place = bundle.rename(tmp_path / folder)
    words = ran([place / SCRIPT], env=script_environment(tmp_path), cwd="/").stdout.splitlines()
    assert words[words.index("--model") + 1] == str(place / BASE)
    as_csv = str(place / LORA).replace('"', '""')
    assert words[words.index("--alias") + 1] == "demo-adapter"
    assert words[words.index("--lora") + 1] == f'"{as_csv}"'  # llama-server reads a row of CSV


@pytest.mark.parametrize("folder", ["plain", "a place, with commas"])
def test_the_real_server_finds_both_files(bundle: Path, tmp_path: Path, tools: Any, folder: str) -> None:
    """It listens only when base and adapter are loaded."""
    from pipeline.llamacpp.server import free_port

    place = bundle.rename(tmp_path / folder)
    script = (place / SCRIPT).read_text().replace("--port 8081", f"--port {free_port()}")
    (place / SCRIPT).write_text(script)
    environment = script_environment(tmp_path) | {"LLAMA_SERVER": str(tools.tool("llama-server"))}
    with subprocess.Popen(
        [place / SCRIPT], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        output = ""
        try:
            for line in server.stdout or ():
                output += line
                if "listening" in line or "error" in line.lower():
                    break
        finally:
            server.kill()
    assert "listening" in output, output[-2000:]


# ---- a bundle of somebody else's


def another_base(file: Path) -> None:
    file.unlink()
    tiny.tiny_gguf(file, tensors={"padding.weight": np.zeros((1, 32), np.float32)})


DAMAGES: dict[str, Callable[[Path], object]] = {
    "another base": summed_again(lambda folder: another_base(folder / BASE)),
    # the adapter's own GGUF still names its training base
    "forged": forged(BASE, another_base),
    "cut base": forged(BASE, lambda file: os.truncate(file, 99)),
    "cut LoRA": forged(LORA, lambda file: os.truncate(file, 99)),
    "figures without an adapter": summed_again(lambda folder: change(folder / EVALUATION, lora=None)),
    "figures of another adapter": summed_again(lambda at: change(at / EVALUATION, lora={"sha256": 0})),
    "parity of no base": summed_again(lambda at: change(at / PARITY, files={LORA: file_hash(at / LORA)})),
    "bill of the LoRA alone": edited(BILL, lambda bill: bill["metadata"]["component"].pop("components")),
    "no LoRA": summed_again(lambda folder: (folder / LORA).unlink()),
    "two LoRAs": summed_again(lambda folder: (folder / BASE).rename(folder / "second-lora.gguf")),
    "three GGUFs": summed_again(lambda folder: shutil.copy(folder / LORA, folder / "second-lora.gguf")),
    "changed after the sums": lambda folder: flip(folder / BASE, -1),
}


def test_a_bundle_whose_files_do_not_belong_together_does_not_verify(
    bundle: Path, tmp_path: Path, snapshot: Any
) -> None:
    assert faults_of(bundle, DAMAGES, tmp_path) == snapshot(extension_class=Golden)


# ---- trained scales: one file leaves


@pytest.mark.parametrize(
    "of_the_base",
    [
        {},
        # a base may be a file that Quench made of another one: what it says of itself is no fault
        {
            "quench__merge__sha256": "5e" * 32,
            "quench__llama_cpp__commit": "c0ffee",
            "quench__llama_cpp__package": "0.3.1",
            "quench__imatrix__file": "a|b`c\u200bd",  # what would end a cell of the card, or hide
        },
    ],
    ids=["plain", "made"],
)
def test_the_bundle_of_a_tuned_file_holds_one_file_and_verifies(
    tmp_path: Path, of_the_base: dict[str, str], snapshot: Any
) -> None:
    root = tuned_inputs.write_project(tmp_path / "project", **of_the_base)
    assert command.main(Project(tuned_inputs.params(), root), "Tuned", None, None) == 0
    bundle = root / "models/bundle/demo-tuned"
    assert bundle_faults(bundle) == []
    assert texts_of(bundle) == snapshot(extension_class=Golden)
    assert [path.name for path in bundle.glob("*.gguf")] == [TUNED]
    assert file_hash(bundle / TUNED) == file_hash(root / "models/gguf" / TUNED)
    assert printed((bundle / CARD).read_text(encoding="utf-8")) == provenance(bundle / TUNED)
