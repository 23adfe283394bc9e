"""The records of a run: what its adapter depends on (models/adapter/run.json), in what two differ;
of the run itself, for reports/train.json, the machine, versions, seeds, command and commit.
"""

import platform
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from pipeline import __version__
from pipeline.config.methods import METHODS
from pipeline.config.sections import Training
from pipeline.core.errors import DataError
from pipeline.core.hardware import cpu_name, hardware
from pipeline.core.hashing import file_hash, json_hash, tree_hash
from pipeline.gguf.base_files import MODEL_FILE, SOURCE_FILE

LIBRARIES = (
    "torch",
    "transformers",
    "peft",
    "bitsandbytes",
    "accelerate",
    "datasets",
    "tokenizers",
    "liger-kernel",
)
NAMES = {
    "tokens_sha256": "the training rows (data/tokens)",
    "base.weights_sha256": "the base's weights",
    "base.config_sha256": "the base's config.json",
    "base.tokenizer_sha256": "the base's tokenizer",
    "base.template_sha256": "the base's chat template",
    "teacher_sha256": f"the file that is learned from ({SOURCE_FILE})",
}
# where weights lie changes no byte, as the number of processes doesn't: a run may resume with it changed
NO_PART = {"offload", "device", "machine"}  # the device itself is in the record
# but then the base is quantized in main memory, whose sums a GPU makes in another order
ELSEWHERE = ", base quantized in main memory"
# a run may resume with these changed, though no longer to the same bytes: the order of sums depends on them
MACHINE = ("device", "threads")
FITTED = ("settings.bnb_4bit_compute_dtype", "settings.optim")
GIT_SECONDS = 30


def describe(tokens: Path, base: Path, settings: Training) -> dict[str, Any]:
    """What the adapter depends on: the same record gives the same bytes on the same kind of machine. Raises
    `DataError` if the file that is learned from is missing.
    """
    import torch

    source, has_teacher = base / SOURCE_FILE, METHODS[settings.method].teacher
    if has_teacher and not source.is_file():
        raise DataError(
            "Q-TRAIN-027",
            f"{source}, the original that train.method {settings.method} learns from, is missing: run "
            "`snakemake --force base`",
        )
    return {
        "tokens_sha256": tree_hash(tokens),
        **({"teacher_sha256": file_hash(source)} if has_teacher else {}),
        "base": base_hashes(base),
        "settings": settings_part(settings),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
        "device": device_name(settings),
        "threads": torch.get_num_threads(),
    }


def settings_part(settings: Training) -> dict[str, Any]:
    """The settings the adapter depends on; the rollouts' GGUF type only if rollouts are drawn with one."""
    values = settings.model_dump(mode="json", exclude=NO_PART)
    return values | ({} if values["grpo"]["rollouts"] == "llama-server" else {"rollout_type": None})


def device_name(settings: Training) -> str | None:
    """The device, by its maker's name, and whether NF4 was not made there."""
    import torch

    if not torch.cuda.is_available():
        return cpu_name()
    return torch.cuda.get_device_name(0) + (ELSEWHERE if settings.makes_nf4_in_ram else "")


def base_hashes(base: Path) -> dict[str, str]:
    """sha256 of the base's weights, configuration, tokenizer and chat template: a change has a name."""

    def together(files: Iterable[Path]) -> str:
        return json_hash({path.name: file_hash(path) for path in files})

    template = base / "chat_template.jinja"
    return {
        "weights_sha256": together([*base.glob("*.safetensors"), *base.glob(MODEL_FILE)]),
        "config_sha256": together(path for path in base.glob("*config.json") if "tokenizer" not in path.name),
        "tokenizer_sha256": together([*base.glob("tokenizer.json"), *base.glob("tokenizer_config.json")]),
        "template_sha256": file_hash(template) if template.is_file() else "",
    }


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(key, sentence) of everything in which two records differ."""
    for key in sorted({*old, *new}):
        name = f"{prefix}{key}"
        before, after = (record.get(key) for record in (old, new))
        if isinstance(before, dict) and isinstance(after, dict):
            yield from differences(before, after, f"{name}.")
        elif before != after:
            shown = name.replace("settings.", "train.").replace("versions.", "library ")
            why = "; auto is what the machine is fast in" if name in FITTED else ""
            yield name, NAMES.get(name) or f"{shown} ({before} → {after}{why})"


def run_id(record: dict[str, Any]) -> str:
    """What tells a run's checkpoints from another's: a hash of its record without what may change."""
    return json_hash({key: value for key, value in record.items() if key not in MACHINE})


def run_record(
    root: Path, *, argv: Sequence[str], seeds: Mapping[str, int], hashes: Mapping[str, str]
) -> dict[str, Any]:
    """The record as JSON without host, user, absolute paths. `root` is the project, `argv` `sys.argv`."""
    return {
        "hardware": hardware(),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions(),
        "seeds": dict(seeds),
        "command": command(argv),
        "git": git_state(root),
        "hashes": dict(hashes),
    }


def versions() -> dict[str, str | None]:
    """The version of Quench and of every library that it pins or asks for; None if not installed."""
    names = sorted(
        {
            re.split(r"[^\w.-]", line, maxsplit=1)[0]
            for line in requires("quench") or ()
            if "extra ==" not in line
        }
    )
    return {"quench": __version__} | {name: _version(name) for name in names}


def command(argv: Sequence[str]) -> list[str]:
    """The command line as a list; of absolute paths the last part, for they name users and machines."""
    program = Path(argv[0]).name
    start = ["python", "-m", "pipeline"] if program == "__main__.py" else [program]
    return start + [re.sub(r"(^|(?<==))/(?:.*/)?(?=[^/]*$)", "…/", argument) for argument in argv[1:]]


def git_state(root: Path) -> dict[str, Any] | None:
    """Commit of the project, and whether tracked files but dvc.lock differ; None outside a repository."""
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return None
    return {
        "commit": commit,
        "dirty": bool(
            _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)dvc.lock")
        ),
    }


def _git(root: Path, *arguments: str) -> str | None:
    """What Git says, None where there is no Git, no repository or no commit."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
