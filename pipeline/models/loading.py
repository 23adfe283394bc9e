"""Load a Hugging Face folder's causal language model, a mixture's with separate experts; find its class."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from pipeline.core.errors import DataError
from pipeline.gguf.sources import KEY_MAPPING
from pipeline.models.experts.separate import has_experts, separated


def load_model(folder: Path, **settings: Any) -> Any:
    """Return the causal language model of the Hugging Face folder, with separate experts if it is a mixture;
    `settings` are for transformers' `from_pretrained`. Raises `DataError` if its files lack a weight.
    """
    config = read_config(folder)
    model, loaded = class_for(config).from_pretrained(
        folder,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        output_loading_info=True,
        key_mapping=key_mapping(config),
        **settings,
    )
    missing = sorted(loaded["missing_keys"])
    if missing:
        raise DataError(
            "Q-MODELS-035",
            f"{folder} has no {missing[0]} ({len(missing)} weights so), which would be made up: take a "
            "base that is complete and whose experts, if it has some, are stored one by one",
        )
    return model


def read_config(folder: Path) -> Any:
    """Return transformers' configuration of the model in a folder."""
    return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def key_mapping(config: Any) -> dict[str, str] | None:
    """Return how tensors are renamed for transformers' model of this configuration; None if they are not."""
    return KEY_MAPPING if config.model_type == "mixtral" else None


def class_for(config: Any) -> Any:
    """Return transformers' causal model class for this configuration; a mixture's has separate experts."""
    kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return separated(kind) if has_experts(config) else kind
