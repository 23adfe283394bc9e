"""Find the language model's part of a config.json, and the class that computes it.

Models that read images or sound are published as wrappers: a language model, a tower and a projector, with a
config.json that has each one's settings. Stage `base` extracts the language model, and a plan counts nothing
else. `pipeline.gguf.sources.text_config` reads the same part if JSON is enough.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import DataError
from pipeline.core.text import quoted, shortened

TOWERS = ("vision_config", "audio_config")
# Text models without a causal class of their own: the class that computes the same for text. Their rotary
# positions in several dimensions (M-RoPE) are all equal there, which is the ordinary rotary embedding.
SAME_FOR_TEXT = {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}
# Text classes that llama.cpp's converter knows by another name only, of a model that it computes alike; and a
# key that it wants with this name, also null.
SAME_FOR_CONVERTER = {"Gemma4UnifiedForCausalLM": "Gemma4ForCausalLM"}
WANTED_BY_CONVERTER = "moe_intermediate_size"
ENDS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True)
class TextPart:
    """Language model in a wrapper of `kind`: its configuration, and whether llama.cpp can show images to it
    with the wrapper's mmproj.
    """

    kind: str
    config: Any
    sees_images: bool

    @property
    def settings(self) -> dict[str, Any]:
        """config.json of the language model only."""
        values: dict[str, Any] = json.loads(self.config.to_json_string(use_diff=False))
        return values


def is_wrapper(config: Mapping[str, Any]) -> bool:
    """Return True if a config.json is of a language model with towers for images or sound."""
    return any(isinstance(config.get(tower), dict) for tower in TOWERS)


def text_part(config: Mapping[str, Any], source: str) -> TextPart:
    """Return the language model of a wrapper's config.json. Raises `DataError` if transformers has none."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind = config.get("model_type")
    try:
        wrapper = AutoConfig.for_model(**config)
        text = wrapper.get_text_config()
        named = type(text).model_type
        chosen = SAME_FOR_TEXT.get(named, named)
        if chosen != named:
            text = AutoConfig.for_model(chosen, **_plain(text))
    # An untrusted file: the library raises exceptions of any type.
    except Exception as error:
        raise DataError(
            "Q-BASE-010",
            f"{source} has model_type {quoted(kind)}, whose settings transformers can't read "
            f"({shortened(error)}): choose another base",
        ) from error
    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(chosen)
    if text is wrapper or name is None:
        raise DataError(
            "Q-BASE-010",
            f"{source} is a model for images or sound too ({quoted(kind)}), and its text part "
            f"({quoted(named)}) is no causal language model of transformers: choose the text-only model of "
            "this family, or another base",
        )
    text.architectures = [SAME_FOR_CONVERTER.get(name, name)]
    if name in SAME_FOR_CONVERTER:
        setattr(text, WANTED_BY_CONVERTER, None)
    text.dtype = text.dtype or wrapper.dtype
    for key in ENDS:
        if config.get(key) is not None:
            setattr(text, key, config[key])
    # Some wrappers' settings don't contain it.
    tied = getattr(wrapper, "tie_word_embeddings", False) or getattr(text, "tie_word_embeddings", False)
    text.tie_word_embeddings = bool(tied)
    return TextPart(str(kind), text, chosen == named)


def _plain(text: Any) -> dict[str, Any]:
    """Return a text model's settings for the class that computes the same, without positions' dimensions."""
    values: dict[str, Any] = text.to_dict()
    values.pop("model_type")
    rope = values.get("rope_parameters") or {}
    several_dimensions = ("mrope_section", "mrope_interleaved")
    plain = {key: value for key, value in rope.items() if key not in several_dimensions}
    return values | {"rope_parameters": plain}


def read_text_config(folder: Path) -> Any:
    """Return transformers' configuration of the text model that the config.json of `folder` describes."""
    from transformers import AutoConfig
    from transformers.utils import logging

    logging.set_verbosity_error()  # Some architectures advise to install kernels.
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return config.get_text_config()
