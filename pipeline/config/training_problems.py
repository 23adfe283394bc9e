"""Settings of section `train` that don't fit together, or don't fit the product of the training."""

from collections.abc import Iterator, Sequence

from pipeline.config.methods import METHODS
from pipeline.config.sections import Base, Graph, Train
from pipeline.config.sections.adapters import TABLES
from pipeline.config.strategies import STRATEGIES
from pipeline.config.targets import merged_only
from pipeline.core.text import listed, quoted


def training_problems(
    train: Train, base: Base, graph: Graph, *, full_parity: bool, compared: Sequence[str]
) -> Iterator[str]:
    """Yield a sentence on each problem.

    With `full_parity` base levels get the adapter. `compared` are the compared strategies.
    """
    learning = METHODS[train.method]
    trained = train.tuning.inside
    if trained and base.quantization != "gguf":
        yield (
            f"train.tuner is {train.tuner} and base.quantization is {base.quantization}, which has no "
            f"{trained}: set it to gguf, or the tuner to lora"
        )
    if "target_modules" not in train.tuning.settings and not train.modules_to_save:
        yield f"train.tuner is {train.tuner}, and train.modules_to_save is []: name what trains there"
    if learning.teacher and base.level is None:
        yield (
            f"train.method is {train.method} and base.level is null, so there is no original to learn from: "
            "name the level to distill"
        )
    if train.start_from and compared:
        yield (
            f"train.start_from is {train.start_from!r} and compare.seeds is set, whose strategies train from "
            "nothing, on other bases too: set one of them to null or []"
        )
    if graph != "merged":
        yield from _of_one_gguf(train, compared)
    if (train.offloaded_layers or train.shares_base) and train.use_dora:
        yield (
            f"train.offload is {train.offload} and train.lora_variants names dora, which reads weights "
            "beside the layers' own forwards: set it to none, or take dora out"
        )
    yield from _problems_of_shards(train)
    if train.compiled:
        yield from _problems_of_compiling(train, base)
    if train.modules_to_save and train.loss == "liger":
        yield (
            f"train.modules_to_save names {', '.join(train.modules_to_save)} and train.loss is liger, whose "
            "kernels replace norms, which was never tried, and make no gradient of a head: set it to auto or "
            "chunked"
        )
    if train.saved_tables and train.offload != "none":
        yield (
            f"train.offload is {train.offload}, which keeps embeddings off the card, and "
            f"train.modules_to_save names {listed(train.saved_tables)}: set it to none"
        )
    if base.new_tokens and base.quantization != "gguf" and len(train.saved_tables) < len(TABLES):
        yield (
            f"base.new_tokens names {quoted(base.new_tokens[0])}, whose rows train only if "
            f"train.modules_to_save names {listed(TABLES)}, and it is {train.modules_to_save}: add them"
        )
    if train.modules_to_save and "lora_plus" in train.lora_variants:
        yield (
            f"train.modules_to_save names {', '.join(train.modules_to_save)} and train.lora_variants "
            "lora_plus, with which they would learn as fast as B: leave one of them out"
        )
    if learning.teacher and train.train_on_prompt and not train.sft_weight:
        yield (
            f"train.train_on_prompt is on and train.method is {train.method} with sft_weight 0, which learns "
            "from all tokens already: set it to false"
        )
    if train.train_on_prompt and learning.answers:
        yield (
            f"train.train_on_prompt is on and train.method is {train.method}, which {learning.answers}: set "
            "it to false"
        )
    if learning.prompts and train.dropout:
        yield (
            f"train.lora_dropout is {train.dropout:g}, and method {train.method} compares likelihoods before "
            "and after a step, in which the dropout would be all: set it to 0.0 or null"
        )
    if compared and learning.answers:
        yield (
            f"compare.seeds names seeds and train.method is {train.method}, and strategies are compared by "
            "supervised training: set the seeds to []"
        )
    problem = merged_only(train.model_dump(include={*train.tuning.settings}))
    if problem:
        if learning.prompts and train.grpo.rollouts == "llama-server":
            yield (
                f"train.{problem}, with which llama-server can't draw: leave it out, or set "
                "train.grpo.rollouts to in-process"
            )
        yield from _of_merged_only(f"train.{problem}", graph, full_parity, compared)


def _problems_of_shards(train: Train) -> Iterator[str]:
    """Yield sentences on what keeps a base from being shared out among processes."""
    if not train.shares_base:
        return
    if METHODS[train.method].prompts:
        yield (
            f"train.offload is shared and train.method is {train.method}, which one process trains: set it "
            "to none"
        )
    if METHODS[train.method].reference and train.per_device_train_batch_size > 1:
        yield (
            f"train.offload is shared and train.method is {train.method}, whose reference is asked for each "
            "row by itself, in all processes at once: set train.per_device_train_batch_size to 1"
        )


def _problems_of_compiling(train: Train, base: Base) -> Iterator[str]:
    """Yield sentences on what keeps the layers from being compiled."""
    if base.quantization == "gguf":
        yield (
            "train.compile is true and base.quantization is gguf, whose blocks have kernels of their own: "
            "set it to auto, or base.quantization to nf4"
        )
    if train.offloaded_layers or train.shares_base:
        yield (
            f"train.compile is true and train.offload is {train.offload}, which puts weights in place while "
            "layers run: set train.compile to auto, or train.offload to none"
        )
    answers = METHODS[train.method].answers
    if answers:
        yield (
            f"train.compile is true and train.method is {train.method}, which {answers}, and the rounding of "
            "compiled layers would be in some of their likelihoods only: set it to auto"
        )


def _of_one_gguf(train: Train, compared: Sequence[str]) -> Iterator[str]:
    """Yield sentences on settings that need a base that is not quantized already."""
    if train.offload == "embeddings":
        yield (
            "train.offload is embeddings, but a GGUF's embeddings stay quantized and small: set it to none"
        )
    if compared:
        yield (
            "compare.seeds names seeds and base.quantization is gguf: strategies are compared where the "
            "16-bit base is: set it to nf4"
        )


def _of_merged_only(why: str, graph: Graph, full_parity: bool, compared: Sequence[str]) -> Iterator[str]:
    if graph == "adapter":
        yield f"{why}, as which base.quantization gguf serves it: leave it out, or set that to nf4"
    if graph == "merged" and full_parity:
        yield (
            f"{why}, which parity.depth full puts on the base's levels: leave it out, or set the depth to "
            "standard"
        )
    beside = [name for name in compared if STRATEGIES[name].beside]
    if beside:
        yield (
            f"{why}, which compare.strategies {' and '.join(beside)} put on a level: leave it out, or name "
            "other strategies"
        )
