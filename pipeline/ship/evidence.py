"""Are the reports about these very files? A report of yesterday's model says nothing about today's.

The level, the 16-bit model that it is compared with and the untuned one that forgetting is measured from: of each the GGUF and its answers.
Without a merge: the base's GGUF and the adapter's, and the answers with and without the adapter.
Reads `models/gguf/`, `models/adapter/`, `models/merged/` or `models/base/`, `reports/eval/` and `reports/parity.json`. Writes nothing.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.config.sections import ADAPTED, BARE, UNTUNED
from pipeline.core.hashing import file_hash
from pipeline.gate.comparison import REFERENCES
from pipeline.gate.shapes import Base, read_record
from pipeline.gguf.provenance import BASE_FILE, IMATRIX, passport
from pipeline.ship.lineage import passport_faults

Hashes = dict[str, str]  # sha256 by file name


def mismatches(gguf: Path, model: str, root: Path, evaluations: Mapping[str, Mapping[str, Any]], parity: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each report below `root` that is about other files than `gguf` (of `model`) and the 16-bit ones beside it.

    Raises `DataError` where a GGUF is not whole.
    """
    name = gguf.name.removesuffix(f"-{model}.gguf")
    sixteen = next((kind for kind in REFERENCES if kind in evaluations), None)
    used = [one for one in dict.fromkeys((model, sixteen, f"{UNTUNED}{sixteen}")) if one in evaluations]
    files = {one: gguf.with_name(f"{name}-{one}.gguf") for one in used if one}
    hashes = {one: file_hash(path) for one, path in files.items() if path.is_file()}
    measured = parity.get("files")
    for one, path in files.items():
        again = f"run `python -m pipeline evaluate@{one}` again"
        if one not in hashes:
            yield f"{path.name} is not there, so nothing says that reports/eval/{one}.json is about it: run `snakemake`, or pull it (`dvc pull`)."
            continue
        if evaluations[one].get("sha256") != hashes[one] or evaluations[one].get("file") != path.name:
            yield f"reports/eval/{one}.json is about another file than {path.name}: {again}."
        yield from _answers_fault(root, one, evaluations[one])
        if measured is not None and not one.startswith(UNTUNED) and measured.get(path.name) != hashes[one]:
            yield f"reports/parity.json is about another file than {path.name}: run `snakemake --force parity`."
    if measured is None:
        yield "reports/parity.json does not say which files it measured: run `snakemake --force parity`."
    own = passport(gguf)
    yield from passport_faults(own, gguf.name, root, merged=True)
    if sixteen in hashes and sixteen != model and _common(own) != _common(passport(files[sixteen])):
        yield f"{gguf.name} comes from another model than {files[sixteen].name} (their passports differ): run `snakemake --force quantize`."


def adapter_mismatches(gguf: Path, lora: Path, root: Path, evaluations: Mapping[str, Mapping[str, Any]], parity: Mapping[str, Any]) -> Iterator[str]:
    """The same of the model "adapter": a sentence for each report or record below `root` that is about other files than `gguf` and `lora`.

    Raises `DataError` where a GGUF is not whole, or models/base.json can't be read.
    """
    if lacking := [file for file in (gguf, lora) if not file.is_file()]:
        yield f"{' and '.join(file.name for file in lacking)} is not there: run `snakemake`, or pull it (`dvc pull`)."
        return
    hashes: Hashes = {file.name: file_hash(file) for file in (gguf, lora)}
    for one in (model for model in (ADAPTED, BARE) if model in evaluations):
        again, found = f"run `python -m pipeline evaluate@{one}` again", evaluations[one]
        told = {gguf.name: found.get("sha256") if found.get("file") == gguf.name else None}
        told |= {lora.name: (found.get("lora") or {}).get("sha256")} if one == ADAPTED else {}
        if other := [name for name, sha256 in told.items() if sha256 != hashes[name]]:
            yield f"reports/eval/{one}.json is about another file than {' and '.join(other)}: {again}."
        yield from _answers_fault(root, one, found)
    measured = parity.get("files") or {}
    if other := [name for name, sha256 in hashes.items() if measured.get(name) != sha256]:
        yield f"reports/parity.json is about another file than {' and '.join(other)}: run `snakemake --force parity`."
    if read_record(root, "models/base.json", Base, "base")["files"].get(gguf.name) != hashes[gguf.name]:
        yield f"models/base.json names another {gguf.name} than the one that is there: run `snakemake --force base`."
    own = passport(lora)
    if own.get(BASE_FILE) != hashes[gguf.name]:
        yield f"{lora.name} was made for another file than {gguf.name}: run `snakemake --force lora`."
    yield from passport_faults(own, lora.name, root, merged=False)


def _answers_fault(root: Path, model: str, found: Mapping[str, Any]) -> Iterator[str]:
    """Where the answers are not those that the figures sum up."""
    answers = root / f"reports/eval/{model}.answers.jsonl"
    if not answers.is_file() or found.get("answers_sha256") != file_hash(answers):
        stage = f"evaluate@{model}"
        yield f"{answers.relative_to(root)} are not the answers that reports/eval/{model}.json sums up: run `python -m pipeline {stage}` again."


def _common(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What all levels of a model share: the passport without the importance matrix."""
    return {key: value for key, value in fields.items() if not key.startswith(IMATRIX)}
