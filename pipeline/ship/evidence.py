"""Check that the reports are about these very files.

A report about yesterday's model tells nothing about today's.

For a level these are: it, the 16-bit model that it is compared with and the untuned one that forgetting is
measured from, a GGUF each. For an adapter: the base's GGUF with the adapter's GGUF on it, and the base's
without it. For a file with trained scales: it, and the base's GGUF. Reads these and `models/base.json`,
`models/adapter/`, `models/merged/`, `reports/eval/` and `reports/parity.json`. Writes nothing.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from pipeline.config.levels import ModelName
from pipeline.config.products import product_of
from pipeline.config.sections import BASE
from pipeline.core.hashing import file_hash
from pipeline.gate.evaluations import Evaluation, Evaluations
from pipeline.gate.inputs import read_record
from pipeline.gate.records import Base, Parity
from pipeline.gguf.provenance import BASE_FILE, OF_A_LEVEL, provenance
from pipeline.ship.lineage import provenance_faults


def mismatches(model: str, name: str, root: Path, evaluations: Evaluations, parity: Parity) -> Iterator[str]:
    """Yield a sentence for each report below `root` that is about other files than those of `model`, or those
    that it is compared with; `name` is that of the GGUFs.

    Raises `DataError` if a GGUF is damaged, or models/base.json cannot be read.
    """
    product = product_of(evaluations)
    reference = product.reference(evaluations)
    shipped = product.files(root, name, model)
    compared = dict.fromkeys((model, reference, product.untuned(evaluations)))
    made_of = {
        other: [*filter(None, product.files(root, name, other))] for other in compared if other in evaluations
    }
    hashes = {file: file_hash(file) for file in {*chain(*made_of.values())} if file.is_file()}
    for other, files in made_of.items():
        yield from _report_faults(other, files, hashes, root, evaluations[other])
    yield from _parity_faults(
        [file for other, files in made_of.items() if not ModelName(other).untuned for file in files],
        hashes,
        parity,
    )
    if not set(made_of[model]) <= hashes.keys():
        return
    produced = shipped.lora or shipped.gguf
    fields = provenance(produced)
    inherited = None
    if product.served:
        base = product.files(root, name, BASE).gguf
        base_hash = hashes.get(base) or (file_hash(base) if base.is_file() else None)
        yield from _base_faults(base, base_hash, produced, fields, root, product.made_by)
        inherited = provenance(base) if base_hash and not shipped.lora else None
    yield from provenance_faults(fields, produced.name, root, merged=not product.served, inherited=inherited)
    f16 = produced if product.served else made_of[reference][0]  # the 16-bit GGUF
    if f16 != produced and f16 in hashes and _common(fields) != _common(provenance(f16)):
        yield (
            f"{produced.name} comes from another model than {f16.name} (their provenance records differ): "
            "run `snakemake --force quantize`."
        )


def _report_faults(
    model: str, files: list[Path], hashes: Mapping[Path, str], root: Path, evaluation: Evaluation
) -> Iterator[str]:
    """Yield a sentence if a model's evaluation is of other files (a GGUF, and perhaps an adapter's with it),
    or summarizes other answers.
    """
    report = f"reports/eval/{model}.json"
    again = f"run `python -m pipeline evaluate@{model}` again"
    lacking = [file.name for file in files if file not in hashes]
    if lacking:
        yield (
            f"{' and '.join(lacking)} is missing, so nothing says that {report} is about it: run "
            "`snakemake`, or pull it (`dvc pull`)."
        )
        return
    measured = [
        evaluation.sha256 if evaluation.file == files[0].name else None,
        evaluation.lora.sha256 if evaluation.lora else None,
    ]
    other = [file.name for file, sha256 in zip(files, measured, strict=False) if sha256 != hashes[file]]
    if other:
        yield f"{report} is about another file than {' and '.join(other)}: {again}."
    answers = root / f"reports/eval/{model}.answers.jsonl"
    if not answers.is_file() or evaluation.answers_sha256 != file_hash(answers):
        yield f"{answers.relative_to(root)} are not the answers that {report} sums up: {again}."


def _parity_faults(files: list[Path], hashes: Mapping[Path, str], parity: Parity) -> Iterator[str]:
    other = [
        file.name
        for file in dict.fromkeys(files)
        if file in hashes and parity.files.get(file.name) != hashes[file]
    ]
    if other:
        yield (
            f"reports/parity.json is about another file than {' and '.join(other)}: run `snakemake --force "
            "parity`."
        )


def _base_faults(
    gguf: Path, sha256: str | None, produced: Path, fields: Mapping[str, Any], root: Path, stage: str
) -> Iterator[str]:
    """Yield a sentence if the base's GGUF is not the one that models/base.json names, or that `produced` (the
    adapter's GGUF, or the tuned one, which `stage` makes) was made for.
    """
    recorded = read_record(root, "models/base.json", Base, "base").files.get(gguf.name)
    if sha256 and recorded != sha256:
        yield f"models/base.json names another {gguf.name} than this one: run `snakemake --force base`."
    if fields.get(BASE_FILE) != (sha256 or recorded):
        yield f"{produced.name} was made for another file than {gguf.name}: run `snakemake --force {stage}`."


def _common(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that all levels of a model share: the provenance without those of a level only."""
    return {key: value for key, value in fields.items() if not key.startswith(OF_A_LEVEL)}
