"""Read an adapter's folder in PEFT's format: its settings, refused if a merge would differ from what was
trained, and its tensors by module.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.config.targets import by_pattern
from pipeline.core.errors import DataError
from pipeline.core.interruption import OutOfTime, cpu_limit
from pipeline.core.publish import read_json
from pipeline.core.text import faults, quoted, safe
from pipeline.gguf.safetensors_rows import Entry, read_header

WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
OWN_BASE = "models/base"  # what Quench writes as an adapter's base
PART = re.compile(
    r"(?P<path>.+)\.(?P<part>lora_A\.weight|lora_B\.weight|lora_B\.bias|lora_embedding_A|lora_embedding_B|lora_magnitude_vector)(\.weight)?"
)
PAIRS = ({"lora_A.weight", "lora_B.weight"}, {"lora_embedding_A", "lora_embedding_B"})
# Settings that don't change the finished weights. A merge follows those that `Settings` names.
SILENT = {
    "auto_mapping",
    "base_model_name_or_path",
    "eva_config",
    "inference_mode",
    "layers_to_transform",
    "loftq_config",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
}
# Initializations that leave the base's weights as they are. The others (PiSSA, OLoRA, CorDA, LoftQ, LoRA-GA)
# subtract something from them.
PLAIN_STARTS = {True, False, "gaussian", "eva", "orthogonal"}
MATCHING_SECONDS = 2.0  # CPU seconds; 20 patterns on the 18,432 linears of a mixture of 48 layers take 0.2
Rank = Annotated[int, Field(ge=1, le=1 << 16)]
Alpha = Annotated[float, Field(allow_inf_nan=False)]
Pattern = Annotated[str, Field(min_length=1, max_length=1 << 16)]
Name = Annotated[str, Field(min_length=1, max_length=1000)]
Layers = Annotated[str, Field(pattern=r"^[\w.]{0,100}$")]
Names = Annotated[list[Name], Field(fail_fast=True)]


class Settings(BaseModel):
    """Settings of a LoRA in adapter_config.json, as PEFT writes it.

    Other kinds of adapter have other keys.
    """

    model_config = ConfigDict(strict=True, extra="allow")

    peft_type: str | None = None
    r: Rank = 8  # Defaults are PEFT's own.
    lora_alpha: Alpha = 8
    rank_pattern: dict[Pattern, Rank] | None = None
    alpha_pattern: dict[Pattern, Alpha] | None = None
    use_rslora: bool = False
    use_dora: bool = False
    lora_bias: bool = False
    fan_in_fan_out: bool | None = False  # Axolotl writes null.
    bias: Literal["none", "all", "lora_only"] = "none"
    init_lora_weights: bool | str = True
    target_modules: Names | Pattern | None = None
    exclude_modules: Names | Pattern | None = None
    target_parameters: Names | None = None
    modules_to_save: Names | None = None
    ensure_weight_tying: bool = False  # A saved table is both embeddings and head.
    layers_pattern: Annotated[list[Layers], Field(fail_fast=True)] | Layers | None = None
    megatron_config: None = None  # PEFT would import the module that the file names.


def read_settings(folder: Path) -> Settings:
    """Return adapter_config.json of a PEFT folder.

    Raises `DataError` if it is missing, or PEFT can't have written it.
    """
    file = folder / "adapter_config.json"
    config = read_json(file, "run `snakemake --force train`, or copy the adapter's folder whole")
    try:
        return Settings.model_validate(config)
    except ValidationError as error:
        what = faults(error, lambda place: place[0] if place else "it")
        raise DataError(
            "Q-MODELS-039", f"{file} is not what PEFT writes ({what}): copy the adapter's folder whole"
        ) from None


def check_patterns(settings: Settings, names: Iterable[str], folder: Path) -> None:
    """Raise `DataError` if a pattern of an adapter's settings is invalid, or takes too long on these modules'
    names. After this check, PEFT and we match them without a limit.
    """
    ends = (settings.rank_pattern, settings.alpha_pattern)
    named = (settings.target_modules, settings.exclude_modules)
    whole = [pattern for pattern in named if isinstance(pattern, str)]
    try:
        with cpu_limit(MATCHING_SECONDS):
            for name in names:
                for patterns in ends:
                    by_pattern(patterns, name, None)
                for pattern in whole:
                    re.fullmatch(pattern, name)
    except (re.error, OverflowError, RecursionError, OutOfTime) as error:
        raise DataError(
            "Q-MODELS-039",
            f"{folder / 'adapter_config.json'} has a pattern for names of modules that can't be matched "
            f"({error}): write the names themselves",
        ) from None


@dataclass
class Module:
    """Tensors of the adapter for one module. `depth` counts the wrappers that PEFT put around it if more than
    one parameter is adapted.
    """

    path: str
    depth: int
    parts: dict[str, Entry] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """Name in the file."""
        return PREFIX + self.path + ".base_layer" * self.depth


def by_slice(a: Any, b: Any, slices: int) -> tuple[Any, Any]:
    """Return a (slices, r, in) and B (slices, out, r), of arrays or tensors. PEFT flattens those of a
    parameter of three dimensions to (slices·r, in) and (out, r·slices): a slice is the slow index of A's rows
    and the fast one of B's columns.
    """
    apart = b.reshape(b.shape[0], -1, slices)
    return a.reshape(slices, -1, a.shape[1]), apart.swapaxes(1, 2).swapaxes(0, 1)


@dataclass(frozen=True)
class Adapter:
    """Settings, modules with low-rank parts, and tensors that were trained entirely (by the base's names)."""

    folder: Path
    settings: Settings
    modules: list[Module]
    full: dict[str, Entry]

    def rank(self, key: str) -> int:
        """Return the rank for a module or parameter by its full name: from PEFT's patterns, otherwise `r`."""
        return int(by_pattern(self.settings.rank_pattern, key, self.settings.r))

    def scale(self, key: str) -> float:
        """Return α ÷ r, with rank-stabilized LoRA α ÷ √r (arXiv:2312.03732)."""
        rank = self.rank(key)
        alpha = float(by_pattern(self.settings.alpha_pattern, key, self.settings.lora_alpha))
        return alpha / (sqrt(rank) if self.settings.use_rslora else rank)


def weights_of(folder: Path) -> Path:
    """Return the file of the adapter's weights. Raises `DataError` if there is none."""
    if not (folder / WEIGHTS).exists():
        raise DataError("Q-MODELS-015", f"{folder} holds no {WEIGHTS}: save the adapter as safetensors")
    return folder / WEIGHTS


def read_adapter(folder: Path, *, to_merge: bool = True) -> Adapter:
    """Return the adapter in `folder`. Raises `DataError` with everything that a merge can't follow, or (not
    `to_merge`) that is not a LoRA, and if its files are incomplete.
    """
    settings = read_settings(folder)
    modules: dict[str, Module] = {}
    full: dict[str, Entry] = {}
    strange = []
    for entry in read_header(weights_of(folder)):
        match = PART.fullmatch(entry.name)
        if not entry.name.startswith(PREFIX) or (".lora_" in entry.name and not match):
            strange.append(entry.name)
        elif match:
            path = match["path"].removeprefix(PREFIX)
            module = modules.setdefault(
                path, Module(path.replace(".base_layer", ""), path.count(".base_layer"))
            )
            module.parts[match["part"]] = entry
        else:
            name = entry.name.removeprefix(PREFIX)
            full[name.replace(".base_layer", "").replace(".modules_to_save", "")] = entry
    check_patterns(settings, (module.path for module in modules.values()), folder)
    reasons = _unsupported(settings) if to_merge else _no_lora(settings)
    reasons += [f"{name} is no tensor that a merge knows" for name in strange[:3]]
    if len(strange) > 3:
        reasons[-1] += f" (nor are {len(strange) - 3} others)"
    dora = settings.use_dora if to_merge else None
    reasons += [reason for module in modules.values() for reason in _incomplete(module, dora)][:3]
    saved = (settings.modules_to_save or []) if to_merge else []
    reasons += [
        f"modules_to_save names {name} and there is no tensor of it"
        for name in saved
        if not any(f".{name}." in f".{key}" for key in full)
    ]
    if not modules and not full:
        reasons.append("it holds no tensor")
    if reasons and not to_merge:
        raise DataError(
            "Q-METRICS-020",
            f"{folder} is not a complete LoRA adapter ({'; '.join(reasons)}): name another folder",
        )
    if reasons:
        raise DataError(
            "Q-MODELS-016",
            f"{folder} can't be merged ({'; '.join(reasons)}): train it without that, or merge it with the "
            "tool that made it",
        )
    return Adapter(folder, settings, list(modules.values()), full)


def other_base_named(folder: Path, places: Iterable[str]) -> str | None:
    """Return the base that adapter_config.json names, OWNER/NAME, if none of `places` (names and paths of the
    base at hand) has its name. None if one has it, or if a path or nothing is named.
    """
    named = read_json(folder / "adapter_config.json", "copy the adapter again").get("base_model_name_or_path")
    if not isinstance(named, str) or named.count("/") != 1 or named == OWN_BASE or Path(named).is_absolute():
        return None
    wanted = _letters(named.partition("/")[2])
    # A hub's cache has OWNER and NAME in one word.
    parts = (_letters(part) for place in places for part in re.split(r"[/\s]", place))
    return None if any(part.endswith(wanted) for part in parts) else named


def _letters(name: str) -> str:
    """Return the letters and digits of a model's name, without suffixes for the storage of its weights."""
    lowered = re.sub(r"[-.](?:i?q\d[\w.]*|f16|bf16|f32|gguf)$", "", name.lower().removesuffix(".gguf"))
    for ending in ("-bnb-4bit", "-unsloth", "-4bit", "-awq", "-gptq", "-gguf"):
        lowered = lowered.replace(ending, "")
    return "".join(filter(str.isalnum, lowered))


def _unsupported(settings: Settings) -> list[str]:
    """Return the settings, with values, under which the trained model isn't this base + scale·B·A."""
    return [
        *_no_lora(settings),
        *changed_start(settings),
        *(
            f"{safe(key, 80)} is {quoted(value)}"
            for key, value in sorted((settings.model_extra or {}).items())
            if value and key not in SILENT
        ),
    ]


def _no_lora(settings: Settings) -> list[str]:
    kind = settings.peft_type
    return [] if kind == "LORA" else [f"peft_type is {quoted(kind)}"]


def changed_start(settings: Settings) -> list[str]:
    """Return the reasons, as half sentences, why the adapter belongs to other weights than the base's; empty
    if it belongs to them.
    """
    start = settings.init_lora_weights
    plain = start in PLAIN_STARTS
    return [] if plain else [f"init_lora_weights is {quoted(start)}, which changed the base's weights"]


def _incomplete(module: Module, dora: bool | None) -> list[str]:
    """Return the parts that the module lacks.

    Magnitudes must be present if and only if `dora`, unless that is None.
    """
    parts = set(module.parts)
    if parts - {"lora_magnitude_vector", "lora_B.bias"} not in PAIRS:
        return [f"{module.where} has {', '.join(sorted(parts))}, which is no pair of A and B"]
    if dora is not None and dora != ("lora_magnitude_vector" in parts):
        return [f"{module.where} has {'no' if dora else 'a'} magnitude and use_dora is {dora}"]
    return []
