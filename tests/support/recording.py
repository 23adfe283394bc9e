"""Recordings of what the stages of the suite's tiny projects wrote, below tests/recorded: JSON, JSON Lines
and CSV, no weights. `pytest --record tests/test_recorded.py` writes them again.

All that depends on the machine, the moment or the folder is replaced, so that a second recording has the
same bytes: times, speeds, memory, processor and packages by constants, hashes by numbers in the order in
which they occur (what was equal stays equal), figures by four digits.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kept import STORE

RECORDED = Path(__file__).parents[1] / "recorded"
PROJECTS = {"merged": "finished", "adapter": "served", "tuned": "tuned"}  # folder: fixture that it is of
TAKEN = (
    ".quench/usage/*.json",
    "data/tokens/manifest.json",
    "models/base.json",
    "models/adapter/run.json",
    "models/merged/merge.json",
    "reports/*.json",
    "reports/*.jsonl",
    "reports/train.csv",
    "reports/eval/*.json",
    "reports/eval/*.jsonl",
)
OF_REPORT = ("quants.json", "metrics.json")  # which tests of the page make themselves
HASH = re.compile(r"\b[0-9a-f]{64}\b")
CPU = "AMD EPYC 9B14"
ALIKE: dict[str, Any] = {  # by key, wherever it occurs
    "command": ["python", "-m", "pipeline", "train"],
    "cores": 2,
    "cores_of_the_machine": 4,
    "cpu": CPU,
    "git": {"commit": "5e" * 20, "dirty": False},
    "gpus": [],
    "llama_cpp": "version: 1.0 (build 1, commit 0c1e570)",
    "os": "Linux 6.12",
    "disturbed": False,
    "other_load": 0.01,
}
PACKAGES = ("cmake", "peft", "python", "torch", "transformers")
SETTINGS = ("learning_rate", "method", "quantization", "r", "tuner")
MEMORY = 400_000_000
TIME = re.compile(r"(^|_)(seconds|tok_s|tok_s_spread|tokens_per_second)$")
SPACE = re.compile(r"^((peak|gpu)_)?memory_bytes$|^(own_)?peak$|^disk$")
SUBTREES: dict[str, Callable[[Any], Any]] = {
    "seconds": lambda found: _each(found, 1.0),
    "speed": lambda found: _each(found, 100.0),
    # of packages and of the settings, which are the project's and not a stage's, a few
    "versions": lambda found: {name: "1.0" for name in found if name in PACKAGES},
    "settings": lambda found: {name: found[name] for name in SETTINGS},
}


def neutral(project: Path) -> dict[str, str]:
    """{path: text} of what is taken of a finished project, as it is recorded."""
    hashes: dict[str, str] = {}
    paths = sorted({path for pattern in TAKEN for path in project.glob(pattern)})
    texts = {}
    for path in paths:
        if path.name in OF_REPORT:
            continue
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            text = json.dumps(_neutral(json.loads(text)), indent=1, ensure_ascii=False) + "\n"
        elif path.suffix == ".jsonl":
            lines = [json.dumps(_neutral(json.loads(line)), ensure_ascii=False) for line in text.splitlines()]
            text = "".join(line + "\n" for line in lines)
        text = _kept_folder().sub("/quench", text.replace(str(project), "/quench/project"))
        for found in HASH.findall(text):
            hashes.setdefault(found, f"{len(hashes) + 1:02x}" * 32)
        texts[str(path.relative_to(project))] = HASH.sub(lambda found: hashes[found[0]], text)
    return texts


def record(name: str, texts: Mapping[str, str]) -> None:
    """Write one project's texts in the place of those recorded before."""
    shutil.rmtree(RECORDED / name, ignore_errors=True)
    for path, text in texts.items():
        (RECORDED / name / path).parent.mkdir(parents=True, exist_ok=True)
        (RECORDED / name / path).write_text(text, encoding="utf-8")


def recorded(name: str) -> dict[str, str]:
    """{path: text} as recorded."""
    files = sorted(path for path in (RECORDED / name).rglob("*") if path.is_file())
    return {str(path.relative_to(RECORDED / name)): path.read_text(encoding="utf-8") for path in files}


def kinds(path: str, text: str) -> set[str]:
    """Every key of a JSON, JSON Lines or CSV file with its value's type, a line each: `a.b[].c: int`."""
    if path.startswith(".quench/usage/"):  # no plan has seconds on a CPU that doesn't multiply bfloat16
        text = re.sub(r'("seconds": )null', r"\g<1>0.0", text)
    if path.endswith(".json"):
        return _kinds(json.loads(text))
    if path.endswith(".jsonl"):
        return {kind for line in text.splitlines() for kind in _kinds(json.loads(line))}
    return set(text.split("\n", 1)[0].split(","))


def read(name: str, path: str) -> Any:
    """One recorded JSON file, to edit; the project is called demo in it, as in the recipes of the demos."""
    return json.loads(_as_demo((RECORDED / name / path).read_text(encoding="utf-8")))


def write_recorded(name: str, root: Path) -> Path:
    """A copy of a recorded project at `root`, which may be there, called demo; `root`."""
    for path, text in recorded(name).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(_as_demo(text), encoding="utf-8")
    return root


def _as_demo(text: str) -> str:
    return text.replace("tiny-", "demo-")


def _kept_folder() -> re.Pattern[str]:
    """A folder that the suite keeps, as `kept` names them."""
    return re.compile(re.escape(os.environ[STORE]) + r"/[\w-]+/[0-9a-f]+")


def _neutral(value: Any, key: str = "") -> Any:
    if value is None and key != "git":
        return None
    if key in ALIKE:
        return ALIKE[key]
    if key in SUBTREES and isinstance(value, dict):
        return SUBTREES[key](value)
    if isinstance(value, dict):
        return {name: _neutral(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_neutral(one) for one in value]
    if isinstance(value, float):
        return 100.0 if TIME.search(key) else float(f"{value:.4g}")
    if isinstance(value, int) and SPACE.search(key):
        return MEMORY
    if key == "device" and value != "cpu":
        return CPU
    return value


def _each(value: Any, time: float) -> Any:
    """The same with every time in it alike."""
    if isinstance(value, dict):
        return {name: ALIKE[name] if name in ALIKE else _each(one, time) for name, one in value.items()}
    if isinstance(value, list):
        return [_each(one, time) for one in value]
    return time if isinstance(value, float) else value


def _kinds(value: Any, at: str = "") -> set[str]:
    if isinstance(value, dict) and value:
        return {kind for key, one in value.items() for kind in _kinds(one, f"{at}.{key}" if at else key)}
    if isinstance(value, list) and value:
        return {kind for one in value for kind in _kinds(one, f"{at}[]")}
    return {f"{at}: {type(value).__name__}"}
