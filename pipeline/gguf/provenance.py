"""Write and read a GGUF's provenance as its metadata: base, adapter, data, settings, template, llama.cpp.

llama-quantize copies metadata, so that every level has it too. Standard keys are used if there are any
(ggml/docs/gguf.md), `quench.*` for the rest. No paths and no dates: the same model has the same bytes on
every machine.
"""

from pathlib import Path
from typing import Any

from pipeline.config.tuners import trained_file
from pipeline.core.hashing import file_hash, json_hash
from pipeline.core.publish import read_json
from pipeline.gguf.file import check_gguf

OWN = "quench."
IMATRIX = "quench.imatrix."  # fields that stage quantize adds; they differ by level
DISTILL = "quench.distill."  # fields that stage distill adds to the level that it refines
OF_A_LEVEL = (IMATRIX, DISTILL)  # fields of a level only, in addition to those it shares with F16
ADAPTER = "quench.adapter.sha256"
PREVIOUS = "quench.adapter.previous.sha256"  # of the folder that training went on from
# In an adapter's GGUF, or one with trained scales: sha256 of the file that was trained on.
BASE_FILE = "quench.base_gguf.sha256"
# keys of merge.json
MERGE = (
    {"adapter_sha256": ADAPTER}
    | {"merge_base": "quench.merge.base"}
    | {key: f"quench.merge.{key}" for key in ("method", "dtype")}
)
STANDARD = ("general.name", "general.license", "general.base_model.")
Fields = dict[str, str | int]


def lineage_fields(lineage: Path) -> Fields:
    """Return only the base's fields. Raises `DataError` if the record can't be read."""
    record = read_json(lineage, "run the stage that makes it again")
    named = str(record["model"])
    revision = record.get("revision")
    on_hub = record["source"] == "hub"
    # Elsewhere it may be a path of this machine.
    owner, _, name = named.rpartition("/") if on_hub else ("", "", Path(named).name)
    given = {
        "general.license": record.get("license"),
        "general.base_model.0.name": name,
        "general.base_model.0.organization": owner,
        "general.base_model.0.repo_url": f"https://huggingface.co/{named}" if on_hub else None,
        "general.base_model.0.version": revision,
        "quench.base.source": record["source"],
        "quench.base.sha256": json_hash(record["files"]),
    }
    return {"general.base_model.count": 1, **{key: str(value) for key, value in given.items() if value}}


def adapter_fields(adapter: Path) -> Fields:
    """Return the fields of the adapter (or the scales), with its data and settings if it has training's
    record. They are written into the tuned model and into the adapter's own GGUF.
    """
    fields: Fields = {ADAPTER: file_hash(trained_file(adapter))}
    if (adapter / "run.json").exists():  # Another tool's adapter has no such record.
        run = read_json(adapter / "run.json", "run the stage that makes it again")
        fields |= {
            "quench.data.sha256": str(run["tokens_sha256"]),
            "quench.config.sha256": json_hash(run["settings"]),
        }
        if "previous_sha256" in run:  # It went on from what was trained before.
            fields[PREVIOUS] = str(run["previous_sha256"])
    return fields


def folder_fields(folder: Path) -> Fields:
    """Return the fields of a model folder's template, and of its merge if it was merged (merge.json, without
    the figures, which arithmetic may change).
    """
    fields: Fields = {}
    template = folder / "chat_template.jinja"
    merge = folder / "merge.json"
    if template.exists():
        fields["quench.template.sha256"] = file_hash(template)
    if merge.exists():
        record = read_json(merge, "run the stage that makes it again")
        fields |= {field: str(record[key]) for key, field in MERGE.items() if key in record}
        fields["quench.merge.sha256"] = json_hash(
            record
            | {"adapters": [(adapter["tensor"], adapter["scale"]) for adapter in record.get("adapters", [])]}
        )
    return fields


def provenance(path: Path) -> dict[str, Any]:
    """Return a GGUF's own record of where it comes from: its `quench.*` fields and the standard ones; empty
    for another tool's file.

    Raises `DataError` if the file is incomplete.
    """
    return {
        key: value
        for key, value in sorted(check_gguf(path).fields.items())
        if key.startswith((OWN, *STANDARD))
    }
