"""Section `train`: the training of the adapter, and its groups that only some methods read:
`train.preference` for the losses of preferences, `train.grpo` for GRPO.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from pipeline.config.methods import METHODS, Method
from pipeline.config.scorers import TOOL_CALLS, scorer_problems
from pipeline.config.sections.adapters import (
    DEFAULT_TARGETS,
    TABLES,
    Ranks,
    Saved,
    Targets,
    TrainedLayers,
    Variants,
)
from pipeline.config.sections.measuring import External
from pipeline.config.sections.shipping import Machine
from pipeline.config.sections.values import (
    AUTO,
    ONCE,
    Compiled,
    Count,
    Location,
    Offload,
    Optimizer,
    Quantization,
    Recomputed,
    Section,
    Seed,
    SixteenBit,
    Slots,
    group,
    key,
)
from pipeline.config.trackers import TENSORBOARD, known_tracker
from pipeline.config.tuners import TUNERS, TunerName, Tuning
from pipeline.core.cpu import ComputeDtype

EXTERNAL = "external"  # name in `rewards` of the program of `external`
JUDGE = "judge"  # a scorer of evaluate.scorers that gives no rewards
Trackers = Annotated[list[Annotated[str, AfterValidator(known_tracker)]], ONCE]
Weight = Annotated[float, Field(ge=-1000, le=1000)]
Interval = Count | Literal["epoch"]


class Preference(Section):
    beta: Annotated[float, Field(gt=0, le=1000)] | None = key(
        None,
        "how strongly answers are held to the reference's (dpo, ipo, kto), how much the pairs count beside "
        "the chosen answers (orpo), or how much a difference in log-probability counts (simpo, with half of "
        "it as margin unless gamma is set); null: 0.1, simpo 2.0",
    )
    gamma: Annotated[float, Field(ge=0, le=1000)] | None = key(
        None,
        "simpo only: margin that beta times the difference in log-probability per token has to exceed, 0.5 "
        "to 1.6; null: half of beta",
    )


class Grpo(Section):
    rewards: Annotated[dict[str, Weight], Field(min_length=1, max_length=20)] = key(
        {"exact_match": 1.0},
        "scorers of an answer with their weights, spelled as in evaluate.scorers (the prompt's answer, or "
        "the chat's last turn, is the reference), or external; a reward is the weighted sum of their points",
    )
    external: External | None = key(
        None,
        "the program that external asks (docs/rewards.md): {command: [data/evaluation/scorer, ARGUMENT], "
        "seconds: 60, start_seconds: 120}; null: none",
    )
    group_size: Annotated[int, Field(ge=2, le=1024)] = key(8, "completions drawn per prompt, 4 to 16")
    max_new_tokens: Annotated[int, Field(ge=1, le=1 << 20)] = key(256, "longest completion, in tokens")
    steps_per_round: Count = key(
        1, "optimizer steps on one round of rollouts, 1 to 8; more save time and are further off the policy"
    )
    rollouts: Literal["llama-server", "in-process"] = key(
        "llama-server",
        "who completes the prompts: llama-server (with the current adapter, as it will be served) | "
        "in-process (the model in training: no gap, slower)",
    )
    parallel: Slots = key(
        1, "prompts completed at the same time; with 1 a round is the same each time, more are faster"
    )
    loss: Literal["dapo", "dr_grpo"] = key(
        "dapo",
        "dapo (advantages are divided by their group's standard deviation, the sum over a step's tokens by "
        "their number) | dr_grpo (advantages only lose their group's mean, the sum is divided by the step's "
        "completions times max_new_tokens)",
    )
    clip_low: Annotated[float, Field(gt=0, lt=1)] = key(
        0.2, "how far below 1 the ratio of new to old probability may move an update"
    )
    clip_high: Annotated[float, Field(gt=0, le=10)] = key(
        0.28, "how far above 1 the ratio of new to old probability may move an update"
    )
    kl_beta: Annotated[float, Field(ge=0, le=10)] = key(
        0.0, "weight of the KL divergence from the base, 0.001 to 0.1; 0: none, and a forward less"
    )

    def problems(self) -> Iterator[str]:
        """Yield sentences on rewards that are missing or invalid, and on a program that is never called."""
        if JUDGE in self.rewards:
            yield (
                "grpo.rewards names judge, a model that is asked for each answer, in evaluate alone: leave "
                "it out, or have a program of yours ask it (external)"
            )
        if TOOL_CALLS in self.rewards:
            yield (
                "grpo.rewards names tool_calls, which scores the calls that llama-server reads of an answer, "
                "in evaluate alone: leave it out, or have a program of yours read the text (external)"
            )
        plain = [name for name in self.rewards if name not in (EXTERNAL, JUDGE)]
        yield from (f"grpo.rewards: {problem}" for problem in scorer_problems(plain, has_judge=False))
        if EXTERNAL in self.rewards and self.external is None:
            yield "grpo.rewards names external, but grpo.external is null: give its command"
        if EXTERNAL not in self.rewards and self.external is not None:
            yield "grpo.external is a command, but grpo.rewards doesn't name external: weigh it there"
        if not any(self.rewards.values()):
            yield "all weights in grpo.rewards are 0, so every reward would be 0: give one a weight"


class Train(Section):
    method: Method = key(
        "sft",
        "sft (what the assistant says is learned) | distill (a level learns to answer like the file it was "
        "made from; needs base.level) | dpo | ipo | orpo | simpo (the chosen answer of a pair is preferred) "
        "| kto (answers with a thumb up or down) | grpo (the model's own answers, by their rewards)",
    )
    reward: Literal["min_max", "z_score", "softmax", "none"] = key(
        "min_max",
        "sft only: how a chat's reward weights it: min_max (the worst counts nothing) | z_score (one "
        "standard deviation below the mean counts nothing) | softmax (each counts, the best most) | none; "
        "the mean weight is 1",
    )
    reward_temperature: Annotated[float, Field(gt=0, le=10**6)] = key(
        1.0, "softmax only: the lower, the more the best chats count, in units of the reward"
    )
    preference: Preference = group(Preference, "losses of dpo, ipo, kto, orpo and simpo")
    sft_weight: Annotated[float, Field(ge=0, le=1000)] = key(
        0.0,
        "distill only: share of the usual loss on what the assistant says, 0 to 1 | dpo, ipo and simpo: "
        "weight of that loss on the chosen answers, against their becoming less likely; orpo has its own",
    )
    tuner: TunerName = key(
        "lora", f"what trains: {' | '.join(f'{name} ({tuning.words})' for name, tuning in TUNERS.items())}"
    )
    start_from: Location | None = key(
        None,
        "where training goes on from: a folder with an adapter of PEFT or with trained scales, or another "
        "project's folder; of this base and with these settings, which are checked; null: an adapter that "
        "changes nothing yet",
    )
    device: Literal["auto", "cpu", "gpu"] = key(
        "auto", "auto (the GPU that PyTorch sees, else the CPU) | cpu | gpu (none: an error)"
    )
    bnb_4bit_compute_dtype: ComputeDtype | Literal["auto"] = key(
        "auto",
        "what quantized weights (NF4's or a GGUF's) are multiplied in: auto (bfloat16; a CPU without "
        "AVX512-BF16, AMX or ARM's BF16 widens its products to float32) | bfloat16 | float16 | float32",
    )
    r: Annotated[int, Field(ge=1, le=4096)] = key(16, "lora only: LoRA rank, 8 to 64")
    lora_alpha: Annotated[int, Field(ge=1, le=1 << 16)] = key(32, "lora only: LoRA scale is lora_alpha / r")
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] | None = key(
        None, "lora only: share of LoRA inputs dropped while training, 0 to 1; null: 0.05, grpo 0.0"
    )
    target_modules: Targets = key(
        DEFAULT_TARGETS,
        "linears that get an adapter, or whose scales train (the default stands for a base's own if it has "
        "others); or a regular expression that matches their whole names, e.g. .*self_attn.*_proj",
    )
    layers: TrainedLayers = key(
        None,
        "layers that train, counted from 0: a list, e.g. [20, 21, 22, 23] | 20- (from 20 on) | null: all; "
        "before the first there is no backward, and no activations are kept: faster and smaller",
    )
    rank_pattern: Ranks = key(
        {}, "lora only: other ranks, by the end of a linear's name (regular expression), e.g. {down_proj: 32}"
    )
    lora_variants: Variants = key(
        [],
        "lora only: rslora (the scale is lora_alpha / √r, for large ranks), dora (the length of each "
        "weight's rows trains too; slower, and has to be merged), gaussian (A starts by it, not by Kaiming), "
        "lora_plus (B learns at 16 times learning_rate)",
    )
    modules_to_save: Saved = key(
        [],
        "lora only: what trains whole beside the adapter, in float32: input_layernorm, "
        "post_attention_layernorm, q_norm, k_norm, norm (the last one), embed_tokens, lm_head (both where "
        "they are one table, with 16 bytes of memory a number: see quench config plan); has to be merged",
    )
    experts: Annotated[list[Literal["gate_proj", "up_proj", "down_proj", "router"]] | None, ONCE] = key(
        None,
        "mixtures of experts only: what gets an adapter of the routed experts' matrices and the router (it "
        "chooses a token's experts); []: none; null: the matrices in target_modules, which else means "
        "attention and shared experts",
    )
    num_train_epochs: Annotated[float, Field(gt=0, le=10_000)] = key(
        3.0, "passes over the training rows; max_steps wins if it is above 0"
    )
    max_steps: Annotated[int, Field(ge=-1, le=10**9)] = key(
        -1, "optimizer steps; -1: as many as num_train_epochs needs"
    )
    per_device_train_batch_size: Annotated[int, Field(ge=1, le=1 << 16)] = key(
        1, "rows (packed rows if preprocess.packing is on) per forward"
    )
    gradient_accumulation_steps: Annotated[int, Field(ge=1, le=1 << 16)] = key(
        8, "forwards per optimizer step"
    )
    order: Literal["shuffled", "as_given"] = key(
        "shuffled",
        "shuffled (each pass in another order) | as_given (each pass by the names of the files below "
        "data/raw, then by their rows: a curriculum; rows are packed in this order, not by best fit)",
    )
    learning_rate: Annotated[float, Field(gt=0, lt=1)] = key(2.0e-4, "peak learning rate, 2e-4 for example")
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = key(
        0.1, "share of the steps in which the learning rate rises from 0"
    )
    lr_scheduler_type: Literal["cosine", "linear", "constant", "constant_with_warmup"] = key(
        "cosine", "cosine | linear | constant | constant_with_warmup"
    )
    min_lr_rate: Annotated[float, Field(ge=0, lt=1)] = key(
        0.0, "cosine only: share of learning_rate at which it ends, 0.1 for example"
    )
    weight_decay: Annotated[float, Field(ge=0, lt=1)] = key(
        0.01, "decay of the adapter's weights or of the scales' change, 0 to 0.1"
    )
    max_grad_norm: Annotated[float, Field(gt=0, le=10**6)] = key(
        1.0, "gradients are scaled down to this norm"
    )
    clip_value: Annotated[float, Field(gt=0, le=10**6)] | None = key(
        None, "each element of a gradient is cut to ± this, before max_grad_norm; null: none is"
    )
    neftune_noise_alpha: Annotated[float, Field(gt=0, le=1000)] | None = key(
        None, "noise on the embeddings while training (NEFTune), 5 to 15 usual; null: none"
    )
    optim: Optimizer = key(
        "auto",
        "auto (paged_adamw_8bit on a GPU, adamw_torch on a CPU) | adamw_torch | adamw_torch_fused | sgd; on "
        "a GPU also adamw_8bit, paged_adamw_8bit, paged_adamw_32bit, lion_8bit and the like",
    )
    gradient_checkpointing: Recomputed = key(
        False,
        "recompute activations in the backward pass: less memory, a third slower; 2: in every second layer, "
        "and so on",
    )
    offload: Offload = key(
        "none",
        "frozen weights kept off the GPU: none | embeddings (1.0 GB at 7B, a little slower) | 14 (those of "
        "the first 14 layers too, copied there whenever they run: slower) | shared (embeddings, and each of "
        "several processes keeps a part of the layers, which are put together while they run: for bases that "
        "don't fit one card, slower)",
    )
    loss: Literal["auto", "liger", "chunked"] = key(
        "auto",
        "the loss that never holds all logits: auto (liger on a GPU, chunked on a CPU) | liger | chunked",
    )
    compile: Compiled = key(
        AUTO,
        "compile the layers by torch.compile: true (needs a C++ compiler, on a GPU Triton, and some minutes "
        "at the start) | false | auto (false, until a measurement on a GPU shows that it is worth it)",
    )
    train_on_prompt: bool = key(
        False,
        "learn what the user and the system say too, not the assistant's answers alone (turns with "
        "train: false stay out)",
    )
    save_steps: Interval = key(100, "steps between two checkpoints (epoch: one after each pass)")
    save_total_limit: Count = key(3, "newest checkpoints that are kept; the best is kept beside them")
    eval_steps: Interval = key(
        100,
        "steps between two evaluations on the rows kept for monitoring (data/final/val.jsonl; epoch: one "
        "after each pass)",
    )
    early_stopping_patience: Count | None = key(
        None,
        "evaluations in a row without a lower loss after which training stops, with the best adapter "
        "(needs save_steps equal to eval_steps); null: never",
    )
    sample_rows: Annotated[int, Field(ge=0, le=10_000)] = key(
        4, "held-out questions answered at each evaluation, as samples to read"
    )
    seed: Seed = key(42, "seed of the adapter's start, the row order and the dropout")
    report_to: Trackers = key(
        [TENSORBOARD],
        "who gets the run's curves beside reports/train.jsonl: tensorboard | wandb | mlflow | trackio | "
        "comet_ml | clearml | dvclive | swanlab | aim (docs/training.md); changes nothing in what is trained",
    )
    grpo: Grpo = group(Grpo, "method grpo only: rewards, rollouts and the update")

    @field_validator("max_steps")
    @classmethod
    def _some_steps(cls, value: int) -> int:
        if value == 0:
            raise ValueError("0 steps train nothing: give a number above 0, or -1 for num_train_epochs")
        return value

    @property
    def beta(self) -> float:
        """`preference.beta`, or the method's own."""
        given = self.preference.beta
        if given is None:
            given = METHODS[self.method].beta or 0.0
        return float(given)

    @property
    def gamma(self) -> float:
        """`preference.gamma`, or half of beta, as SimPO's authors advise."""
        given = self.preference.gamma
        return self.beta / 2 if given is None else given

    @property
    def tuning(self) -> Tuning:
        """The properties of the tuner, which decides what trains."""
        return TUNERS[self.tuner]

    @property
    def gguf_graph(self) -> Literal["adapter", "tuned"]:
        """The graph of stages for a GGUF that is trained on."""
        return self.tuning.graph

    @property
    def trackers(self) -> list[str]:
        """The trackers in `report_to` that have a process of their own."""
        return [name for name in self.report_to if name != TENSORBOARD]

    @property
    def saved_tables(self) -> list[str]:
        """The tables, embeddings and head, that are named to train whole."""
        return [name for name in self.modules_to_save if name in TABLES]

    @property
    def use_dora(self) -> bool:
        """True if the lengths of rows train too."""
        return "dora" in self.lora_variants

    @property
    def offloaded_layers(self) -> int:
        """The number of layers, from the first on, with their frozen weights in main memory."""
        return self.offload if isinstance(self.offload, int) else 0

    @property
    def shares_base(self) -> bool:
        """True if each of several processes keeps a part of the frozen weights."""
        return self.offload == "shared"

    @property
    def compiled(self) -> bool:
        """True if the layers are compiled. `auto` is False until benchmarks/gpu_all.py has shown a gain."""
        return self.compile is True

    @property
    def embeddings_in_ram(self) -> bool:
        """True if the embeddings are in main memory, unless they are also the head, or a GGUF's."""
        return self.offload != "none"

    @property
    def dropout(self) -> float:
        """`lora_dropout`, or the method's own; 0 if the tuner has none."""
        share = METHODS[self.method].dropout if self.lora_dropout is None else self.lora_dropout
        return share if "lora_dropout" in self.tuning.settings else 0.0

    def problems(self) -> Iterator[str]:
        """Yield sentences on keys that don't fit together.

        The best adapter can only be kept if it is saved. Noise would be in only one of two likelihoods.
        """
        learning = METHODS[self.method]
        if learning.teacher and self.sft_weight > 1:
            yield f"sft_weight is {self.sft_weight:g}, of method {self.method} a share: set it to 0 to 1"
        if self.neftune_noise_alpha is not None and learning.answers:
            yield (
                f"neftune_noise_alpha is set, and method {self.method} compares likelihoods, in which the "
                "noise would be all: set it to null"
            )
        if self.early_stopping_patience is not None and self.save_steps != self.eval_steps:
            yield (
                "early_stopping_patience is set, so the best adapter has to be kept, but save_steps is "
                f"{self.save_steps} and eval_steps is {self.eval_steps}: make them equal"
            )


class Training(Train):
    """Section `train` with what it needs of sections `base` and `machine`.

    `quantization` is the format of its linears (`base.quantization`). `bnb_4bit_compute_dtype` is no longer
    auto. `rollout_type` is that of the GGUF that is made for GRPO's llama-server; None for rollouts in the
    process, for other methods, and if the base is a GGUF itself.
    """

    bnb_4bit_compute_dtype: ComputeDtype
    quantization: Quantization
    rollout_type: SixteenBit | None = None
    machine: Machine = group(Machine)

    @property
    def rollout_layers(self) -> int:
        """The layers of GRPO's llama-server on the GPU: the number in the settings, otherwise none."""
        layers = self.machine.n_gpu_layers
        return layers if isinstance(layers, int) else 0

    @property
    def makes_nf4_in_ram(self) -> bool:
        """True if NF4 is made in main memory, which contains the parts of a base that is shared out."""
        return self.shares_base and self.quantization == "nf4"
