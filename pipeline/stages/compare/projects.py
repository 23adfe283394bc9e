"""Sub-projects below models/.compare: folders in which a job runs real stages, with settings of their own and
links to what they share.

    models/.compare/nf4-42    job compare_nf4@42: train

They are scratch. What a killed training left (checkpoints) is used by the next run of its job. A training
publishes

    models/compare/nf4-42/adapter                            what was trained;
                  /scales_level-Q4_0-42/patch.safetensors    what makes the tuned file of the level,
                                       /run.json             how it was trained
                                       /train.json           of each: time, memory, loss

A level with trained scales is as large as the level; its patch is a tenth of that. Measuring makes the level
again and proves by its sha256 that the patch belongs to it.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.ggml_types import TYPES
from pipeline.config.params import Params
from pipeline.config.sections import TUNED, UNTUNED, Train
from pipeline.config.strategies import FOLDER
from pipeline.config.targets import LORA_ONLY
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.locks import absent
from pipeline.core.publish import need_disk, publishing, remove, write_json
from pipeline.gguf.base_files import DENSE, not_dense
from pipeline.gguf.patch import write_patch
from pipeline.llamacpp.converters import Quantizing, quantize_gguf
from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.models.base_header import checked_header
from pipeline.planning.level_bytes import level_bytes
from pipeline.planning.plan import own_bytes, plan_disk
from pipeline.planning.quantized import quantized_level
from pipeline.planning.setup import Setup
from pipeline.planning.shape import load_shape
from pipeline.subprojects.processes import Settings, changed_params, open_subproject, run_stage, size_of
from pipeline.subprojects.processes import train as train_here

TRAINED = Path("models/compare")  # a folder for each training: what was trained, and its report
TRAINABLE = {name for name, kind in TYPES.items() if kind.scratch is not None}
LEVEL_FILE = "level.gguf"  # in a sub-project: the untuned base at a level
PATCH = "patch.safetensors"
LEARNING_RATE = 5.0e-3  # the peak, where scales learn the task; what learns best lies between 1e-3 and 1e-2


def open_project(
    root: Path, name: str, params: Params, settings: Settings, links: Mapping[str, Path]
) -> Path:
    """The sub-project `name` of `root`, with `params` under `settings` and `links` ({path in it: what it
    leads to}); its folder.

    Everything that would end one of the jobs is checked here, before the first of them trains for hours:
    raises `DataError` if an input is missing, `ConfigError` for a base or a level that can't be trained on,
    `MachineError` if the disk is too small.
    """
    for path in (*links.values(), root / "models/base/config.json", untuned_gguf(root, params)):
        if not path.exists():
            raise absent(path, root)
    check_trainable(root, params)
    need_disk(root / FOLDER, scratch_bytes(root, params))
    return open_subproject(root.resolve() / FOLDER / name, sub_params(params, settings), links)


def sub_params(params: Params, settings: Settings) -> Settings:
    """`params` as a dict for YAML, with what all sub-projects share and with `settings` on top; checked."""
    kind = params.convert.type
    shared: Settings = {
        "base": {"quantization": "nf4", "level": None},
        # distillations take their own of the project's
        "train": {"method": "sft", "sample_rows": 0, "distill_top_k": Train().distill_top_k},
        "merge": {"base": "16-bit"},
        "convert": {"base": False},
        "imatrix": {"tokens": 0},
        "quantize": {"levels": list(params.compare.levels), "distill": [], "budgets": []},
        "compare": {"seeds": []},
        "evaluate": {"models": [kind]},
    }
    return changed_params(params, shared, settings)


def base_links(root: Path) -> dict[str, Path]:
    """The project's own base, for a sub-project."""
    return {place: root / place for place in ("models/base", "models/base.json")}


def level_settings(root: Path, name: str, seed: int, file: str = LEVEL_FILE) -> Settings:
    """What the sub-project `name` differs in if its base is a level, the GGUF `file` in it."""
    base = {
        "source": "gguf",
        "model": str(root.resolve() / FOLDER / name / file),
        "revision": None,
        "file": None,
        "quantization": "gguf",
    }
    return {
        "base": base,
        "evaluate": {"models": ["adapter"]},
        "train": {"embeddings_on_cpu": False, "seed": seed},
    }


def untuned_gguf(root: Path, params: Params) -> Path:
    """The untuned base in 16 bits, which stage convert made."""
    return root / f"models/gguf/{params.convert.name}-{UNTUNED}{params.convert.type}.gguf"


def quantize_base(root: Path, params: Params, project: Path, level: str, tools: Toolchain) -> Path:
    """Write the untuned base at `level` into `project`; the file."""
    target = project / LEVEL_FILE
    options = Quantizing(tensor_types=params.quantize.tensor_types)
    quantize_gguf(Llama(tools, params.machine.threads), untuned_gguf(root, params), target, level, options)
    return target


def train(project: Path, target: Path) -> None:
    """Train in `project`, publish adapter and report as the folder `target`, remove the sub-project."""
    train_here(project)
    with publishing(target) as aside:
        shutil.copytree(project / "models/adapter", aside / "adapter")
        shutil.copy(project / "reports/train.json", aside)
    remove(project)


# ---- whether a job can run at all


def check_trainable(root: Path, params: Params) -> None:
    """Raise `ConfigError` for a base or level that can't be trained as a GGUF: hours before its own job."""
    try:
        header = checked_header(untuned_gguf(root, params))
    except DataError as error:
        why = f"for this base can't be trained on as a GGUF: {error.sentence}"
        raise ConfigError(
            "Q-COMPARE-002", f"the strategies to ship can't be compared, {why}. Set compare.seeds to []"
        ) from None
    if other := not_dense(header.fields):
        raise ConfigError(
            "Q-COMPARE-002",
            f"the strategies to ship can't be compared for {other}, only for {', '.join(DENSE)}: set "
            "compare.seeds to []",
        )
    shape = load_shape(root / "models/base/config.json")
    for level in params.compare.levels:
        if unknown := sorted(quantized_level(shape, level).ggml_types - TRAINABLE):
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
    """Bytes of scratch that one job needs at most: a training, or a merge with its GGUFs, and a level of the
    base twice while it is made.
    """
    shape = load_shape(root / "models/base/config.json")
    levels = params.compare.levels
    sizes = plan_disk(Setup(shape, params.training_on("cpu"), max_length=0, levels=levels))  # rows take none
    return max(own_bytes(sizes), 2 * size_of(root / "models/base")) + 2 * max(
        level_bytes(shape, level) for level in levels
    )


def scale_settings(params: Params, settings: Settings) -> Settings:
    """`settings` of a sub-project whose base is a level, if the scales of its blocks are to train."""
    own = {
        "tuner": "scales",
        "learning_rate": LEARNING_RATE,
        "weight_decay": 0.0,
        "keep_quantized": True,
        **{name: getattr(Train(), name) for name in LORA_ONLY},
    }
    return settings | {"train": settings["train"] | own, "evaluate": {"models": [TUNED]}}


def train_scales(project: Path, params: Params) -> Path:
    """Train in the sub-project `project`, whose base is a level; the tuned GGUF, made there."""
    run_stage(project, "base")
    run_stage(project, "preprocess")
    train_here(project)
    run_stage(project, "tuned")
    return tuned_file(project, params)


def tuned_file(project: Path, params: Params) -> Path:
    """The GGUF with trained scales that stage tuned makes in a sub-project."""
    return project / f"models/gguf/{params.convert.name}-{TUNED}.gguf"


def publish_scales(level: Path, tuned: Path, adapter: Path, report: Mapping[str, Any], target: Path) -> None:
    """Publish the folder `target`: what makes the GGUF `tuned` of `level`, the record of the run that ended
    in the folder `adapter`, and the training's report.
    """
    with publishing(target) as aside:
        aside.mkdir()
        write_patch(level, tuned, aside / PATCH)
        shutil.copy(adapter / "run.json", aside)
        write_json(aside / "train.json", dict(report))
