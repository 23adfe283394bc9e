"""The faults of a `params.yaml` in sentences: each error with its key, its line and a remedy."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.core.text import plural, quoted, safe
from pipeline.core.yaml_readers import Place

# Names of settings in other trainers. Their spelling is far from ours, and closer to that of another key.
ELSEWHERE = {
    "lora_rank": "train.r",
    "lora_r": "train.r",
    "epochs": "train.num_train_epochs",
    "lr": "train.learning_rate",
    "grad_accum": "train.gradient_accumulation_steps",
    "max_seq_length": "preprocess.max_length",
    "use_dora": "train.lora_variants",
    "use_rslora": "train.lora_variants",
    "init_lora_weights": "train.lora_variants",
    "loraplus_lr_ratio": "train.lora_variants",
}
LONGEST = 400  # characters of one error
MOST = 1900  # characters of all errors


def report(path: Path, errors: Sequence[Any], lines: Mapping[Place, int], keys: Sequence[str]) -> str:
    """Return as many of pydantic's `errors` as can be read at once. `keys` are all keys of the schema."""
    # A default that is computed from a faulty key is not a fault of its own.
    left = [_line(error, lines, keys) for error in errors if error["type"] != "default_factory_not_called"]
    shown = [f"{path} has {plural(len(left), 'error')}:"]
    while left and sum(map(len, shown)) < MOST - LONGEST:
        shown.append(f"  {left.pop(0)}")
    if left:
        shown.append(f"  … and {plural(len(left), 'error')} more")
    return "\n".join(shown)


def _line(error: Any, lines: Mapping[Place, int], keys: Sequence[str]) -> str:
    place = error["loc"]
    whole = "the file" if error["type"] == "model_type" else "params"
    key = safe(".".join(map(str, place)) or whole, 120)
    numbers = [lines[place[:end]] for end in range(len(place), 0, -1) if place[:end] in lines]
    where = f" (line {numbers[0]})" if numbers else ""
    return safe(f"{key}: {_sentence(error, keys)}", LONGEST - len(where)) + where


def _sentence(error: Any, keys: Sequence[str]) -> str:
    given = quoted(error["input"])
    key = ".".join(part for part in error["loc"] if isinstance(part, str))
    match error["type"]:
        case "extra_forbidden":
            return f"unknown key (value {given}): {nearest(key, keys)}"
        case "missing":
            section = ".".join(map(str, error["loc"][:-1]))
            shown = f", as the comment of {section} shows (`quench config show`)" if section else ""
            return f"missing: add it{shown}"
        case "value_error":
            return str(error["ctx"]["error"])
        case "model_type" if not error["loc"]:
            return f"holds {given}, and keys with values are needed"
        case "model_type":
            return f"is {given}, and a section with keys is needed (`quench config show` shows every key)"
    return f"is {given}, {error['msg'][0].lower()}{error['msg'][1:]}"


def nearest(key: str, keys: Sequence[str]) -> str:
    """Return a sentence with the key that is probably meant.

    It is the key that has that name in other trainers, or the closest in the section or elsewhere.
    """
    section, _, name = key.rpartition(".")
    beside = {other.rpartition(".")[2]: other for other in keys if other.rpartition(".")[0] == section}
    near = (
        [other for other in keys if other == ELSEWHERE.get(name)]
        or [beside[other] for other in difflib.get_close_matches(name, beside, n=1)]
        or [other for other in keys if other.rpartition(".")[2] == name]
        or difflib.get_close_matches(key, keys, n=1)
    )
    return f"did you mean {near[0]}? Correct or remove it" if near else "remove it or correct its spelling"
