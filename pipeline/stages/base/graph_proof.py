"""Prove, before anything is trained, that llama.cpp computes a base's architecture as transformers does.

A small random model with the base's config.json, all of its layers and narrow ones, is converted by
llama.cpp's converter. Its logits there have to be those here. The difference depends on config.json, the
versions of llama.cpp and transformers, and this code, so it is kept in the user's cache by these.
"""

import hashlib
import io
import json
import math
import re
from collections.abc import Mapping
from contextlib import redirect_stderr, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from pipeline.core.errors import DataError, MachineError, QuenchError, ToolError
from pipeline.core.hashing import file_hash
from pipeline.core.places import user_cache
from pipeline.core.publish import read_if_there, unwritable, write_json
from pipeline.core.text import shortened
from pipeline.gguf import families, windows
from pipeline.llamacpp import converter_process, logits, logits_process
from pipeline.llamacpp import tools as llamacpp_tools
from pipeline.llamacpp.converters import HeaderFields
from pipeline.llamacpp.logits import Floats
from pipeline.llamacpp.logits_process import logits_apart
from pipeline.llamacpp.tools import Toolchain, last_lines, run_converter
from pipeline.models import small_model, text_config
from pipeline.models.experts import recognize, separate
from pipeline.stages.base import model_trial

CONVERTER = "convert_hf_to_gguf.py"
# Tokens of the row that is compared. It is longer than the small model's window, so that sliding attention
# slides.
TOKENS = 40
# Largest difference of a logit, in standard deviations of the logits. Measured of the same graphs: 1e-5 for a
# Qwen2 of 24 layers and a Nemotron-H of 56, at most 0.005 (Gemma 4, whose scores have no scale). Of others:
# 0.1 for a Gemma 4 whose cap of the logits llama.cpp takes for granted, 0.7 for an EXAONE 4 whose window it
# leaves out.
LIMIT = 0.02
# Modules whose code a difference depends on, besides this one and the families of models.
MEASURING = (
    converter_process,
    llamacpp_tools,
    logits,
    logits_process,
    model_trial,
    recognize,
    separate,
    small_model,
    text_config,
    windows,
)


class Proof(NamedTuple):
    """Largest difference of a small model's logit in standard deviations (None and a reason if it could not
    be measured), and the model's window if the difference is without it, because llama.cpp has none.
    """

    difference: float | None
    reason: str = ""
    dropped_window: int | None = None


class NotConvertedError(Exception):
    """The converter stopped at the small model."""


class NotBuiltError(Exception):
    """transformers can't build, compute or save the small model."""


def need_same_graph(folder: Path, tools: Toolchain, header: HeaderFields) -> Proof:
    """Return the proof for the model in `folder`, whose GGUF gets `header`.

    Raises `DataError` if llama.cpp computes something else than transformers, or if its converter can't
    convert the folder.
    """
    file = _kept(folder, tools)
    kept = recalled(file) if file else None
    try:
        proof = kept or measured(folder, tools)
    except NotConvertedError as error:
        need_converted(folder, tools, header)
        return Proof(None, f"its converter takes the model, and not a small one ({error})")
    if proof.difference is None:
        return proof
    if proof.difference > LIMIT:
        raise DataError(
            "Q-BASE-056",
            f"llama.cpp computes another model than {folder / 'config.json'} describes: the logits of a "
            f"small random one differ by {proof.difference:.2g} standard deviations, and {LIMIT:g} is the "
            "limit. Take another base",
        )
    if file and not kept:
        with suppress(OSError, MachineError):  # A home that can't be written has no cache.
            write_json(file, proof._asdict())
    return proof


def _kept(folder: Path, tools: Toolchain) -> Path | None:
    """Return the file in the user's cache for the proof of the config.json in `folder`; None without one."""
    from transformers import __version__

    cache = user_cache()
    files = [Path(str(module.__file__)) for module in MEASURING]
    files += sorted(Path(str(families.__file__)).parent.glob("*.py"))
    code = [file_hash(file) for file in files]
    parts = [file_hash(folder / "config.json"), tools.version, __version__, file_hash(Path(__file__)), *code]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return cache / "graphs" / f"{key}.json" if cache else None


def recalled(file: Path) -> Proof | None:
    """Return the proof in a file of the cache; None if there is none, also because the file is torn."""
    try:
        proof = Proof(**read_if_there(file))
    except (OSError, ValueError, TypeError):
        return None
    return proof if isinstance(proof.difference, float) else None


def measured(folder: Path, tools: Toolchain) -> Proof:
    """Return the proof, measured now. Raises `NotConvertedError`, and `MachineError` if a disk is full."""
    full = text_config.read_text_config(folder)
    window = getattr(full, "sliding_window", None)
    slides = (
        isinstance(window, int)
        and window < (getattr(full, "max_position_embeddings", None) or 0)
        and model_trial.window_in_training(full) is None
    )
    try:
        difference = logit_difference(folder, full, tools, slides=slides)
        if not math.isfinite(difference):
            return Proof(None, "llama.cpp's logits of a small one are not finite")
        if difference > LIMIT and slides and logit_difference(folder, full, tools, slides=False) <= LIMIT:
            return Proof(0.0, dropped_window=window)
        return Proof(difference)
    except ToolError as error:
        condition = re.search(r"GGML_ASSERT\(.*\)", error.sentence)
        return Proof(None, f"llama.cpp can't compute a small one{f', {condition[0]}' if condition else ''}")
    except NotBuiltError as error:
        return Proof(None, f"a small one can't be built: {error}")


def logit_difference(folder: Path, full: Any, tools: Toolchain, *, slides: bool) -> float:
    """Return the largest difference between a small model's logits here and in llama.cpp, in standard
    deviations. Its attention slides after a few tokens, or never in this row (not `slides`).
    """
    import numpy as np
    from safetensors import SafetensorError

    with TemporaryDirectory(prefix="graph-") as name:
        place = Path(name) / "model"
        try:
            config, row, ours = save_small(full, place, slides=slides)
        except QuenchError:
            raise
        except OSError as error:
            raise unwritable(error, place) from error
        except SafetensorError as error:  # safetensors' own error for a full disk
            raise unwritable(OSError(str(error)), place) from error
        # Any architecture may require sizes of its own.
        except Exception as error:
            raise NotBuiltError(shortened(error)) from error
        # The converter gets what the published file states, and the small sizes.
        stated = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        small = changed(full.to_dict(), config.to_dict())
        small.pop("architectures", None)  # The converter knows the class by the folder's name.
        write_json(place / "config.json", stated | small, allow_nan=True)
        # The converter cuts a Gemma's embeddings to as many rows as there are tokens.
        words = {str(number): number for number in range(config.vocab_size)}
        write_json(place / "tokenizer.json", {"model": {"vocab": words}, "added_tokens": []})
        gguf = Path(name) / "model.gguf"
        arguments: list[str | Path] = [place, "--outtype", "f32", "--outfile", gguf]
        try:
            run_converter(tools, CONVERTER, arguments, vocabulary=False)
        except ToolError as error:
            raise NotConvertedError(last_lines(error.sentence, 1)) from error
        theirs = logits_apart(tools, gguf, row)
    return float(np.abs(ours - theirs).max() / ours.std())


def save_small(full: Any, place: Path, *, slides: bool) -> tuple[Any, list[int], Floats]:
    """Save a small model of `full` in the folder `place`. Return its configuration, a row of tokens, and its
    logits after each of them. Its attention slides as in `logit_difference`.
    """
    import torch

    # Only with all layers does llama.cpp take it for a model of this size. No mixture that is trained here
    # differs by its size, and all of its experts would be large.
    layers = small_model.layers_of_all_types(full) if separate.has_experts(full) else full.num_hidden_layers
    config = small_model.narrow_config(full, layers)
    if not slides and getattr(full, "sliding_window", None):
        config.sliding_window = max(full.sliding_window, TOKENS)
    model = small_model.with_visible_weights(small_model.build(config))
    row = torch.randint(1, config.vocab_size, (1, TOKENS), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        ours: Floats = model(input_ids=row, use_cache=False).logits[0].numpy()
    with redirect_stderr(io.StringIO()):  # It shows the progress of a file of a megabyte.
        model.save_pretrained(place)
    return config, row[0].tolist(), ours


def changed(full: Mapping[str, Any], small: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of `small` that differ from those of `full`."""
    return {key: value for key, value in small.items() if key not in full or full[key] != value}


def need_converted(folder: Path, tools: Toolchain, header: HeaderFields) -> None:
    """Raise `DataError` if the converter stops at the model in `folder` itself. Its weights aren't read."""
    with TemporaryDirectory(prefix="graph-") as name:
        arguments: list[str | Path] = [folder, "--dry-run", "--outfile", Path(name) / "model.gguf"]
        try:
            run_converter(tools, CONVERTER, arguments, header.pre, header.fields)
        except ToolError as error:
            raise DataError(
                "Q-BASE-057",
                f"llama.cpp's converter can't convert {folder} ({last_lines(error.sentence, 1)}): "
                "complete its config.json, or take another base",
            ) from error
