"""The shape of an architecture that transformers knows and no code here does: its model is built without
weights, and its linears are counted one by one.

What the forward keeps for the backward is counted too, with tensors that have shapes and no memory
(`torch._subclasses.fake_tensor`), for rows of three lengths. Only this module of the planner imports PyTorch
and transformers, which takes seconds.
"""

import json
import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.core.errors import ConfigError, DataError
from pipeline.core.text import first_line
from pipeline.models.liger_loss import lacking_kernels
from pipeline.models.text_config import is_wrapper, text_part
from pipeline.planning.model.shape import KNOWN, Built, Kept, Linear, Shape, known_shape, number_in

STEP = 256  # tokens of the shortest row that is counted; state-space layers work in pieces that divide it
# The input of each linear of a dense layer. Linears that read the same tensor keep it once.
READS = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "qkv_proj"), "normed"),
    "o_proj": "attended",
    **dict.fromkeys(("gate_proj", "up_proj", "gate_up_proj"), "normed again"),
    "down_proj": "gated",
}
# Keys of a settings file for code or formats that are not part of an architecture.
NOT_BUILT = ("auto_map", "quantization_config", "dtype", "torch_dtype", "transformers_version")


def built_shape(config: Mapping[str, Any], where: str) -> Shape:
    """Return the shape of a config.json of a type not in `KNOWN`; of a multimodal model, its text part's.

    Raises `ConfigError` for a type that is not a language model of transformers, `DataError` for impossible
    numbers, and for a text part that stage `base` can't use.
    """
    if is_wrapper(config):
        config = text_part(config, where).settings
    for key in ("num_hidden_layers", "vocab_size"):
        if config.get(key) is not None:
            number_in(config, where, key)
    values = {key: value for key, value in config.items() if key not in NOT_BUILT}
    try:
        text = json.dumps(values, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise DataError("Q-PLANNING-006", f"{where} is no config.json ({error})") from error
    answer = _built(text)
    if isinstance(answer, str):
        raise ConfigError(
            "Q-PLANNING-005",
            f"{where} is of a {config.get('model_type')!r} model, whose memory can't be planned: {answer}; "
            "take another dense language model of transformers",
        )
    return answer


@lru_cache(maxsize=4)
def _built(text: str) -> Shape | str:
    """Return the shape, or the reason why there is none.

    `text` is a config as JSON, which a cache can store.
    """
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    if json.loads(text).get("model_type") not in CONFIG_MAPPING:
        return "transformers has no such type"
    try:
        with TemporaryDirectory() as folder:  # read as training reads it
            (Path(folder) / "config.json").write_text(text, encoding="utf-8")
            config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        config = config.get_text_config(decoder=True)
        if isinstance(config, dict):  # A type without parts keeps what it is given.
            raise TypeError("text_config is of no use to this type")
    # Settings of a stranger's file are checked by each architecture in its own way.
    except Exception as error:
        return f"transformers does not take its settings ({first_line(error)})"
    if config.model_type in KNOWN:
        return known_shape(config.to_dict(), "its text part")
    if config.is_encoder_decoder:  # Some of these are also registered as a language model, with the decoder.
        return "it is an encoder and a decoder"
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return "transformers has no causal language model of it"
    try:
        return _shape(config)
    except Exception as error:
        return f"its model can't be built or run without weights ({first_line(error)})"


@dataclass
class Counter:
    """Bytes that a forward keeps, storage by storage, for the layer that keeps it first unless two do."""

    model: Any
    layer: int | None = None  # the layer that runs now
    owners: dict[int, int | None] = field(default_factory=dict)
    held: dict[int, Any] = field(default_factory=dict)  # kept alive so that no address is used twice

    def __post_init__(self) -> None:
        tensors = (*self.model.parameters(), *self.model.buffers())
        self.own = {tensor.untyped_storage()._cdata for tensor in tensors}

    def keep(self, tensor: Any) -> Any:
        """Record a tensor that autograd keeps, and return it."""
        storage = tensor.untyped_storage()
        number = storage._cdata
        if number not in self.own:
            self.held[number] = storage
            if self.owners.setdefault(number, self.layer) != self.layer:
                self.owners[number] = None
        return tensor

    def enter(self, layer: int) -> Any:
        """Return a hook that records that `layer` runs."""

        def hook(*_: Any) -> None:
            self.layer = layer

        return hook

    def leave(self, *_: Any) -> None:
        """Record that no layer runs."""
        self.layer = None

    def of(self, layer: int | None) -> list[int]:
        """Return the bytes of each storage that `layer` keeps, or, for None, what is outside or shared."""
        return [self.held[number].nbytes() for number, owner in self.owners.items() if owner == layer]


def _shape(config: Any) -> Shape:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from transformers import AutoModelForCausalLM

    with FakeTensorMode():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).requires_grad_(False)
        name, layers = _layers(model)
        # Only a fused attention keeps its output, which o_proj reads.
        apart = {"o_proj"} if config._attn_implementation == "eager" else set()
        linears = tuple(tuple(_linears(layer, f"{name}.{{}}", apart)) for layer in layers)
        if not any(map(_attends, linears)):
            raise ValueError("no layer of it has a module called attention")
        norms = tuple(tuple(_norms(layer)) for layer in layers)
        embedding = model.get_input_embeddings()
        head = model.get_output_embeddings()
        tied = head.weight is embedding.weight
        weights = sum(parameter.numel() for parameter in model.parameters())
        tables = embedding.weight.numel() * (1 if tied else 2)
        buffers = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
        kept, ends_kept, widest = _kept_bytes(model, name, layers, linears)
    vocabulary, hidden = embedding.weight.shape
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    # Heads may differ by layer, as in Gemma 4. The largest counts.
    outputs = [linear.inputs for layer in linears for linear in layer if linear.name == "o_proj"]
    head_dim = max(outputs, default=hidden) // heads
    built = Built(
        layers=linears,
        norms=norms,
        small=weights - tables - sum(linear.weights for layer in linears for linear in layer),
        buffers=buffers,
        keys_and_values=sum(_keys_and_values(layer, kv_heads * head_dim) for layer in linears),
        kept=kept,
        ends_kept=ends_kept,
        widest=widest,
        liger=not lacking_kernels(config, swap=False),  # A plan swaps nothing.
    )
    return Shape(
        layers=len(layers),
        hidden=hidden,
        intermediate=max(widest, *(linear.outputs for layer in linears for linear in layer)),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=vocabulary,
        tied=tied,
        qk_norms=any("q_norm" in name for name, _ in norms[0]),
        positions=getattr(config, "max_position_embeddings", None) or 32_768,
        linears=linears[0],
        built=built,
    )


def _layers(model: Any) -> tuple[str, Any]:
    """Return the name of the list of decoder layers and the list.

    Raises `ValueError` if they are elsewhere, because stage `base` refuses such models.
    """
    layers = getattr(getattr(model, "model", None), "layers", None)
    if not layers:
        raise ValueError("its layers are not model.layers, where adapters are put")
    return "model.layers", layers


def _linears(layer: Any, place: str, apart: Container[str]) -> Iterator[Linear]:
    """Yield the linears of a layer, whose name below the model is `place`.

    The input of those named in `apart` is kept by nothing else.
    """
    import torch

    from pipeline.models.read_weights import read_by_parents

    # a convolution in addition to attention
    mixes = any(parameter.dim() > 2 for parameter in layer.parameters())
    without = read_by_parents(layer)
    for path, module in layer.named_modules():
        if isinstance(module, torch.nn.Linear):
            name = path.rpartition(".")[2]
            reads = path if mixes or name in apart else READS.get(name, path)
            yield Linear(
                name,
                module.in_features,
                module.out_features,
                module.bias is not None,
                reads,
                adapts=path not in without,
                place=f"{place}.{path}",
            )


def _norms(layer: Any) -> Iterator[tuple[str, int]]:
    """Yield (name, elements) of the norms of a layer."""
    for path, parameter in layer.named_parameters():
        module = path.removesuffix(".weight").rpartition(".")[2]
        if parameter.dim() == 1 and "norm" in module:
            yield module, parameter.numel()


def _keys_and_values(linears: tuple[Linear, ...], usual: int) -> int:
    """Return the numbers of a token in the cache of a layer: 0 for one without attention.

    `usual` are the keys by the settings, for attention whose linears have other names.
    """
    widths = {linear.name: linear.outputs for linear in linears}
    inputs = {linear.name: linear.inputs for linear in linears}
    if "k_proj" in widths:
        return widths["k_proj"] + widths.get("v_proj", widths["k_proj"])
    if "qkv_proj" in widths and "o_proj" in inputs:
        return widths["qkv_proj"] - inputs["o_proj"]
    return 2 * usual if _attends(linears) else 0


def _attends(linears: tuple[Linear, ...]) -> bool:
    """Return True if a layer with these linears has softmax attention, by the names of its modules."""
    return any(re.search(r"\{\}\.(self_)?att", linear.place) for linear in linears)


def _kept_bytes(
    model: Any, name: str, layers: Any, linears: tuple[tuple[Linear, ...], ...]
) -> tuple[tuple[Kept, ...], Kept, int]:
    """Return what each layer keeps for the backward, what the rest keeps, and the largest tensor of a token.

    Layers with the same linears are assumed to be equal, so that only the first ones run, up to one more than
    there are kinds.
    """
    kinds = [tuple((linear.name, linear.inputs, linear.outputs) for linear in layer) for layer in linears]
    first = [kinds.index(kind) for kind in kinds]
    shortened = layers[: max(first) + 2]
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, shortened)
    mixes = any(parameter.dim() > 2 for parameter in shortened.parameters())
    counted = [_counted(model, shortened, length, masked=not mixes) for length in (STEP, 2 * STEP, 3 * STEP)]

    def curve(layer: int | None) -> Kept:
        short, middle, long = (sum(counter.of(layer)) for counter in counted)
        if not mixes:
            return Kept(STEP, (short, middle, long))
        # Each further piece needs the same bytes except for the first ones: use the steepest line above all
        # three.
        slope = max(middle - short, long - middle)
        start = max(short - slope, middle - 2 * slope, long - 3 * slope)
        return Kept(STEP, (start + slope, start + 2 * slope, start + 3 * slope), whole=True)

    by_kind = {number: curve(number) for number in set(first)}
    largest = max(size for number in set(first) for size in counted[-1].of(number))
    return tuple(by_kind[number] for number in first), curve(None), largest // (2 * 3 * STEP)


def _counted(model: Any, layers: Any, length: int, *, masked: bool) -> Counter:
    """Return what a forward of a row of `length` tokens keeps, with the mask of packed rows if `masked`."""
    import torch

    counter = Counter(model)
    hooks = [layer.register_forward_pre_hook(counter.enter(number)) for number, layer in enumerate(layers)]
    hooks += [layer.register_forward_hook(counter.leave) for layer in layers]
    # The first layer's input needs a gradient, as with gradient checkpointing.
    hooks.append(model.get_input_embeddings().register_forward_hook(lambda *given: given[2].requires_grad_()))
    ids = torch.zeros(1, length, dtype=torch.long)
    mask = torch.zeros(1, 1, length, length, dtype=torch.bool) if masked else None
    with torch.autograd.graph.saved_tensors_hooks(counter.keep, lambda tensor: tensor):
        model.base_model(input_ids=ids, attention_mask=mask, use_cache=False)
    for hook in hooks:
        hook.remove()
    return counter
