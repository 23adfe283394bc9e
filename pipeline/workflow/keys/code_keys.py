"""The key of a stage's code, which rules and DVC's stages depend on instead of a list of modules.

    python -m pipeline code       writes .quench/code/STAGE.key for every stage

A key has a line for each file that the stage's own module needs (`pipeline.workflow.keys.imports`): a hash
of it without comments and docstrings. So an edit runs those stages again whose code imports the file, except
plumbing, which is named there. What a method of training does its own way has a key of its own: the key that
`train.method` chooses is next to train's, so an edit of GRPO's code trains no supervised run again.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from pipeline.config.methods import METHODS, Method
from pipeline.core.errors import MachineError
from pipeline.core.extras import stage_package
from pipeline.workflow.keys.imports import ROOT, Package, write_whole

CODE = "code"  # DVC's first stage, which writes the keys
FOLDER = f".quench/{CODE}"  # output of stage code
SETTINGS = "settings"  # the stage that writes the settings in effect
# These modules define all that stage settings writes: the keys and their defaults.
SETTINGS_MODULES = (f"{ROOT}.config.params", f"{ROOT}.config.sections")
PAGES = f"{ROOT}.pages"  # the code that makes stage report's product
LOCK = "params.lock.yaml"  # output of stage settings


def stage_module(stage: str) -> str:
    """Return the module whose `main` is the stage ("compare_nf4": `compare.nf4`), in the core or an extra.

    The rest is found from there.
    """
    package, _, part = stage.partition("_")
    return f"{stage_package(package) or f'{ROOT}.stages.{package}'}.{part or 'stage'}"


def method_module(method: Method) -> str:
    """Return the module of a method's own part of training, which stage train imports by name."""
    return f"{ROOT}.stages.train.{METHODS[method].module}"


def key_file(name: str) -> str:
    """Return the file that changes when a stage's or method's ("train.grpo") code does.

    It is relative to the project.
    """
    return f"{FOLDER}/{name}.key"


def key_files(stage: str, methods: Iterable[str]) -> list[str]:
    """Return the files that change when a stage's code does: the stage's and one per training method.

    They are written as in dvc.yaml.
    """
    return [key_file(stage), *(key_file(f"train.{method}") for method in methods)]


def write_keys(root: Path, modules: Mapping[str, Iterable[str]]) -> list[str]:
    """Write each key below `root`, given the modules that it starts from.

    Return the names of those that changed.

    Raises `MachineError` if a key can't be written.
    """
    changed = []
    try:
        package = Package()
        for name, starts in modules.items():
            file = root / key_file(name)
            text = package.key(*starts)
            if not file.is_file() or file.read_text(encoding="utf-8") != text:
                write_whole(file, text)
                changed.append(name)
        for file in (root / FOLDER).glob("*.key"):
            if file.stem not in modules:
                file.unlink(missing_ok=True)  # The stage no longer exists.
    except OSError as error:
        raise MachineError(
            "Q-WORKFLOW-001",
            f"{root / FOLDER} can't be written ({error.strerror}): make room there, or make the folder yours",
        ) from error
    return changed
