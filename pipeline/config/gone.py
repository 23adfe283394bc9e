"""Settings that former versions had, and what became of each."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pipeline.core.text import safe


class Gone(NamedTuple):
    """What holds in the place of a former key: a value that can't be set any more, and a sentence on it."""

    now: Any
    why: str
    # of the key that takes its value, or what `TAKEN` makes of it; else a list is part of that key's
    new_name: str | None = None


ONE_LIST = "compare.strategies is one list of names"
ALL_OF_LLAMA_CPP = "section machine says it for all of llama.cpp's tools and servers"
REPAIR = "curate.repair is a list of what is repaired, not rejected"
REJECT = "curate.reject is a list of what is rejected"
VARIANTS = "train.lora_variants names rslora, dora, gaussian and lora_plus"
OFFLOAD = "train.offload has none, embeddings, a number of layers and shared"
EXPERTS = "train.experts names the routed experts' matrices and the router"
GONE: Mapping[str, Gone] = {
    "base.source": Gone(
        "hub",
        "a commit in base.revision says hub, base.file alone package, the ending .gguf a file, else it is a "
        "folder",
    ),
    "base.compare_with": Gone(None, "parity compares the file with llama.cpp"),
    "curate.max_tokens": Gone(1024, "rows have preprocess.max_length tokens at most"),
    "curate.refusals": Gone("reject", REJECT, "curate.reject"),
    "curate.garbage": Gone(False, REJECT, "curate.reject"),
    "curate.turns": Gone("repair", REPAIR, "curate.repair"),
    "curate.control_tokens": Gone("neutralize", REPAIR, "curate.repair"),
    "curate.near_threshold": Gone(0.8, "near duplicates have a Jaccard similarity of 0.8 or more"),
    "curate.max_line_bytes": Gone(4194304, "a line or record may have 4 MiB: split a longer one"),
    "curate.normalize": Gone(True, "text is always in Unicode's composed form"),
    "curate.ngram": Gone(13, "13 words in a row are a leak"),
    "curate.max_domain_share": Gone(1.0, "curate.temperature evens domains out"),
    "curate.max_rows_per_source": Gone(None, "curate.source_weights gives a source's share"),
    "curate.pairs_min_gap": Gone(0.0, "any difference of rewards makes a pair"),
    "train.use_rslora": Gone(False, VARIANTS, "train.lora_variants"),
    "train.use_dora": Gone(False, VARIANTS, "train.lora_variants"),
    "train.init_lora_weights": Gone("default", VARIANTS, "train.lora_variants"),
    "train.alpha_pattern": Gone({}, "train.lora_alpha is one for all linears"),
    "train.eva_rows": Gone(32, "an adapter starts at random, or as train.lora_variants says"),
    "train.loraplus_lr_ratio": Gone(
        None, "train.lora_variants names lora_plus, whose ratio is 16", "train.lora_variants"
    ),
    "train.target_experts": Gone(None, EXPERTS, "train.experts"),
    "train.router": Gone("frozen", EXPERTS, "train.experts"),
    "train.freeze_layers": Gone(0, "train.layers takes the first that trains too, as 20-", "train.layers"),
    "train.shuffle": Gone(True, "train.order is shuffled or as_given", "train.order"),
    "train.distill_top_k": Gone(64, "the original's 64 likeliest tokens per position are kept"),
    "train.distill_sft_weight": Gone(0.0, "it is called train.sft_weight", "train.sft_weight"),
    "train.preference.sft_weight": Gone(0.0, "it is called train.sft_weight", "train.sft_weight"),
    "train.preference.simpo_gamma": Gone(1.0, "SimPO's margin is half of train.preference.beta"),
    "train.preference.desirable_weight": Gone(1.0, "KTO weighs both kinds of answers by their numbers"),
    "train.preference.undesirable_weight": Gone(1.0, "KTO weighs both kinds of answers by their numbers"),
    "train.bnb_4bit_use_double_quant": Gone(True, "NF4's scales are always quantized too"),
    "train.keep_quantized": Gone(True, "a GGUF's linears always stay quantized"),
    "train.sample_tokens": Gone(32, "a sample has 32 tokens at most"),
    "train.embeddings_on_cpu": Gone(False, OFFLOAD, "train.offload"),
    "train.offload_layers": Gone(0, OFFLOAD, "train.offload"),
    "train.shard_base": Gone(False, OFFLOAD, "train.offload"),
    "train.checkpoint_every": Gone(
        1, "train.gradient_checkpointing takes the number too", "train.gradient_checkpointing"
    ),
    "train.grpo.reward_seconds": Gone(60.0, "a scorer has 60 s for a group"),
    "train.grpo.rollout_type": Gone("F16", "rollouts are drawn with a GGUF of convert.type"),
    "train.grpo.adapter_type": Gone("F16", "llama-server's adapter is in F16"),
    "train.grpo.scale_rewards": Gone(True, "train.grpo.loss: dr_grpo doesn't scale"),
    "train.grpo.mask_truncated": Gone(False, "a completion that was cut off counts with its reward"),
    "train.grpo.correction_cap": Gone(2.0, "rollouts are corrected by a factor of 2 at most"),
    "lora.type": Gone("F16", "the adapter's GGUF is in F16"),
    "merge.dtype": Gone("float16", "convert.type says it: F16 is float16, BF16 is bfloat16"),
    "merge.rows": Gone(16, "16 held-out rows choose between two merges"),
    "merge.task_rows": Gone(
        0, "the divergence from the trained model chooses a merge; stage evaluate scores the task"
    ),
    "merge.levels": Gone(["Q4_K_M"], "a merge is chosen at the first of quantize.levels"),
    "convert.base": Gone(
        True,
        "the untuned base's GGUF is made for base-… in evaluate.models or quantize.levels, compare.seeds and "
        "parity.depth full",
    ),
    "imatrix.tokens": Gone(
        0, "100,000 tokens are measured if a level of quantize.levels has -imatrix, which budgets use too"
    ),
    "distill.learning_rate": Gone(2.0e-3, "scales are distilled at 2.0e-3"),
    "distill.general_share": Gone(0.75, "three quarters of the text are drawn from data/distill"),
    "compare.strategies.nf4": Gone(["merged_16", "merged_nf4", "lora_nf4"], ONE_LIST, "compare.strategies"),
    "compare.strategies.level": Gone(["lora_level"], ONE_LIST, "compare.strategies"),
    "compare.strategies.scales": Gone(["scales_level"], ONE_LIST, "compare.strategies"),
    "compare.strategies.distilled": Gone([], ONE_LIST, "compare.strategies"),
    "compare.scales_learning_rate": Gone(5.0e-3, "scales learn a task at 5.0e-3"),
    "compare.rows": Gone(200, "each strategy answers 200 held-out rows"),
    "parity.max_kld_exact": Gone(1.0e-3, "where nothing may be lost 0.001 nats are allowed"),
    "parity.max_kld_trained": Gone("auto", "the merge chooses the base that is closer to the trained model"),
    "parity.min_same_top_served": Gone(0.99, "what is served has the same first choice at 99 % of positions"),
    "parity.strings": Gone(100000, "500 strings for each of parity.conversations are tokenized"),
    "parity.prompts": Gone(4, "each GGUF is asked the prompts of parity.rows"),
    "parity.rmse_slack": Gone(1.5, "a tensor may have 1.5 times its type's usual rounding error"),
    "evaluate.prompt_lengths": Gone([128, 512], "speed is measured with 128 and 512 tokens"),
    "evaluate.generation_depths": Gone([0, 512], "speed is measured behind 0 and 512 tokens"),
    "evaluate.repetitions": Gone(2, "each speed is measured twice"),
    "evaluate.ctx_size": Gone(
        1024, "rows have preprocess.max_length, and answers evaluate.max_new_tokens more"
    ),
    "evaluate.seed": Gone(42, "held-out rows are drawn by the seed 42"),
    "evaluate.threads": Gone(2, ALL_OF_LLAMA_CPP, "machine.threads"),
    "serve.threads": Gone(2, ALL_OF_LLAMA_CPP, "machine.threads"),
    "quantize.nthreads": Gone(1, ALL_OF_LLAMA_CPP, "machine.threads"),
    "train.grpo.threads": Gone(2, ALL_OF_LLAMA_CPP, "machine.threads"),
    "evaluate.n_gpu_layers": Gone("auto", ALL_OF_LLAMA_CPP, "machine.n_gpu_layers"),
    "serve.n_gpu_layers": Gone("auto", ALL_OF_LLAMA_CPP, "machine.n_gpu_layers"),
    "train.grpo.n_gpu_layers": Gone(0, ALL_OF_LLAMA_CPP, "machine.n_gpu_layers"),
    "llamacpp.home": Gone(None, "it is called machine.llama_cpp", "machine.llama_cpp"),
    "report.max_task_drop": Gone(5.0, "half of report.gate.max_task_drop is recommended still"),
    "report.gate.min_same_top": Gone(
        "auto", "the first choices that go with the level's divergence are wanted unless max_kld is null"
    ),
    "serve.max_restarts": Gone(5, "a server is started again five times within an hour"),
}


def reasons(key: str) -> list[str]:
    """What became of the former settings called `key`, or in a section of that name."""
    return [gone.why for name, gone in GONE.items() if f"{name}.".startswith(f"{key}.")]


def predecessors(new_name: str) -> dict[str, Any]:
    """{former key whose value `new_name` takes: the value that it had by default}."""
    return {name: gone.now for name, gone in GONE.items() if gone.new_name == new_name}


def other_source(former: Any, source: str, model: str) -> str | None:
    """Why a base of the `former` base.source would be taken for one of another, as a sentence."""
    if former == source or former not in ("hub", "package", "gguf", "path"):
        return None
    return (
        f"base.source is {former}, and without it {safe(model, 200)} means {source}: "
        f"{GONE['base.source'].why}. Give it a name or a link that says what it is, then run this again"
    )


def _variants(train: Mapping[str, Any]) -> list[str]:
    start, ratio = train.get("init_lora_weights"), train.get("loraplus_lr_ratio") or 1
    former = [name for name in ("rslora", "dora", "gaussian") if train.get(f"use_{name}") or start == name]
    if former and "lora_variants" in train:
        raise ValueError("lora_variants")
    return [*train.get("lora_variants", former), *(["lora_plus"] if ratio > 1 else [])]


def _experts(train: Mapping[str, Any]) -> list[str]:
    parts, linears = ("gate_proj", "up_proj", "down_proj"), train.get("target_modules")
    named = train.get("target_experts")
    if not isinstance(named, list | None):
        raise TypeError("target_experts")
    if named is None:  # those among `target_modules`, a pattern of which goes on to say it
        named = [] if isinstance(linears, str) else [part for part in parts if part in (linears or parts)]
    return [*named, "router"] if train.get("router") == "train" else named


def _reject(curate: Mapping[str, Any]) -> list[str]:
    refusals = [] if curate.get("refusals") == "keep" else ["refusals"]
    return [*refusals, "garbage"] if curate.get("garbage") else refusals


def _repair(curate: Mapping[str, Any]) -> list[str]:
    return [name for name in ("turns", "control_tokens") if curate.get(name) != "reject"]


def _layers(train: Mapping[str, Any]) -> list[int] | str:
    first, named = train["freeze_layers"], train.get("layers")
    if not isinstance(named, list | None):
        raise TypeError("layers")
    return f"{first}-" if named is None else [layer for layer in named if layer >= first]


def _order(train: Mapping[str, Any]) -> str:
    return "shuffled" if train["shuffle"] else "as_given"


def _offload(train: Mapping[str, Any]) -> int | str:
    layers, shared = train.get("offload_layers"), train.get("shard_base")
    if layers and shared:
        raise ValueError("shard_base")
    return layers or ("shared" if shared else "embeddings")


# by the new key, what its section's former settings, as a file has them, are now: of several that became one
TAKEN: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "train.lora_variants": _variants,
    "train.experts": _experts,
    "curate.reject": _reject,
    "curate.repair": _repair,
    "train.layers": _layers,
    "train.order": _order,
    "train.offload": _offload,
}
BESIDE = ("train.layers", "train.lora_variants")  # keys that files had beside a former one
