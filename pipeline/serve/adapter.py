"""Check which LoRA adapters may be served on which GGUF: those that were trained on it or on its base, by the
metadata of all the files.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import ConfigError, DataError
from pipeline.core.hashing import file_hash
from pipeline.gguf.file import check_gguf
from pipeline.gguf.header import Header
from pipeline.gguf.provenance import ADAPTER, BASE_FILE

BASE = "quench.base.sha256"
PARTS = (".lora_a", ".lora_b")
LARGEST_SCALE = 100.0  # far beyond what leaves a model able to answer
OTHER_BASE = "serve the base that it belongs to"


@dataclass(frozen=True)
class Adapter:
    """GGUF of an adapter and its scale: 1 is what was trained, 0 is off."""

    file: Path
    scale: float = 1.0

    @property
    def name(self) -> str:
        """Name on the command line and in `quench status`."""
        return self.file.stem


def parse_scale(text: str, what: str) -> float:
    """Return a scale from the command line. Raises `ConfigError`, about `what`, unless it is a number between
    -100 and 100.
    """
    try:
        scale = float(text)
    except ValueError:
        scale = math.nan
    if not abs(scale) <= LARGEST_SCALE:  # This refuses NaN too.
        raise ConfigError(
            "Q-SERVE-007",
            f"{what} has the scale {text!r}: give a number from -100 to 100 (1 is what was trained, 0 is "
            "off)",
        )
    return scale


def parse_adapter(word: str) -> Adapter:
    """Parse FILE or FILE=SCALE (a file with a = in its name needs no scale). Raises `ConfigError` if the
    scale is not a number.
    """
    file, equals, scale = word.rpartition("=")
    if not equals or Path(word).is_file():
        return Adapter(Path(word))
    return Adapter(Path(file), parse_scale(scale, file))


def matching_adapters(model: Path, adapters: Sequence[Adapter]) -> list[Adapter]:
    """Return `adapters`, each proven by `matching_adapter`. Raises `ConfigError` if one is given twice, and
    what `matching_adapter` does.
    """
    seen: dict[object, Adapter] = {}
    # Hashing gigabytes is done once, and only if an adapter needs it.
    model_hash = functools.cache(lambda: file_hash(model))
    for adapter in adapters:
        matching_adapter(model, adapter.file, model_hash)
        for mark in {
            adapter.file.resolve(),
            adapter.name,
            check_gguf(adapter.file).fields.get(ADAPTER, adapter.name),
        }:
            if mark in seen:
                raise ConfigError(
                    "Q-SERVE-008",
                    f"{adapter.file} is {seen[mark].file} again, or has its name: give each adapter once, "
                    "under a name of its own",
                )
            seen[mark] = adapter
    return list(adapters)


def matching_adapter(model: Path, adapter: Path, model_hash: Callable[[], str] | None = None) -> Path:
    """Return `adapter`, proven to belong to the file `model`, or to the base that `model` is a level of.
    `model_hash` returns the file's sha256.

    Raises `ConfigError` if `model` contains an adapter already, `DataError` if a file is damaged, or
    `adapter` is not a LoRA, belongs to another base or has other shapes.
    """
    if not adapter.exists():
        raise DataError(
            "Q-SERVE-009",
            f"{adapter} is missing: stage convert (lora, with base.quantization gguf) makes it, or name "
            "another with --adapter",
        )
    served, header = check_gguf(model), check_gguf(adapter)
    # An adapter that was trained on that very file is a second round.
    if ADAPTER in served.fields and BASE_FILE not in header.fields:
        raise ConfigError(
            "Q-SERVE-010",
            f"{model.name} holds its adapter already: --lora is for a level of the untuned base, "
            "base-Q4_K_M for example",
        )
    kind = header.fields.get("general.type")
    if (kind, header.fields.get("adapter.type")) != ("adapter", "lora"):
        raise DataError(
            "Q-SERVE-011",
            f"{adapter} is not a LoRA adapter (general.type is {kind!r}): give the one made by stage convert",
        )
    if BASE_FILE in header.fields:
        trained_on = str(header.fields[BASE_FILE])
        sha256 = model_hash() if model_hash else file_hash(model)
        if trained_on != sha256:
            raise DataError(
                "Q-SERVE-012",
                f"{adapter.name} was trained on another file ({trained_on[:12]}…) than {model.name} "
                f"({sha256[:12]}…), byte for byte: serve the file that it was trained on, or train again on "
                "this one",
            )
    else:
        need_same_base(model, adapter, served, header)
    need_fit(model, adapter, served, header)
    return adapter


def need_same_base(model: Path, adapter: Path, served: Header, given: Header) -> None:
    """Raise `DataError` unless both files name their base, and it is the same."""
    for file, header in ((adapter, given), (model, served)):
        if BASE not in header.fields:
            raise DataError(
                "Q-SERVE-012",
                f"{file.name} doesn't name its base ({BASE}), so nothing proves that the two belong "
                "together: run stage convert again",
            )
    adapter_base, base = given.fields[BASE], served.fields[BASE]
    if adapter_base != base:
        raise DataError(
            "Q-SERVE-012",
            f"{adapter.name} was trained on another base ({adapter_base[:12]}…) than that of {model.name} "
            f"({base[:12]}…): {OTHER_BASE}",
        )


def adapted_tensors(adapter: Header) -> list[str]:
    """Return the base's tensors that an adapter changes, in order."""
    return sorted(
        {name.removesuffix(part) for name in adapter.tensors for part in PARTS if name.endswith(part)}
    )


def need_fit(model: Path, adapter: Path, served: Header, given: Header) -> None:
    """Raise `DataError` unless every pair of the adapter's matrices fits a tensor of the model, by
    llama.cpp's rules (src/llama-adapter.cpp).
    """
    kind, other = (header.fields.get("general.architecture") for header in (given, served))
    if kind != other:
        raise DataError(
            "Q-SERVE-012",
            f"{adapter.name} is an adapter of a {kind} model, {model.name} is a {other}: {OTHER_BASE}",
        )
    names = adapted_tensors(given)
    # llama.cpp leaves norms out.
    strange = sorted(name for name in given.tensors if not name.endswith((*PARTS, "_norm.weight")))
    if strange:
        raise DataError(
            "Q-SERVE-011",
            f"{adapter.name} holds {strange[0]}, which is not part of a LoRA: convert the adapter again",
        )
    if not names:
        raise DataError("Q-SERVE-011", f"{adapter.name} changes no tensor: convert the adapter again")
    for name in names:
        a, b = (given.tensors.get(name + part, ((), 0))[0] for part in PARTS)
        base = served.tensors.get(name, ((), 0))[0]
        if not a or not b:
            raise DataError(
                "Q-SERVE-011",
                f"{adapter.name} holds one half of the pair for {name}: convert the adapter again",
            )
        if not base:
            raise DataError(
                "Q-SERVE-012", f"{adapter.name} changes {name}, which {model.name} doesn't have: {OTHER_BASE}"
            )
        if not _fits(name, a, b, base):
            raise DataError(
                "Q-SERVE-012",
                f"{adapter.name} changes {name} by {_shape(a)} and {_shape(b)}, which doesn't fit "
                f"{_shape(base)} of {model.name}: {OTHER_BASE}",
            )


def _fits(name: str, a: tuple[int, ...], b: tuple[int, ...], base: tuple[int, ...]) -> bool:
    """Return True if the shapes (fastest dimension first) fit.

    For the embedding, `a` is looked up like the table itself.
    """
    if any(len(shape) < 2 for shape in (a, b, base)):
        return False
    if name.endswith("token_embd.weight"):
        return (base[0], base[1], a[0]) == (b[1], a[1], b[0])
    if not a[2:] == b[2:] == base[2:]:  # a pair for each expert
        return False
    return (base[0], base[1], a[1]) == (a[0], b[1], b[0])


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
