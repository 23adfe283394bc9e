"""Write a model as a folder that can be distributed: GGUF, card, Modelfile, serve script, systemd unit,
checksums, bill of materials, evidence, signature.

An adapter's bundle has two GGUFs, its base's and its own. A GGUF is a copy, not a hard link: it must not
change when something writes into models/gguf in place (`cp` over a file does, and so do tools that set
metadata), and DVC's cache may have the same inode. The folder appears completely or not at all.

    quench ship Q4_K_M
"""

import json
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.config.sections import AUTO, Serve
from pipeline.core.errors import DataError, MachineError
from pipeline.core.extras import provider
from pipeline.core.hashing import file_hash
from pipeline.core.publish import need_disk, publishing, write_text
from pipeline.gate.inputs import Inputs
from pipeline.gate.recommend import Recommendation
from pipeline.gate.verdict import Judgment
from pipeline.gguf.provenance import provenance
from pipeline.pages.templating import fill
from pipeline.serve.restarts import RESTARTS
from pipeline.ship.card import claims, front_matter, serve_script, text_values
from pipeline.ship.listing import (
    FILE_MODE,
    PROGRAM_MODE,
    SIGNATURE,
    Hostile,
    checksums,
    escaped,
    obeyed,
    plain_files,
    read_small,
)

SUMS = "SHA256SUMS"
CARD = "README.md"
BILL = "sbom.cdx.json"
SCRIPT = "serve.sh"
UNIT = "quench.service"
EVALUATION, PARITY, GATE = "evidence/evaluation.json", "evidence/parity.json", "evidence/gate.json"
INSTALLED = "/opt"  # folder in which the unit expects the bundle
SERVER = "/usr/local/bin/llama-server"
MOVE = "move it away, or name another folder with --to"


@dataclass(frozen=True)
class Shipment:
    """Contents of a bundle: the GGUF, its measurements, the gate's judgment, the settings for serving."""

    gguf: Path
    name: str  # the project's name, a prefix of each GGUF's name
    level: str
    inputs: Inputs
    advice: Recommendation
    verdict: Judgment
    serve: Serve
    jinja: str | None  # the base's chat template
    languages: tuple[str, ...]
    datasets: Mapping[str, str]  # sha256 by name
    lora: Path | None = None  # the adapter's GGUF, if `gguf` is the base's

    @property
    def title(self) -> str:
        """Name of the folder: NAME-LEVEL."""
        return f"{self.name}-{self.level}"


def make_bundle(shipment: Shipment, parent: Path, key: Path | None = None) -> Path:
    """Write `parent`/NAME-LEVEL in place of an older bundle, signed if there is a private `key`.

    Returns the folder. Raises `DataError` if something else of that name is there, or an older bundle that
    was changed, `MachineError` if the disk is too small or writes other bytes than were read.
    """
    target = parent / shipment.title
    if target.exists() or target.is_symlink():
        need_untouched(target)
    files = [shipment.gguf, *([shipment.lora] if shipment.lora else [])]
    need_disk(parent, sum(file.stat().st_size for file in files))
    with publishing(target, check=check_sums) as aside:
        aside.mkdir()
        measured = shipment.inputs.evaluations[shipment.level]
        sums = (measured.sha256, measured.lora.sha256 if measured.lora else None)
        for file, sha256 in zip(files, sums, strict=False):
            copy = aside / file.name
            shutil.copyfile(file, copy)
            if file_hash(copy) != sha256:
                raise MachineError(
                    "Q-SHIP-002",
                    f"the copy of {file} has other bytes than what was measured: check the disk, then run "
                    "again",
                )
        write_texts(shipment, aside)
        lines = [f"{file_hash(aside / name)}  {name}\n" for name in sorted(plain_files(aside))]
        (aside / SUMS).write_text("".join(lines), encoding="utf-8")
        if key:
            provider("ship --sign").sign(aside, key)
        set_modes(aside)
    return target


def set_modes(folder: Path) -> None:
    """Give everything in a bundle the modes that verify, whatever the umask. Files that have them already are
    not changed: some file systems have one mode for all, and refuse a change.
    """
    for path in (folder, *folder.rglob("*")):
        modes = (PROGRAM_MODE,) if path.is_dir() or path.name == SCRIPT else (FILE_MODE, PROGRAM_MODE)
        if stat.S_IMODE(path.stat().st_mode) not in modes:
            path.chmod(modes[0])


def write_texts(shipment: Shipment, folder: Path) -> None:
    """Write everything but the GGUFs, the checksums and the signature."""
    from pipeline.ship.sbom import Subject, bill  # It takes a second to import.

    inputs = shipment.inputs
    level = shipment.level
    serve = shipment.serve
    gguf = shipment.gguf
    lora = shipment.lora
    evaluation = inputs.evaluations[level]
    served = evaluation.serving
    produced = lora or gguf  # the file that was made here; it names its sources
    fields = provenance(folder / produced.name)
    sha256 = evaluation.sha256
    values = text_values(
        inputs,
        shipment.advice,
        name=shipment.name,
        level=level,
        serve=serve,
        jinja=shipment.jinja,
    ) | {
        "front_matter": front_matter(inputs.base, level, shipment.languages, inputs.data.on_hub()),
        "bundle": {
            "file": gguf.name,
            "sha256": sha256,
            "claims": claims(fields),
            "verdict": shipment.verdict,
            "llama_version": evaluation.llama_cpp or "llama.cpp of unknown version",
        },
    }
    texts = {
        CARD: fill("card.md.jinja", **values),
        "Modelfile": fill("Modelfile.jinja", **values),
        SCRIPT: serve_script(gguf.name, serve, lora.name if lora else None),
        UNIT: fill(
            "quench.service.jinja",
            name=shipment.name,
            level=level,
            serve=serve,
            # The resolved value of auto from measuring the level.
            on_gpu=serve.on_gpu or (serve.n_gpu_layers == AUTO and bool(served and served.n_gpu_layers)),
            folder=f"{INSTALLED}/{shipment.title}",
            server=SERVER,
            restarts=RESTARTS,
        ),
        BILL: bill(
            Subject(
                name=shipment.title,
                file=produced.name,
                sha256=evaluation.lora.sha256 if lora and evaluation.lora else sha256,
                beside={gguf.name: sha256} if lora else {},
            ),
            base=inputs.base,
            provenance=fields,
            datasets=shipment.datasets,
            versions=inputs.train.run.versions if inputs.train.run else {},
        ),
    }
    for file, text in texts.items():
        hidden = obeyed(text)
        if hidden:
            raise DataError(
                "Q-SHIP-003",
                f"{file} would hold {hidden}, which can hide text: take it out of models/base.json, the chat "
                "template or params.yaml, then run again",
            )
        (folder / file).write_text(text, encoding="utf-8")
    records = {
        EVALUATION: evaluation.written(),
        PARITY: inputs.parity.written(),
        GATE: shipment.verdict.record(),
    }
    for file, value in records.items():
        write_text(
            folder / file,
            escaped(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)) + "\n",
        )


def need_untouched(folder: Path) -> None:
    """Raise `DataError` unless `folder` is a bundle that may be replaced: all of it can be made again."""
    if folder.is_symlink():  # No folder can be renamed over a link.
        raise DataError("Q-SHIP-001", f"{folder} is a symbolic link: {MOVE}")
    if not (folder / SUMS).is_file():
        raise DataError("Q-SHIP-001", f"{folder} exists and is not a bundle: {MOVE}")
    try:
        listed = checksums(read_small(folder / SUMS))
        files = set(plain_files(folder)) - {SUMS, SIGNATURE}
    except Hostile as error:
        raise DataError(
            "Q-SHIP-001", f"{folder} is not as `quench ship` left it ({error}): {MOVE}"
        ) from error
    # Without GGUFs, which are not written by hand.
    texts = {name for name in files & set(listed) if not name.endswith(".gguf")}
    edited = {name for name in texts if file_hash(folder / name) != listed[name]}
    changed = sorted(files - set(listed) | edited)
    if changed:
        raise DataError("Q-SHIP-001", f"{folder} holds what is yours ({', '.join(changed[:10])}): {MOVE}")


def check_sums(folder: Path) -> None:
    """Read a bundle back: every file is listed, with its hash. Raises `MachineError`."""
    listed = checksums((folder / SUMS).read_text(encoding="utf-8"))
    files = set(plain_files(folder)) - {SUMS, SIGNATURE}
    wrong = sorted(files ^ listed.keys())
    if not wrong:
        wrong = [name for name, sha256 in listed.items() if file_hash(folder / name) != sha256]
    if wrong:
        raise MachineError(
            "Q-SHIP-002",
            f"{folder} holds other bytes than were written ({', '.join(wrong)}): check the disk, then run "
            "again",
        )
