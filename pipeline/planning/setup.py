"""The input of a plan: a model's shape, its training, the device, and the resulting files."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pipeline.config.params import Params
from pipeline.config.sections import Train, Training
from pipeline.core.cpu import Device
from pipeline.core.errors import ConfigError
from pipeline.core.hardware import Card
from pipeline.planning.model.quantized import QuantizedBase
from pipeline.planning.model.shape import Shape

FLOAT = 4  # bytes of a float32
# bytes of the types of train.bnb_4bit_compute_dtype
ELEMENT = {"bfloat16": 2, "float16": 2, "float32": FLOAT}
Loss = Literal["liger", "chunked", "plain"]  # plain: transformers' own, with all logits; for comparison


@dataclass(frozen=True)
class Setup:
    """A training with rows of `max_length` tokens. Without `card`, it is on a GPU with unknown memory.

    `quantized` has the sizes of a base that is trained on as a GGUF. Of several `processes` the memory of one
    is planned. `levels` are those of the tuned model and of the untuned base. `untuned` is
    `Params.base_gguf`, which only the plan of the disk depends on.
    """

    shape: Shape
    train: Training
    max_length: int
    card: Card | None = None
    quantized: QuantizedBase | None = None
    processes: int = 1
    levels: Sequence[str] = ()
    untuned: bool = True

    @property
    def device(self) -> Device:
        """The device that trains."""
        return self.card.device if self.card else "cuda"

    @property
    def loss(self) -> Loss:
        """`train.loss`, with auto resolved.

        auto is liger on a GPU. It is chunked on a CPU, for mixtures of experts, for trained norms, and for
        architectures without Liger kernels.
        """
        if self.train.loss != "auto":
            return self.train.loss
        fused = self.device == "cuda" and not self.shape.mixture and not self.train.modules_to_save
        if self.shape.built:
            fused = fused and self.shape.built.liger
        return "liger" if fused else "chunked"

    @property
    def tokens(self) -> int:
        """Tokens of a padding-free micro batch, which is one sequence."""
        return self.max_length * self.train.per_device_train_batch_size

    @property
    def element(self) -> int:
        """Bytes of an activation, and of a weight that is not quantized."""
        return ELEMENT[self.train.bnb_4bit_compute_dtype]

    @property
    def lora_element(self) -> int:
        """Bytes of an activation in the trained part.

        It is float32 in an adapter if no autocast makes it 16 bit, which means on the CPU.
        """
        return self.element if self.device == "cuda" or self.train.tuning.inside else FLOAT

    @property
    def lean(self) -> bool:
        """True if LoRA on base linears shares their input with dropout too (`pipeline.models.lean_lora`)."""
        return self.train.quantization == "nf4" and self.device == "cpu" and not self.train.use_dora

    @property
    def parts(self) -> int:
        """The number of parts that the layers are shared out in among the processes; 1 if each has all."""
        return self.processes if self.train.shares_base else 1

    @property
    def offload_left(self) -> Literal["shared", "layers", ""]:
        """The weights that `train.offload` could still move off a card.

        These are the base, shared out, or layers; "" for none.
        """
        train = self.train
        if self.processes > 1 and not train.use_dora and not train.offloaded_layers:
            return "shared"
        return "layers" if self.device == "cuda" and not train.use_dora and not train.shares_base else ""

    def exchanged(self, trained: int) -> int:
        """Return the bytes for exchanging gradients.

        These are a round's gradients in one piece, what others send, and this process's part of the sum.
        """
        return 2 * trained + trained // self.processes if self.processes > 1 else 0

    def at(self, max_length: int, **changes: Any) -> "Setup":
        """Return the set-up with rows of `max_length` tokens and other values for keys of `train`."""
        return replace(self, train=self.train.model_copy(update=changes), max_length=max_length)


def setup_of(
    params: Params,
    shape: Shape,
    card: Card | None = None,
    quantized: QuantizedBase | None = None,
    processes: int = 1,
) -> Setup:
    """Return the set-up of `params` for a base of this shape."""
    return Setup(
        shape,
        params.training_on(card.device if card else "cuda"),
        params.preprocess.max_length,
        card,
        quantized,
        processes,
        levels=(*params.quantize.files, *params.quantize.untuned),
        untuned=params.base_gguf,
    )


def needs_gpu(optim: str) -> bool:
    """Return True if an optimizer's states are of a kind that only a GPU has."""
    return "8bit" in optim or "paged" in optim


def wants_gpu(train: Train) -> bool:
    """Return True if the settings are for training on a GPU."""
    return (
        train.device == "gpu" or train.loss == "liger" or needs_gpu(train.optim) or train.offloaded_layers > 0
    )


def check_offload(train: Train, device: Device) -> None:
    """Raise `ConfigError` if weights should be kept off a GPU, and training is on the CPU."""
    if train.offloaded_layers and device == "cpu":
        raise ConfigError(
            "Q-PLANNING-008",
            f"train.offload is {train.offload}, which spares a GPU's memory, and training is on the CPU: set "
            "it to none",
        )
