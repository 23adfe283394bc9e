"""Train the scales of one level on the answers of the 16-bit GGUF that it was made from.

Reads `models/gguf/NAME-F16.gguf` (or BF16), `models/gguf/NAME-LEVEL.gguf`, `data/final/` and `data/distill/`.
Writes `models/gguf/NAME-LEVEL-distilled.gguf`, in which every byte except the scales and the provenance is
the level's, and `reports/distill/LEVEL.json`. It trains below `models/.distill/`; a killed run resumes from
its checkpoint. Command: `python -m pipeline distill@Q4_0`
"""

from pathlib import Path
from typing import Any

from pipeline.config.levels import DISTILLED
from pipeline.config.params import Params
from pipeline.config.tuners import trained_file
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.hashing import file_hash, json_hash
from pipeline.core.locks import absent
from pipeline.core.publish import need_disk, read_json, remove, write_json
from pipeline.core.text import plural
from pipeline.gguf.base_files import MODEL_FILE
from pipeline.gguf.families.registry import DENSE
from pipeline.gguf.provenance import DISTILL, provenance
from pipeline.gguf.tuned_file import write_tuned
from pipeline.models.base_header import checked_header, not_dense
from pipeline.models.tuners.scales import file_scales
from pipeline.subprojects.distill import FOLDER, ROWS, check_same, distill_scales
from pipeline.subprojects.processes import size_of

KEPT = ("steps", "seconds", "tokens", "peak_memory_bytes", "teacher")


def write(project: Path, level: Path, target: Path) -> dict[str, str]:
    """Publish `target`: the file `level` with the scales that were trained in the sub-project `project`.
    Return the hashes of what it was made from.

    Raises `DataError` if the scales were trained in another file.
    """
    base = project / "models/base"
    adapter = project / "models/adapter"
    hashes = {"level_sha256": file_hash(level), "source_sha256": file_hash(base / "source.gguf")}
    check_same(base / MODEL_FILE, level)
    run = read_json(adapter / "run.json", "run the stage again")
    made_from = {
        **hashes,
        "scales_sha256": file_hash(trained_file(adapter)),
        "config_sha256": json_hash(run["settings"]),
        "data_sha256": str(run["tokens_sha256"]),
    }
    fields = provenance(level) | {
        f"{DISTILL}{name.replace('_', '.')}": value for name, value in made_from.items()
    }
    write_tuned(level, target, file_scales(base, adapter), fields)
    return made_from


def check_distillable(source: Path) -> None:
    """Raise `ConfigError` if the model's levels can't be trained on as GGUFs, before hours of work."""
    why = None
    try:
        other = not_dense(checked_header(source))
        if other:
            why = f"{other} can't be trained on as a GGUF, only {', '.join(DENSE)}"
    except DataError as error:
        why = f"{source.name} can't be trained on as a GGUF: {error.sentence}"
    if why:
        raise ConfigError(
            "Q-DISTILL-002", f"no level of this model can be distilled, for {why}. Set quantize.distill to []"
        )


def main(params: Params, root: Path, level: str) -> None:
    """Run the stage for one level on the files below `root`. Raises `ConfigError` if `quantize.distill` does
    not list the level.
    """
    if level not in params.quantize.distill:
        raise ConfigError(
            "Q-DISTILL-004",
            f"{level} is not in quantize.distill ({', '.join(params.quantize.distill) or 'empty'}): add it "
            "there, spelled the same",
        )
    name = params.convert.name
    folder = root / "models/gguf"
    project = root.resolve() / FOLDER / level
    source = folder / f"{name}-{params.convert.type}.gguf"
    plain = folder / f"{name}-{level}.gguf"
    target = folder / f"{name}-{level}{DISTILLED}.gguf"
    for path in (source, plain):
        if not path.exists():
            raise absent(path, root)
    check_distillable(source)
    need_disk(project.parent, size_of(source) + 4 * size_of(plain))
    distill_scales(project, params, source, level, root / "data", original=plain)
    made_from = write(project, plain, target)
    report = figures(project / "reports/train.json")
    rows = read_json(project / ROWS, "run the stage again")
    write_json(
        root / "reports/distill" / f"{level}.json",
        {
            "level": level,
            "file": target.name,
            "sha256": file_hash(target),
            **made_from,
            "rows": rows,
            **report,
        },
    )
    remove(project)
    held_out = [report[key] for key in ("held_out_loss_before", "held_out_loss")]
    shown = " → ".join("not measured" if kld is None else f"{kld:.3g} nats" for kld in held_out)
    print(
        f"distill: {target.name}: {report['steps']} steps in {report['seconds']:.0f} s on "
        f"{plural(rows['train'], 'training row')} and {rows.get('general', 0):,} of data/distill, divergence "
        f"from {params.convert.type} on held-out rows {shown}"
    )


def figures(report: Path) -> dict[str, Any]:
    """Return the figures of the training's `report` for reports/distill/LEVEL.json. Losses are mean
    divergences in nats.
    """
    trained = read_json(report, "run the stage again")
    return {key: trained[key] for key in KEPT if key in trained} | {
        "loss_first": trained["loss_first"],
        "loss_last": trained["loss_last"],
        "held_out_loss_before": trained["eval_loss_before"],
        "held_out_loss": trained["eval_loss"],
    }
