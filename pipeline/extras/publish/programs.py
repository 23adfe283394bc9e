"""Put a bundle's model into a program of this machine: Ollama by its own command, LM Studio by its folder.

quench ship Q4_K_M --to ollama     # ollama create NAME:q4_k_m with the bundle's Modelfile
quench ship Q4_K_M --to lmstudio   # ~/.lmstudio/models/quench/NAME/NAME-Q4_K_M.gguf
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from pipeline.core.errors import ConfigError, DataError, MachineError, ToolError
from pipeline.core.hashing import file_hash
from pipeline.core.publish import need_disk, publishing
from pipeline.core.text import one_line
from pipeline.extras.publish.shipped import Shipped

OLLAMA, LM_STUDIO = "ollama", "lmstudio"
PUBLISHER = "quench"  # LM Studio sorts models by publisher.
TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
BLOB = re.compile(r"sha256[-:]([0-9a-f]{64})")  # An Ollama blob is named by its hash.


def check(program: str, *, with_lora: bool) -> None:
    """Raise `ToolError` if the program is not on this machine, `ConfigError` if it can't hold the model."""
    if program == OLLAMA:
        _ollama()
        return
    if with_lora:
        raise ConfigError(
            "Q-SHIP-021",
            "LM Studio applies no adapter to a base's GGUF: ship it to Ollama (--to ollama), or merge and "
            "ship a level",
        )
    lm_studio_models()


def install(program: str, bundle: Shipped) -> Iterator[str]:
    """Put the model into `program`. Yield lines that say where it is and what was proven.

    Raises `ToolError` (the program is missing or fails), `MachineError` (the disk), `DataError` (something
    else is in the place).
    """
    return _into_ollama(bundle) if program == OLLAMA else _into_lm_studio(bundle)


def _ollama() -> str:
    found = shutil.which(OLLAMA)
    if not found:
        raise ToolError(
            "Q-SHIP-019",
            "there is no program ollama on PATH: install it (ollama.com), or ship to a folder and use the "
            "Modelfile there",
        )
    return found


def _into_ollama(bundle: Shipped) -> Iterator[str]:
    program = _ollama()
    model = f"{bundle.name}:{bundle.level}".lower()
    _run([program, "create", model, "-f", "Modelfile"], bundle.folder)
    yield f"ollama:  ollama run {model}"
    blobs = set(BLOB.findall(_run([program, "show", "--modelfile", model], bundle.folder)))
    wanted = {bundle.sums[name] for name in bundle.ggufs}
    if wanted <= blobs:
        yield "proven:  Ollama's blob has the sha256 of the file that was measured"
    else:
        yield (
            "Beware:  Ollama holds the GGUF under another sha256 (since 0.30 it writes the header again), so "
            "that it is the measured model is not proven"
        )


def _run(command: list[str], folder: Path) -> str:
    """Return what the program prints. It does not get the hub's token.

    Raises `ToolError` with its last line if it fails.
    """
    done = subprocess.run(
        command,
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name not in TOKENS},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise ToolError(
            "Q-SHIP-020",
            f"`ollama {command[1]}` failed ({one_line(last, 200)}): start Ollama (`ollama serve`), then run "
            f"again; the bundle is in {folder}",
        )
    return done.stdout


def lm_studio_models() -> Path:
    """Return the folder in which LM Studio looks for models (lmstudio.ai/docs/app/basics/import-model).

    Its home is what `~/.lmstudio-home-pointer` names, or `~/.lmstudio`, and its settings may name another
    folder. Raises `ToolError` if there is no such home.
    """
    home = Path.home() / ".lmstudio"
    try:
        named = (Path.home() / ".lmstudio-home-pointer").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        named = ""
    if named and Path(named).is_dir():
        home = Path(named)
    if not home.is_dir():
        raise ToolError(
            "Q-SHIP-019",
            f"LM Studio is not on this machine ({home} is missing): start it once, or ship to a folder",
        )
    try:
        settings = json.loads((home / "settings.json").read_text(encoding="utf-8"))
        chosen = settings.get("downloadsFolder")
    except (OSError, ValueError, AttributeError):
        chosen = None
    return Path(chosen) if isinstance(chosen, str) and Path(chosen).is_absolute() else home / "models"


def _into_lm_studio(bundle: Shipped) -> Iterator[str]:
    folder = lm_studio_models() / PUBLISHER / bundle.name
    for name in bundle.ggufs:
        target = folder / name
        if target.is_dir():
            raise DataError("Q-SHIP-001", f"{target} is a folder: move it away, then run again")
        how = _link_or_copy(bundle.folder / name, target, bundle.sums[name])
        yield f"lmstudio: {target} ({how}, its sha256 is that of the measured file)"


def _link_or_copy(source: Path, target: Path, sha256: str) -> str:
    """Publish a GGUF at `target` as a hard link, on another disk as a copy. Return which of both.

    The link is to the bundle's file, which is a copy of its own. Raises `MachineError` if what is there has
    other bytes.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    how = "a hard link"
    with publishing(target) as aside:
        try:
            os.link(source, aside)
        except OSError:
            need_disk(target.parent, source.stat().st_size)
            shutil.copyfile(source, aside)
            how = "a copy"
        if file_hash(aside) != sha256:
            raise MachineError(
                "Q-SHIP-002",
                f"{target} would have other bytes than the bundle: check the disk, then run again",
            )
    return how
