"""What transformers builds from a base's config: names and shapes of its weights, which of them bitsandbytes
quantizes, which are one table.
"""

from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import DataError


@dataclass(frozen=True)
class Structure:
    """A model without its numbers; weights go by transformers' names, in the order in which modules declare
    them.
    """

    shapes: dict[str, tuple[int, ...]]
    quantized: frozenset[str]  # weights that are in 4 bit while training with base.quantization nf4
    transposed: frozenset[str]  # weights stored (in, out)
    embedding: str
    head: str
    tied: bool


def structure(base: Path) -> Structure:
    """The structure of the model in `base`, from its config alone. Raises `DataError` if transformers can't
    build it.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.pytorch_utils import Conv1D
    from transformers.quantizers.base import HfQuantizer
    from transformers.quantizers.quantizers_utils import should_convert_module

    from pipeline.models.experts.separate import expert_linears

    try:
        config = AutoConfig.from_pretrained(base, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            "Q-MODELS-023",
            f"transformers can't build the model of {base / 'config.json'} ({str(error).splitlines()[0]}): "
            "take another base",
        ) from error
    kept = HfQuantizer.get_modules_to_not_convert(model, None, model._keep_in_fp32_modules)
    # as transformers' replace_with_bnb_linear: exactly these two classes, by their full names
    linears = {
        name: module
        for name, module in model.named_modules()
        if (type(module) is torch.nn.Linear or isinstance(module, Conv1D))
        and should_convert_module(name, kept)
    }
    conv1d = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, Conv1D)}
    owners = {id(module): name for name, module in model.named_modules()}
    stored_in_out = {
        f"{owners[id(module)]}.{name}"
        for module in model.modules()
        if getattr(module, "is_transposed", False)
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.dim() == 3
    }
    embedding, head = (
        f"{owners[id(module)]}.weight"
        for module in (model.get_input_embeddings(), model.get_output_embeddings())
    )
    return Structure(
        shapes={
            name: tuple(parameter.shape) for name, parameter in model.named_parameters(remove_duplicate=False)
        },
        quantized=frozenset(f"{name}.weight" for name in (*linears, *expert_linears(model))),
        transposed=frozenset(conv1d | stored_in_out),
        embedding=embedding,
        head=head,
        tied=head in model.all_tied_weights_keys,
    )
