"""Are the reports about these very files? A report of yesterday's model says nothing about today's.

The level, the 16-bit model that it is compared with and the untuned one that forgetting is measured from: of each the GGUF and its answers.
Without a merge: the base's GGUF and the adapter's, and the answers with and without the adapter.
Reads `models/gguf/`, `models/adapter/`, `models/merged/` or `models/base/`, `reports/eval/` and `reports/parity.json`. Writes nothing.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.conversion.passport import BASE_FILE, IMATRIX, adapter_fields, folder_fields, passport
from pipeline.hashing import file_hash
from pipeline.publish import read_json
from pipeline.sections import ADAPTED, BARE, UNTUNED
from pipeline.shipping.gate import REFERENCES

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
        if evaluations[one].get("sha256") != hashes[one]:
            yield f"reports/eval/{one}.json is about another file than {path.name}: {again}."
        if evaluations[one].get("answers_sha256") != file_hash(root / f"reports/eval/{one}.answers.jsonl"):
            yield f"reports/eval/{one}.answers.jsonl are not the answers that reports/eval/{one}.json sums up: {again}."
        if measured is not None and not one.startswith(UNTUNED) and measured.get(path.name) != hashes[one]:
            yield f"reports/parity.json is about another file than {path.name}: run `snakemake --force parity`."
    if measured is None:
        yield "reports/parity.json does not say which files it measured: run `snakemake --force parity`."
    own = passport(gguf)
    yield from _lineage(own, gguf.name, root)
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
        told = {gguf.name: found.get("sha256")} | ({lora.name: (found.get("lora") or {}).get("sha256")} if one == ADAPTED else {})
        if other := [name for name, sha256 in told.items() if sha256 != hashes[name]]:
            yield f"reports/eval/{one}.json is about another file than {' and '.join(other)}: {again}."
        answers = root / f"reports/eval/{one}.answers.jsonl"
        if found.get("answers_sha256") != (file_hash(answers) if answers.is_file() else None):
            yield f"reports/eval/{one}.answers.jsonl are not the answers that reports/eval/{one}.json sums up: {again}."
    measured = parity.get("files") or {}
    if other := [name for name, sha256 in hashes.items() if measured.get(name) != sha256]:
        yield f"reports/parity.json is about another file than {' and '.join(other)}: run `snakemake --force parity`."
    recorded = read_json(root / "models/base.json", "run `snakemake base`").get("files") or {}
    if recorded.get(gguf.name) != hashes[gguf.name]:
        yield f"models/base.json names another {gguf.name} than the one that is there: run `snakemake --force base`."
    own, adapter = passport(lora), root / "models/adapter"
    if own.get(BASE_FILE) != hashes[gguf.name]:
        yield f"{lora.name} was made for another file than {gguf.name}: run `snakemake --force lora`."
    expected = adapter_fields(adapter) if (adapter / "adapter_model.safetensors").is_file() else {}
    if not expected:
        yield f"models/adapter is not here, so nothing says which training {lora.name} comes from: run `snakemake`, or pull it (`dvc pull`)."
    elif differ := [key for key, value in expected.items() if own.get(key) != value]:
        yield f"{lora.name}'s passport differs from models/adapter ({', '.join(differ)}): run `snakemake` again."


def _lineage(found: Mapping[str, Any], name: str, root: Path) -> Iterator[str]:
    """Where the passport names another adapter, data or merge than those below `root`."""
    adapter, merged = root / "models/adapter", root / "models/merged"
    expected = (adapter_fields(adapter) if (adapter / "adapter_model.safetensors").is_file() else {}) | folder_fields(merged)
    differ = [key for key, value in expected.items() if found.get(key) != value]
    if not expected:
        yield "models/adapter and models/merged are not here, so nothing says which training this file comes from: run `snakemake merge`."
    elif differ:
        yield f"{name}'s passport differs from models/adapter and models/merged ({', '.join(differ)}): run `snakemake` again."


def _common(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What all levels of a model share: the passport without the importance matrix."""
    return {key: value for key, value in fields.items() if not key.startswith(IMATRIX)}
