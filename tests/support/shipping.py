"""Recorded projects to ship from: demo-size reports, GGUFs of a few kB with true provenance records."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tiny
from make import script
from parity_inputs import parity_report
from report_inputs import change, put, write_inputs

from pipeline import __version__
from pipeline.config.params import Params, load_params
from pipeline.core.hashing import file_hash, tree_hash
from pipeline.gguf.provenance import adapter_fields, folder_fields, lineage_fields
from pipeline.ship.verification import bundle_faults

# what files of a bundle are called
CARD, BILL, SUMS = "README.md", "sbom.cdx.json", "SHA256SUMS"
EVALUATION, PARITY = "evidence/evaluation.json", "evidence/parity.json"
TEXTS = (CARD, "Modelfile", "serve.sh", "quench.service", BILL)
RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "demo-small.yaml"
LEVELS = ["Q4_K_M", "Q5_K_M"]
MODELS = ["base-F16", "F16", *LEVELS]
FILE_TYPES = {"base-F16": 1, "F16": 1, "Q4_K_M": 15, "Q5_K_M": 17}
# rows of a tensor that makes the files as different in size as levels are
PADDING = {"base-F16": 65, "F16": 64, "Q4_K_M": 1, "Q5_K_M": 32}


def params(**gate: Any) -> Params:
    """The demo's with two tuned levels; `gate` changes report.gate."""
    found = load_params(RECIPE)
    return found.model_copy(
        update={
            "quantize": found.quantize.model_copy(update={"levels": LEVELS}),
            "evaluate": found.evaluate.model_copy(update={"models": MODELS}),
            "report": found.report.model_copy(update={"gate": found.report.gate.model_copy(update=gate)}),
        }
    )


def write_project(root: Path, **base: Any) -> Path:
    """Everything that `quench ship` reads, below `root`; `base` are other values of models/base.json."""
    write_inputs(root)
    change(root / "models/base.json", **base)
    adapter, merged, ggufs = root / "models/adapter", root / "models/merged", root / "models/gguf"
    ggufs.mkdir()
    (merged / "chat_template.jinja").write_text("template", encoding="utf-8")
    change(merged / "merge.json", merge_base="nf4", adapter_sha256=write_lineage(root))
    own = lineage_fields(root / "models/base.json") | adapter_fields(adapter) | folder_fields(merged)
    fields = {key.replace(".", "__"): value for key, value in own.items()}
    for model, kind in FILE_TYPES.items():
        padding = {"padding.weight": np.zeros((PADDING[model], 32), np.float32)}
        tiny.tiny_gguf(ggufs / f"demo-{model}.gguf", tensors=padding, general__file_type=kind, **fields)
    files = {file.name: file_hash(file) for file in ggufs.iterdir()}
    put(root / "reports/parity.json", parity_report() | {"files": files})
    task = json.loads((root / "reports/eval/F16.json").read_text(encoding="utf-8"))["task"]
    for model in MODELS:
        file = ggufs / f"demo-{model}.gguf"
        divergence = {"kld_mean": 0.0184, "same_top": 0.98}
        change(
            root / f"reports/eval/{model}.json",
            sha256=file_hash(file),
            bytes=file.stat().st_size,
            answers_sha256=file_hash(root / f"reports/eval/{model}.answers.jsonl"),
            **divergence | ({"kld_mean": 0.0} if "F16" in model else {}),
            all_tokens=divergence,
            general=None,
            serving=None,
            **({} if model == "base-F16" else {"task": task}),
        )
    return root


def write_lineage(root: Path, weights: str = "adapter_model.safetensors") -> str:
    """Rows, tokens and the trained weights (file `weights`), which name each other; that file's sha256."""
    rows, tokens, adapter = root / "data/final", root / "data/tokens", root / "models/adapter"
    rows.mkdir()
    for split in ("train", "val", "test"):
        (rows / f"{split}.jsonl").write_text(f'{{"id": "{split}"}}\n', encoding="utf-8")
    (tokens / "train.parquet").write_bytes(b"tokens")
    hashes = {f"{split}.jsonl": file_hash(rows / f"{split}.jsonl") for split in ("train", "val")}
    change(tokens / "manifest.json", rows=hashes)
    (adapter / weights).write_bytes(b"adapter")
    change(adapter / "run.json", tokens_sha256=tree_hash(tokens))
    trained_again(root)
    for report in (root / "reports/eval").glob("*.json"):
        change(report, rows_sha256=file_hash(rows / "test.jsonl"))
    return file_hash(adapter / weights)


def trained_again(root: Path) -> None:
    """reports/train.json speaks of the adapter that is there."""
    run = json.loads((root / "reports/train.json").read_text(encoding="utf-8"))["run"]
    hashes = run["hashes"] | {"adapter": tree_hash(root / "models/adapter")}
    change(root / "reports/train.json", run=run | {"hashes": hashes})


def script_environment(folder: Path, server: str = 'printf "%s\\n" "$@"') -> dict[str, str]:
    """Return the environment for a bundle's serve.sh; its llama-server is the shell script `server`."""
    program, state = script(folder / "llama-server", server), folder / "state"
    return {"PATH": os.environ["PATH"], "LLAMA_SERVER": str(program), "STATE_DIRECTORY": str(state)}


def sum_again(folder: Path) -> None:
    """Write checksums that agree with a change, as a forger does."""
    names = [
        path.relative_to(folder).as_posix()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (SUMS, "model.sig")
    ]
    (folder / SUMS).write_text("".join(f"{file_hash(folder / name)}  {name}\n" for name in names))


def flip(file: Path, place: int, bit: int = 0) -> None:
    """One bit of a file is another."""
    data = bytearray(file.read_bytes())
    data[place] ^= 1 << bit
    file.write_bytes(data)


def summed_again(damage: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: (damage(folder), sum_again(folder))


def edited(name: str, edit: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    """A JSON file with one change, and checksums that agree."""

    def damage(folder: Path) -> None:
        value = json.loads((folder / name).read_text(encoding="utf-8"))
        edit(value)
        put(folder / name, value)

    return summed_again(damage)


def forged(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    """Another file under this name, with every text and checksum changed to it."""

    def forge(folder: Path) -> None:
        file, total = folder / name, json.loads((folder / EVALUATION).read_text())["bytes"]
        before, size = file_hash(file), file.stat().st_size
        make(file)
        change(folder / EVALUATION, bytes=total - size + file.stat().st_size)
        for text in (CARD, BILL, EVALUATION, PARITY):
            said = (folder / text).read_text(encoding="utf-8")
            (folder / text).write_text(said.replace(before, file_hash(file)), encoding="utf-8")

    return summed_again(forge)


def texts_of(bundle: Path) -> str:
    """All that a bundle's reader is told, with names in place of the hashes of its files."""
    texts = "".join(f"--- {name}\n{(bundle / name).read_text(encoding='utf-8')}" for name in TEXTS)
    for file in bundle.glob("*.gguf"):
        sha256 = file_hash(file)
        texts = texts.replace(sha256, f"SHA256 of {file.name}").replace(sha256[:12], f"SHORT of {file.name}")
    texts = re.sub(r"\b[0-9a-f]{64}\b", "OTHER SHA256", texts)
    return re.sub(r"urn:uuid:[0-9a-f-]{36}", "UUID", texts).replace(__version__, "VERSION")


def faults_of(bundle: Path, damages: dict[str, Callable[[Path], object]], scratch: Path) -> str:
    """Return the faults found in a copy of the bundle after each damage, a line for each."""
    lines = []
    for case, damage in damages.items():
        folder = Path(shutil.copytree(bundle, scratch / "damaged"))
        damage(folder)
        faults = bundle_faults(folder)
        assert faults, case
        text = re.sub(r"'[0-9a-f]{12}'…", "SHA", " / ".join(faults))
        # words of Python, of the reader of GGUFs and of the schema's validator
        text = re.sub(r"(JSON can't be read|complete GGUF) \(.*\)", r"\1", text)
        text = re.sub(r"(of materials \([^:]*): .*\)", r"\1)", text)
        lines.append(f"{case}: {text}\n")
        shutil.rmtree(folder)
    return "".join(lines)


def printed(card: str) -> dict[str, Any]:
    """The provenance that a card prints."""
    rows = re.findall(r"^\| `([\w.]+)` \| `(.*)` \|$", card, re.MULTILINE)
    return {key: json.loads(value) for key, value in rows}
