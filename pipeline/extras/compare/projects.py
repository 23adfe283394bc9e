"""Sub-projects below models/.compare: folders in which a job runs real stages, with settings of their own and
links to shared inputs.

    models/.compare/nf4-42    job compare_nf4@42: train

They are scratch. The next run of a job uses the checkpoints that a killed training left. A training publishes

    models/compare/nf4-42/adapter                            the trained adapter;
                  /lora_nf4-Q4_0-42/training.json            the training on NF4 that the strategy uses;
                  /scales_level-Q4_0-42/patch.safetensors    patch from the level to the tuned file,
                                       /run.json             how it was trained
                                       /train.json           of each training: time, memory, loss

A level with trained scales is as large as the level; its patch is a tenth of that. Measuring makes the level
again and proves by its SHA-256 that the patch belongs to it.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.chat.selection import why_unanswered
from pipeline.config.ggml_types import TYPES
from pipeline.config.levels import UNTUNED
from pipeline.config.params import Params
from pipeline.config.sections import LEVELS_ALONE, TUNED, Train
from pipeline.config.sections.base import keys_of_file
from pipeline.config.sections.values import AUTO
from pipeline.config.strategies import FOLDER, Job
from pipeline.config.tuners import REFUSED_ELSEWHERE
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.locks import absent
from pipeline.core.publish import need_disk, publishing, remove, write_json
from pipeline.gguf.families.registry import DENSE
from pipeline.gguf.patch import write_patch
from pipeline.llamacpp.converters import Quantizing, quantize_gguf
from pipeline.llamacpp.tools import Llama, find_toolchain
from pipeline.models.base_header import checked_header, not_dense
from pipeline.planning.model.config_file import load_shape
from pipeline.planning.model.gguf_base import quantized_level
from pipeline.planning.model.level_bytes import level_bytes
from pipeline.planning.plan import own_bytes, plan_disk
from pipeline.planning.setup import Setup
from pipeline.subprojects.processes import Settings, changed_params, open_subproject, run_stage, size_of
from pipeline.subprojects.processes import train as train_here

TRAINED = Path("models/compare")  # one folder per training: its result and its report
TRAINABLE = {name for name, kind in TYPES.items() if kind.scratch is not None}
LEVEL_FILE = "level.gguf"  # file in a sub-project: the untuned base at a level
HELD_OUT = Path("data/final/test.jsonl")
PATCH = "patch.safetensors"
LEARNING_RATE = 5.0e-3  # peak learning rate for scales that learn the task; the best is between 1e-3 and 1e-2


def open_project(
    root: Path, name: str, params: Params, settings: Settings, links: Mapping[str, Path]
) -> Path:
    """Open the sub-project `name` of `root`, with `settings` applied over `params` and with `links` ({path in
    it: target}). Return its folder.

    Everything that would stop one of the jobs is checked here, before the first of them trains for hours.
    Raises `DataError` if an input is missing or no held-out row can be answered, `ConfigError` for a base or
    a level that can't be trained on, `MachineError` if the disk is too small.
    """
    needed = (root / "models/base/config.json", untuned_gguf(root, params), root / HELD_OUT)
    for path in (*links.values(), *needed):
        if not path.exists():
            raise absent(path, root)
    check_answerable(root)
    check_trainable(root, params)
    need_disk(root / FOLDER, scratch_bytes(root, params))
    return open_subproject(root.resolve() / FOLDER / name, sub_params(params, settings), links)


def sub_params(params: Params, settings: Settings) -> Settings:
    """Return `params` as a validated dict for YAML, with the settings that all sub-projects share and with
    `settings` applied on top.
    """
    kind = params.convert.type
    shared: Settings = {
        "base": {"quantization": "nf4", "level": None},
        "train": {"method": "sft", "sample_rows": 0},
        "merge": {"base": "16-bit"},
        "parity": {"depth": "quick"},  # this depth needs no GGUF of the untuned base
        "quantize": {"levels": list(params.compare.levels), **LEVELS_ALONE},
        "compare": {"seeds": []},
        "evaluate": {"models": [kind]},
    }
    return changed_params(params, shared, settings)


def base_links(root: Path) -> dict[str, Path]:
    """Return links to the project's own base, for a sub-project."""
    return {place: root / place for place in ("models/base", "models/base.json")}


def open_level(
    params: Params,
    root: Path,
    job: Job,
    links: Mapping[str, Path],
    *,
    file: str = LEVEL_FILE,
    scales: bool = False,
) -> Path:
    """Open the job's sub-project whose base is a level, the GGUF `file` in it. With `scales`, the scales of
    its blocks train there. Return its folder. Raises as `open_project` does.
    """
    settings = level_settings(params, root, job, file, scales=scales)
    return open_project(root, job.name, params, settings, links)


def level_settings(
    params: Params, root: Path, job: Job, file: str = LEVEL_FILE, *, scales: bool = False
) -> Settings:
    """Return the settings in which the sub-project of `open_level` differs."""
    base = keys_of_file(root.resolve() / FOLDER / job.name / file)
    offload = params.train.offload
    # A GGUF's embeddings can't be moved, and the kernels of its blocks are not compiled.
    train: dict[str, Any] = {
        "offload": "none" if offload == "embeddings" else offload,
        "compile": AUTO,
        "seed": job.seed,
    }
    if scales:
        train |= {
            "tuner": "scales",
            "learning_rate": LEARNING_RATE,
            "weight_decay": 0.0,
            **{key: getattr(Train(), key) for key in REFUSED_ELSEWHERE},
        }
    return {"base": base, "evaluate": {"models": [TUNED if scales else "adapter"]}, "train": train}


def untuned_gguf(root: Path, params: Params) -> Path:
    """Return the path of the untuned base in 16 bits, which stage convert made."""
    return root / f"models/gguf/{params.convert.name}-{UNTUNED}{params.convert.type}.gguf"


def base_level(params: Params, root: Path, project: Path, level: str) -> Path:
    """Write the untuned base at `level` into `project` and return the file."""
    return quantize(params, untuned_gguf(root, params), project / LEVEL_FILE, level)


def quantize(params: Params, sixteen: Path, target: Path, level: str) -> Path:
    """Write the 16-bit GGUF `sixteen` at `level` as `target` and return `target`."""
    llama = Llama(find_toolchain(params.machine.llama_cpp), params.machine.threads)
    options = Quantizing(tensor_types=params.quantize.tensor_types)
    quantize_gguf(llama, sixteen, target, level, options)
    return target


def train(project: Path, target: Path) -> None:
    """Train in `project`, publish adapter and report as the folder `target`, remove the sub-project."""
    train_here(project)
    with publishing(target) as aside:
        shutil.copytree(project / "models/adapter", aside / "adapter")
        shutil.copy(project / "reports/train.json", aside)
    remove(project)


# ---- checks before a job runs


def check_answerable(root: Path) -> None:
    """Raise `DataError` if all held-out rows are texts: strategies are compared by answers, and texts contain
    no question.
    """
    unanswered = why_unanswered(root / HELD_OUT)
    if unanswered:
        raise DataError(
            "Q-COMPARE-010",
            f"the strategies to ship can't be compared by their answers, since {unanswered}: set "
            "compare.seeds to []",
        )


def check_trainable(root: Path, params: Params) -> None:
    """Raise `ConfigError` for a base or level that can't be trained as a GGUF, hours before its own job
    would.
    """
    try:
        header = checked_header(untuned_gguf(root, params))
    except DataError as error:
        why = f"for this base can't be trained on as a GGUF: {error.sentence}"
        raise ConfigError(
            "Q-COMPARE-002", f"the strategies to ship can't be compared, {why}. Set compare.seeds to []"
        ) from None
    other = not_dense(header)
    if other:
        raise ConfigError(
            "Q-COMPARE-002",
            f"the strategies to ship can't be compared for {other}, only for {', '.join(DENSE)}: set "
            "compare.seeds to []",
        )
    shape = load_shape(root / "models/base/config.json")
    for level in params.compare.levels:
        unknown = sorted(quantized_level(shape, level).ggml_types - TRAINABLE)
        if unknown:
            ggml_types = " and ".join(unknown)
            raise ConfigError(
                "Q-COMPARE-003",
                f"compare.levels has {level}, whose type {ggml_types} can't be trained on: take Q4_K_M, Q6_K "
                "or Q8_0, say",
            )
    for pattern, kind in params.quantize.tensor_types.items():
        if kind.upper() not in TRAINABLE:
            raise ConfigError(
                "Q-COMPARE-003",
                f"quantize.tensor_types.{pattern} asks for {kind}, which can't be trained on, as compare "
                "does: take Q4_K or Q8_0, say",
            )


def scratch_bytes(root: Path, params: Params) -> int:
    """Return the bytes of scratch space that one job needs at most: a training, or a merge with its GGUFs,
    and a level of the base twice while it is made.
    """
    shape = load_shape(root / "models/base/config.json")
    levels = params.compare.levels
    # rows take no space here
    sizes = plan_disk(Setup(shape, params.training_on("cpu"), max_length=0, levels=levels))
    return max(own_bytes(sizes), 2 * size_of(root / "models/base")) + 2 * max(
        level_bytes(shape, level) for level in levels
    )


def train_scales(project: Path, params: Params) -> Path:
    """Train in the sub-project `project`, whose base is a level. Return the tuned GGUF, made there."""
    run_stage(project, "base")
    run_stage(project, "preprocess")
    train_here(project)
    run_stage(project, "tuned")
    return project / f"models/gguf/{params.convert.name}-{TUNED}.gguf"


def publish_scales(level: Path, tuned: Path, adapter: Path, report: Mapping[str, Any], target: Path) -> None:
    """Publish the folder `target`: the patch from `level` to the GGUF `tuned`, the record of the run that
    produced the folder `adapter`, and the training's report.
    """
    with publishing(target) as aside:
        aside.mkdir()
        write_patch(level, tuned, aside / PATCH)
        shutil.copy(adapter / "run.json", aside)
        write_json(aside / "train.json", dict(report))
