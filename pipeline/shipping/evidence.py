"""Are the reports about these very files? A report of yesterday's model says nothing about today's.

The level, the 16-bit model that it is compared with and the untuned one that forgetting is measured from: of each the GGUF and its answers.
Reads `models/gguf/`, `models/adapter/`, `models/merged/`, `reports/eval/` and `reports/parity.json`. Writes nothing.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.conversion.passport import IMATRIX, adapter_fields, folder_fields, passport
from pipeline.hashing import file_hash
from pipeline.sections import UNTUNED
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
