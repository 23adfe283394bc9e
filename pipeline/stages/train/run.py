"""What a run depends on, and whether the checkpoints that are there are its own.

A run that was interrupted goes on only if it would end in the same bytes; where something else changed, going
on would mix two runs, and starting again would lose the first one. So neither happens by itself.
"""

import json
import platform
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline.config.sections import Train, Training
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.hardware import cpu_name
from pipeline.core.hashing import file_hash, json_hash, tree_hash
from pipeline.core.jsonl import parse_object
from pipeline.core.publish import remove, write_json
from pipeline.gguf.base_files import MODEL_FILE, SOURCE_FILE
from pipeline.stages.train.checkpoints import (
    checkpoints_in,
    defect,
    kept_from,
    newest_verified,
    read_notes,
    set_later_aside,
    step_of,
)

RUN = "run.json"
LIBRARIES = (
    "torch",
    "transformers",
    "peft",
    "trl",
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
# keys of section train that later versions added: a checkpoint from before them is known without them
ADDED = (
    *("reward", "reward_temperature", "preference", "layers", "freeze_layers", "rank_pattern", "eva_rows"),
    *("alpha_pattern", "use_rslora", "use_dora", "init_lora_weights", "loraplus_lr_ratio", "modules_to_save"),
    *("clip_value", "checkpoint_every", "train_on_prompt", "shuffle", "grpo", "target_experts", "router"),
    "offload_layers",
)
# where weights lie changes no byte, as the number of processes doesn't: a run may go on with it changed
NO_PART = {"shard_base", "device"}  # the device itself is in the record
# but then the base is quantized in main memory, whose sums a GPU makes in another order
ELSEWHERE = ", base quantized in main memory"
# a run may go on with these changed, though no longer to the same bytes: the order of sums depends on them
MACHINE = ("device", "threads")
FITTED = ("settings.bnb_4bit_compute_dtype", "settings.optim")


def describe(tokens: Path, base: Path, settings: Training) -> dict[str, Any]:
    """What the adapter depends on: the same record gives the same bytes on the same kind of machine. Raises
    `DataError` if the file that is learned from is missing.
    """
    import torch

    source, distilled = base / SOURCE_FILE, settings.method == "distill"
    if distilled and not source.is_file():
        raise DataError(
            "Q-TRAIN-027",
            f"{source}, the original that train.method distill learns from, is missing: run `snakemake "
            "--force base`",
        )
    return {
        "tokens_sha256": tree_hash(tokens),
        **({"teacher_sha256": file_hash(source)} if distilled else {}),
        "base": base_hashes(base),
        "settings": settings.model_dump(mode="json", exclude=NO_PART),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
        "device": device_name(settings),
        "threads": torch.get_num_threads(),
    }


def device_name(settings: Training) -> str | None:
    """The device, by its maker's name, and whether NF4 was not made there."""
    import torch

    if not torch.cuda.is_available():
        return cpu_name()
    elsewhere = settings.shard_base and settings.quantization == "nf4"
    return torch.cuda.get_device_name(0) + (ELSEWHERE if elsewhere else "")


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


def find_start(
    folder: Path, record: dict[str, Any], *, resume: bool | Path, replay: bool = False
) -> Path | None:
    """The checkpoint in `folder` to go on from, None for a start from nothing; it is then this run's.

    `resume` may be a chosen checkpoint. Without `resume`, and where a *finished* run left checkpoints of
    other inputs, they are removed, but for what `kept_from` names. Raises `ConfigError` where an unfinished
    run is there and its inputs, settings or libraries were others, and for a choice that is none; nothing is
    deleted then.
    """
    known = _read(folder / RUN) if resume else None
    if resume and known is None and checkpoints_in(folder):
        raise ConfigError(
            "Q-TRAIN-028",
            f"{folder} holds checkpoints without a {RUN}, so nobody knows whose they are (another "
            "version's?): start again with `python -m pipeline train --no-resume`, which deletes them",
        )
    changed = list(differences(known["record"], record)) if known else []
    hard = [text for key, text in changed if key not in MACHINE]
    if isinstance(resume, Path):
        start: Path | None = _chosen(folder, resume, record, hard)
    else:
        start = newest_verified(folder) if known and not (hard and known["finished"]) else None
        if start is not None and hard:
            raise ConfigError(
                "Q-TRAIN-029",
                f"{folder} holds an unfinished run (step {step_of(start)}), and since then "
                f"{'; '.join(hard)} changed: "
                "put that back to go on with it, or start again with `python -m pipeline train --no-resume`",
            )
    if start is None:
        kept = kept_from(record["settings"].get("method"), resume=bool(resume), replay=replay)
        for path in folder.glob("*"):
            if path.name not in kept:
                remove(path)
    for _, text in changed if start else []:
        print(
            f"train: {text} changed: the run goes on, but not to the very bytes of an unbroken one",
            file=sys.stderr,
        )
    write_json(folder / RUN, {"record": record, "finished": False})
    return start


def _chosen(folder: Path, given: Path, record: dict[str, Any], hard: list[str]) -> Path:
    """The checkpoint that a user named (its path, or its name in `folder`), proven whole and this run's;
    later ones are set aside.

    Raises `ConfigError` for one of another place or run, or whose best adapter is gone, `DataError` for a
    torn one; nothing is moved then.
    """
    found = {one.resolve(): one for one in checkpoints_in(folder)}
    others = (
        f"choose one of {', '.join(map(str, found.values()))}"
        if found
        else "there is none, so leave --resume out"
    )
    start = found.get(given.resolve()) or found.get((folder / given).resolve())
    if start is None:
        raise ConfigError("Q-TRAIN-030", f"{given} is no checkpoint in {folder}: {others}")
    if trouble := defect(start):
        raise DataError("Q-TRAIN-031", f"{start} is torn ({trouble}), so no run can go on from it: {others}")
    if hard:
        raise ConfigError(
            "Q-TRAIN-029",
            f"{start} is of a run before {'; '.join(hard)} changed: put that back to go on from it",
        )
    if read_notes(start).get("run") not in (None, run_id(record)):  # older versions did not note it
        raise ConfigError(
            "Q-TRAIN-030", f"{start} is of another run than {folder / RUN}, and was copied here: {others}"
        )
    if (best := _best_of(start)) and (trouble := defect(folder / best)):
        raise ConfigError(
            "Q-TRAIN-032",
            f"{best}, the best adapter until {start}, is gone or torn ({trouble}), and may be what the run "
            f"ends with: {others}",
        )
    set_later_aside(folder, start)
    return start


def _best_of(checkpoint: Path) -> str | None:
    """The name of the checkpoint that was the best until this one, where training stops early
    (`train.early_stopping_patience`).
    """
    state = checkpoint / "trainer_state.json"
    step = json.loads(state.read_text(encoding="utf-8")).get("best_global_step") if state.is_file() else None
    return f"checkpoint-{step}" if step else None


def run_id(record: dict[str, Any]) -> str:
    """What a run's checkpoints are told from another's by: a hash of its record, but for what it may go on
    with changed, and for keys at what runs did before there were such keys.
    """
    kept = {key: value for key, value in record.items() if key not in MACHINE}
    settings = record.get("settings", {})
    before = {key: default(f"settings.{key}") for key in ADDED}
    plain = {key: value for key, value in settings.items() if key not in before or value != before[key]}
    return json_hash(kept | {"settings": plain} if "settings" in kept else kept)


def run_in(folder: Path) -> str | None:
    """The `run_id` of the run that `folder` holds; None if it holds none."""
    known = _read(folder / RUN)
    return run_id(known["record"]) if known else None


def finish(folder: Path, record: dict[str, Any]) -> None:
    """Note that the run's adapter is published: what comes next may replace its checkpoints."""
    write_json(folder / RUN, {"record": record, "finished": True})


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(key, sentence) of everything in which two records differ."""
    for key in sorted({*old, *new}):
        name = f"{prefix}{key}"
        before, after = (one.get(key, default(name)) for one in (old, new))
        if isinstance(before, dict) and isinstance(after, dict):
            yield from differences(before, after, f"{name}.")
        elif before != after:
            shown = name.replace("settings.", "train.").replace("versions.", "library ")
            why = "; auto is what the machine is fast in" if name in FITTED else ""
            yield name, NAMES.get(name) or f"{shown} ({before} → {after}{why})"


def default(name: str) -> Any:
    """What a run did whose record has no such key yet: the key's default."""
    found: Any = {"settings": Train().model_dump(mode="json")}
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        known = parse_object(path.read_bytes())
    except ValueError:
        known = {}
    if not isinstance(known.get("record"), dict) or "finished" not in known:
        raise DataError(
            "Q-TRAIN-033",
            f"{path} can't be read, so nobody knows whose checkpoints these are: start again with `python "
            "-m pipeline train --no-resume`",
        )
    return known
