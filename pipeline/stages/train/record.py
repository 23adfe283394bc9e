"""Records of a run: the inputs that its adapter depends on (models/adapter/run.json), and the differences
between two of them. For reports/train.json also the machine, versions, seeds, command and commit.
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
# The place of weights changes no byte, like the number of processes, so a run may resume with these changed.
# The device itself is in the record.
NO_PART = {"offload", "device", "machine"}
# Suffix of the device's name if the base was quantized in main memory, because a GPU makes its sums in
# another order.
ELSEWHERE = ", base quantized in main memory"
# A run may resume with these changed, though no longer to the same bytes, because the order of sums depends
# on them.
MACHINE = ("device", "threads")
FITTED = ("settings.bnb_4bit_compute_dtype", "settings.optim")
GIT_SECONDS = 30


def describe(tokens: Path, base: Path, settings: Training) -> dict[str, Any]:
    """Return the inputs that the adapter depends on. The same record gives the same bytes on the same kind
    of machine. Raises `DataError` if the file that is learned from is missing.
    """
    import torch

    source = base / SOURCE_FILE
    has_teacher = METHODS[settings.method].teacher
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
    """Return the settings that the adapter depends on. The rollouts' GGUF type is one only if llama-server
    draws them.
    """
    values = settings.model_dump(mode="json", exclude=NO_PART)
    if values["grpo"]["rollouts"] != "llama-server":
        values["rollout_type"] = None
    return values


def device_name(settings: Training) -> str | None:
    """Return the device by its maker's name, with a note if NF4 was not quantized there."""
    import torch

    if not torch.cuda.is_available():
        return cpu_name()
    return torch.cuda.get_device_name(0) + (ELSEWHERE if settings.makes_nf4_in_ram else "")


def base_hashes(base: Path) -> dict[str, str]:
    """Return the SHA-256 of the base's weights, configuration, tokenizer and chat template, so that a change
    has a name.
    """

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
    """Yield (key, sentence) for every difference between two records."""
    for key in sorted({*old, *new}):
        name = f"{prefix}{key}"
        before = old.get(key)
        after = new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from differences(before, after, f"{name}.")
        elif before != after:
            shown = name.replace("settings.", "train.").replace("versions.", "library ")
            why = "; auto is what the machine is fast in" if name in FITTED else ""
            sentence = NAMES.get(name) or f"{shown} ({before} → {after}{why})"
            yield name, sentence


def run_id(record: dict[str, Any]) -> str:
    """Return a hash that tells a run's checkpoints from another's: that of its record without what may
    change.
    """
    return json_hash({key: value for key, value in record.items() if key not in MACHINE})


def run_record(
    root: Path, *, argv: Sequence[str], seeds: Mapping[str, int], hashes: Mapping[str, str]
) -> dict[str, Any]:
    """Return the record as JSON without host, user, absolute paths. `root` is the project, `argv`
    `sys.argv`.
    """
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
    """Return the version of Quench and of every library that it requires, or None if not installed."""
    names = sorted(
        {
            re.split(r"[^\w.-]", line, maxsplit=1)[0]
            for line in requires("quench") or ()
            if "extra ==" not in line
        }
    )
    return {"quench": __version__} | {name: _version(name) for name in names}


def command(argv: Sequence[str]) -> list[str]:
    """Return the command line as a list. Absolute paths are cut to their last part because they name users
    and machines.
    """
    program = Path(argv[0]).name
    start = ["python", "-m", "pipeline"] if program == "__main__.py" else [program]
    return start + [re.sub(r"(^|(?<==))/(?:.*/)?(?=[^/]*$)", "…/", argument) for argument in argv[1:]]


def git_state(root: Path) -> dict[str, Any] | None:
    """Return the project's commit, and whether tracked files other than dvc.lock differ, or None outside a
    repository.
    """
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
    """Return Git's output, or None without Git, a repository or a commit."""
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
