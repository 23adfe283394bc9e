"""Sections `report`, `serve` and `machine`: what is recommended and refused, and how it is served."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from pipeline.config.sections.values import (
    AUTO,
    ON_GPU,
    Fraction,
    GpuLayers,
    KldLimit,
    Location,
    Points,
    Section,
    Slots,
    Threads,
    Tokens,
    group,
    key,
)

MAX_TASK_DROP = 10.0


def _as_word(value: object) -> object:
    """Return true as on and false as off, which are llama-server's words."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return value


FlashAttention = Annotated[Literal["auto", "on", "off"], BeforeValidator(_as_word)]


class Gate(Section):
    max_kld: KldLimit | None = key(
        "auto",
        "mean KL divergence from F16 above this, in nats; the worse of the assistant's tokens and all "
        "(gguf: of what is served from what was trained); auto: what is published for the level and the "
        "model's size, as for parity.max_kld_level; whatever the number, also a share of positions with "
        "F16's top token below what goes with auto",
    )
    max_kld_trained: KldLimit | None = key(
        "auto",
        "mean KL divergence of the merged model from the trained one above this, in nats (16-bit base "
        "weights under an adapter that was trained on NF4); auto: what is published for NF4's size",
    )
    max_task_drop: Points | None = key(
        MAX_TASK_DROP,
        "points (of 100) below F16 (gguf: below the base alone), the entire 95 % interval above this; a "
        "level is recommended up to half of it",
    )
    min_stopped: Fraction | None = key(0.9, "share of answers that end by themselves below this, 0 to 1")
    max_forgetting: Points | None = key(
        10.0, "points (of 100) of general ability below the untuned base, the entire 95 % interval above this"
    )
    min_preference_accuracy: Fraction | None = key(
        0.5,
        "preferences only: share of held-out pairs (kto: answers) told right, the entire 95 % interval below "
        "this, 0 to 1",
    )
    min_generation_tok_s: Annotated[float, Field(gt=0, le=10**6)] | None = key(
        None, "tokens a second of generation, on the machine that evaluates, below this"
    )
    max_first_token_seconds: Annotated[float, Field(gt=0, le=10**6)] | None = key(
        None,
        "seconds until the first token of an answer to a prompt of 512 tokens (or the longest that the "
        "context holds), on the machine that evaluates, above this",
    )

    @property
    def min_same_top(self) -> Literal["auto"] | None:
        """The least share of positions with F16's top token, the worse of the assistant's and all.

        It is the share that goes with the divergence that is published for the level, and off if divergence
        is off.
        """
        return None if self.max_kld is None else AUTO


class Acceptance(Section):
    """A change of a job's settings or code that was declared to be without effect.

    `outputs` is a hash of the outputs that it is about.
    """

    why: Annotated[str, Field(min_length=1, max_length=200)]
    what: str
    outputs: str


class Report(Section):
    memory_gb: Annotated[float, Field(gt=0, le=10**5)] = key(
        8.0,
        "memory the model is to be served in, in GB as cards are sold (8.0: 8 GiB); the recommendation "
        "fits it",
    )
    gate: Gate = group(Gate, "what `quench ship` refuses; null: that rule is off")
    accepted: dict[str, Acceptance] = key(
        {},
        "changes of stages that were declared to be without effect; `quench status --accept STAGE` writes it",
    )

    @property
    def max_task_drop(self) -> float:
        """Points (of 100) that a level may score below F16 and still be recommended.

        It is half of the gate's limit, or half of the default limit if that rule is off.
        """
        refused = self.gate.max_task_drop
        if refused is None:
            refused = MAX_TASK_DROP
        return refused / 2


class ServeKeys(Section):
    """Section `serve`."""

    port: Annotated[int, Field(ge=1024, le=65535)] = key(8081, "port on 127.0.0.1")
    ctx_size: Tokens = key(4096, "context of each answer, in tokens")
    parallel: Slots = key(1, "answers at the same time")
    flash_attn: FlashAttention = key("auto", "flash attention: true | false | auto (llama-server decides)")
    n_predict: Annotated[int, Field(ge=1, le=1 << 24)] = key(1024, "longest answer, in tokens")


class Machine(Section):
    """Section `machine`: how llama.cpp runs here, in every stage, under `quench serve` and for GRPO."""

    threads: Threads = key(2, "CPU threads of llama.cpp's tools and servers")
    n_gpu_layers: GpuLayers = key(
        AUTO, f"{ON_GPU}; for GRPO's rollouts auto is 0, which leaves the GPU to training"
    )
    llama_cpp: Location | None = key(
        None, "folder with your own build of llama.cpp (a CUDA build, say); null: the one `make setup` built"
    )
    price_per_hour: Annotated[float, Field(gt=0, le=10**6)] | None = key(
        None, "price of an hour of this machine, in your currency, for plan and report; null: none is shown"
    )

    def price(self, seconds: float) -> str | None:
        """Return the price of so many seconds in words; None if there is none."""
        if self.price_per_hour is None:
            return None
        return f"{self.price_per_hour * seconds / 3600:,.2f} at {self.price_per_hour:g} an hour"


class Serve(ServeKeys):
    """Section `serve` with what it needs of section `machine`."""

    threads: Threads = 2
    n_gpu_layers: GpuLayers = AUTO

    @property
    def on_gpu(self) -> bool:
        """True if these settings put layers on a GPU, whatever the machine.

        It is False for auto, which doesn't specify it.
        """
        return self.n_gpu_layers not in (0, AUTO)
