"""`quench ship adapter` and `quench ship --check` of what it made: base and adapter leave together, or not
at all.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import adapter_inputs
import pytest
import tiny
from shipping import change, trained_again
from test_ship import sum_again
from tiny_lora import tiny_lora

from pipeline.commands import ship as command
from pipeline.core.errors import ConfigError
from pipeline.core.hashing import file_hash
from pipeline.gguf.provenance import BASE_FILE, adapter_fields, provenance
from pipeline.ship.bundle import BILL, CARD, EVALUATION, SCRIPT, SUMS
from pipeline.ship.card import claimed
from pipeline.ship.verification import bundle_faults

BASE, LORA = "model.gguf", "demo-lora.gguf"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with its bundle. Read only: copy it to change it."""
    root = adapter_inputs.write_project(tmp_path_factory.mktemp("ship"))
    assert command.main(adapter_inputs.params(), root, "Adapter", None, None) == 0
    return root


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return adapter_inputs.write_project(tmp_path / "project")


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "models/bundle/demo-adapter", tmp_path / "bundle"))


def test_the_bundle_holds_both_files_and_verifies(bundle: Path, made: Path) -> None:
    assert bundle_faults(bundle) == []
    assert file_hash(bundle / BASE) == file_hash(made / "models/base/model.gguf")
    assert file_hash(bundle / LORA) == file_hash(made / "models/gguf" / LORA)
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", SUMS], cwd=bundle, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    modelfile = (bundle / "Modelfile").read_text().splitlines()
    assert {"FROM ./model.gguf", "ADAPTER ./demo-lora.gguf"} <= set(modelfile)
    card, bill = (bundle / CARD).read_text(encoding="utf-8"), (bundle / BILL).read_text(encoding="utf-8")
    assert claimed(card) == provenance(bundle / LORA)
    assert claimed(card)[BASE_FILE] == file_hash(bundle / BASE)
    for name in (BASE, LORA):
        assert f"| {name} | `{file_hash(bundle / name)}` |" in card
    subject = json.loads(bill)["metadata"]["component"]
    assert subject["hashes"][0]["content"] == file_hash(bundle / LORA)
    assert [(part["name"], part["hashes"][0]["content"]) for part in subject["components"]] == [
        (BASE, file_hash(bundle / BASE))
    ]
    assert "Base and adapter in llama.cpp are 0.0023 nats" in card


def test_the_bill_is_valid(bundle: Path) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    assert (
        JsonStrictValidator(SchemaVersion.V1_6).validate_str((bundle / BILL).read_text(encoding="utf-8"))
        is None
    )


@pytest.mark.parametrize("folder", ["plain", "a place, with commas", 'a "quoted" place'])
def test_the_serve_script_puts_the_adapter_on_its_base(bundle: Path, tmp_path: Path, folder: str) -> None:
    place = bundle.rename(tmp_path / folder)
    server = tmp_path / "llama-server"
    server.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    server.chmod(0o755)
    environment = {
        "PATH": os.environ["PATH"],
        "LLAMA_SERVER": str(server),
        "STATE_DIRECTORY": str(tmp_path / "state"),
    }
    words = subprocess.run(
        [place / SCRIPT], env=environment, capture_output=True, text=True, check=True, cwd="/"
    ).stdout.splitlines()
    assert words[words.index("--model") + 1] == str(place / BASE)
    as_csv = str(place / LORA).replace('"', '""')
    assert words[words.index("--lora") + 1] == f'"{as_csv}"'  # llama-server reads a row of CSV


@pytest.mark.parametrize("folder", ["plain", "a place, with commas"])
def test_the_real_server_finds_both_files(bundle: Path, tmp_path: Path, tools: Any, folder: str) -> None:
    """It listens only when base and adapter are loaded."""
    from pipeline.llamacpp.server import free_port

    place = bundle.rename(tmp_path / folder)
    script = (place / SCRIPT).read_text().replace("--port 8081", f"--port {free_port()}")
    (place / SCRIPT).write_text(script)
    environment = {
        "PATH": os.environ["PATH"],
        "LLAMA_SERVER": str(tools.tool("llama-server")),
        "STATE_DIRECTORY": str(tmp_path / "state"),
    }
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


def stale_base(root: Path) -> None:
    with (root / "models/base/model.gguf").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\1")


def other_adapter(root: Path) -> None:
    (root / "models/adapter/adapter_model.safetensors").write_bytes(b"trained since")
    trained_again(root)


def other_lora(root: Path) -> None:
    """An adapter's GGUF of another base, with reports made for it."""
    fields = adapter_fields(root / "models/adapter") | {BASE_FILE: "00" * 32, "quench.base.source": "package"}
    file = tiny_lora(
        root / "models/gguf" / LORA, **{key.replace(".", "__"): value for key, value in fields.items()}
    )
    report = root / "reports/eval/adapter.json"
    whole = json.loads(report.read_text())["bytes"]
    change(report, lora={"file": LORA, "sha256": file_hash(file), "bytes": file.stat().st_size}, bytes=whole)
    parity = json.loads((root / "reports/parity.json").read_text())["files"]
    change(root / "reports/parity.json", files=parity | {LORA: file_hash(file)})


def other_answers(root: Path) -> None:
    path = root / "reports/eval/base.answers.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace("Describe", "Explain", 1), encoding="utf-8")


def not_proven(root: Path) -> None:
    change(root / "reports/parity.json", files={})


def no_lora(root: Path) -> None:
    (root / "models/gguf" / LORA).unlink()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (stale_base, "reports/eval/adapter.json is about another file than model.gguf"),
        (stale_base, "models/base.json names another model.gguf"),
        (stale_base, "demo-lora.gguf was made for another file than model.gguf"),
        (other_adapter, "demo-lora.gguf's provenance differs from models/adapter (quench.adapter.sha256)"),
        (
            other_lora,
            "demo-lora.gguf was made for another file than model.gguf: run `snakemake --force lora`.",
        ),
        (other_answers, "reports/eval/base.answers.jsonl are not the answers"),
        (not_proven, "reports/parity.json is about another file than model.gguf and demo-lora.gguf"),
        (no_lora, "demo-lora.gguf is missing"),
    ],
)
def test_files_and_reports_of_different_runs_are_not_shipped(
    project: Path, spoil: Callable[[Path], None], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(project)
    assert command.main(adapter_inputs.params(), project, "adapter", None, None) == 5
    assert words in capsys.readouterr().err
    assert not (project / "models/bundle").exists()


def test_what_the_gate_refuses_is_not_shipped(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(adapter_inputs.params(max_kld=0.001), project, "adapter", None, None) == 5
    assert "Base and adapter in llama.cpp are 0.0023 nats" in capsys.readouterr().err


@pytest.mark.parametrize("asked", ["base", "Q4_K_M", "source"])
def test_only_the_adapter_can_be_shipped(made: Path, asked: str) -> None:
    with pytest.raises(ConfigError, match="Q-SHIP-011"):
        command.main(adapter_inputs.params(), made, asked, None, None)


# ---- a bundle of somebody else's


def another_base(folder: Path) -> None:
    import numpy as np

    (folder / BASE).unlink()
    tiny.tiny_gguf(folder / BASE, tensors={"padding.weight": np.zeros((1, 32), np.float32)})


def without_lora(folder: Path) -> None:
    (folder / LORA).unlink()


def third(folder: Path) -> None:
    shutil.copy(folder / LORA, folder / "second-lora.gguf")


def forged_all_but_the_provenance(folder: Path) -> None:
    """Another base, with every text changed to speak of it: the adapter's own GGUF still names the one it was
    trained on.
    """
    before = file_hash(folder / BASE)
    size = (folder / BASE).stat().st_size
    another_base(folder)
    after = file_hash(folder / BASE)
    change(
        folder / EVALUATION,
        bytes=json.loads((folder / EVALUATION).read_text())["bytes"] - size + (folder / BASE).stat().st_size,
    )
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix in (".json", ".md"):
            path.write_text(path.read_text(encoding="utf-8").replace(before, after), encoding="utf-8")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (another_base, "evidence/evaluation.json is about another file than model.gguf"),
        (another_base, "sbom.cdx.json is about another file than model.gguf"),
        (forged_all_but_the_provenance, "demo-lora.gguf was trained on another file than model.gguf"),
        (without_lora, "is about another file"),
        (third, "There are 3 GGUFs where one belongs, or an adapter's and its base's."),
    ],
)
def test_a_bundle_whose_files_do_not_belong_together_does_not_verify(
    bundle: Path, spoil: Callable[[Path], None], words: str
) -> None:
    spoil(bundle)
    sum_again(bundle)
    assert words in " ".join(bundle_faults(bundle))


def test_a_base_that_was_changed_after_the_sums_does_not_verify(bundle: Path) -> None:
    stale = bundle / BASE
    data = bytearray(stale.read_bytes())
    data[-1] ^= 1
    stale.write_bytes(bytes(data))
    assert f"{BASE} is not the file that {SUMS} lists: its sha256 differs." in bundle_faults(bundle)
