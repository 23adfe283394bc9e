"""The parity checks of an adapter that is served on the very GGUF it was trained on: the file, the adapter's
GGUF, and what both say together.

There is no merge and no level here, so that one hand-over remains: training's forward in PyTorch, on the
file's own blocks, and llama.cpp's on the same file with the adapter's GGUF. llama.cpp rounds activations to 8
bit before it multiplies them with quantized blocks, training doesn't; what that costs is measured on the bare
base, which nobody trained.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline.chat.tokens import load_tokenizer
from pipeline.config.sections import Parity
from pipeline.core.checks import Check
from pipeline.core.hashing import file_hash, json_hash
from pipeline.core.publish import read_json
from pipeline.gguf.base_files import MODEL_FILE
from pipeline.gguf.file import check_gguf
from pipeline.gguf.provenance import ADAPTER, BASE_FILE
from pipeline.metrics.divergence import Divergence, Prompt, Reference, compare, gguf_speaker, kept_logits
from pipeline.metrics.forward import run_settings, trained_model
from pipeline.metrics.level_limits import ADDED_BY_ADAPTER, LEAST_SERVED_SAME_TOP, MOST_SERVED_KLD
from pipeline.stages.parity.check import DIVERGENCE, count_check, divergence_check, figures_of, incomparable
from pipeline.stages.parity.lora_weights import lora_weights
from pipeline.stages.parity.measure import (
    BEHAVIOR,
    LEFT_OUT,
    TEXT,
    Measure,
    ParityChecks,
    add_part,
    announce,
    behavior,
    text_and_tokens,
    unmeasured,
)
from pipeline.stages.parity.special_tokens import chat_template, special_tokens

# that training's own rounding is measured on: a figure beside the parity check, not a parity check
OWN_ROWS = 8
SPECIAL = {"tokens_special": "Special tokens", "text_chat_template": "Chat template"}
OUTPUTS = {
    "outputs_bare": "Base in training's arithmetic → its GGUF in llama.cpp",
    "outputs_served": "Trained model → base GGUF with LoRA GGUF",
}


@dataclass(frozen=True)
class AdapterChain:
    """The base's folder (with `model.gguf`) and record, the adapter's PEFT folder, and the adapter's GGUF."""

    base: Path
    lineage: Path
    adapter: Path
    lora: Path

    @property
    def gguf(self) -> Path:
        """The file that is trained on and served."""
        return self.base / MODEL_FILE


def adapter_chain_checks(chain: AdapterChain, measure: Measure) -> ParityChecks:
    """Every parity check that `parity.depth` asks for, the others by name; stored weights first, for where
    they are damaged they say why.
    """
    depth, tokenizer = measure.limits.depth, load_tokenizer(chain.adapter)
    announce("weights")
    checks = {
        "weights_file": base_file(chain),
        "weights_lora": lora_weights(chain.base, chain.adapter, chain.lora),
    }

    add_part(
        checks,
        "text and tokens",
        SPECIAL,
        lambda: {
            "tokens_special": special_tokens(tokenizer, chain.base, chain.gguf, measure.tools),
            "text_chat_template": chat_template(tokenizer, chain.base, chain.gguf),
        },
    )
    add_part(checks, "", TEXT, lambda: text_and_tokens(chain.gguf, tokenizer, measure))
    if depth == "quick":
        return checks | unmeasured(OUTPUTS | BEHAVIOR, LEFT_OUT.format(depth, "standard"))
    add_part(checks, "outputs", OUTPUTS, lambda: outputs(chain, tokenizer, measure))
    add_part(checks, "behavior", BEHAVIOR, lambda: behavior([chain.gguf], tokenizer, measure, chain.lora))
    return checks


def base_file(chain: AdapterChain) -> Check:
    """Whether the base's file is the one that was trained on and that the adapter's GGUF names, and the
    adapter in it is the trained one.
    """
    found, trained_with = file_hash(chain.gguf), run_settings(chain.adapter)
    recorded = read_json(chain.lineage, "run `snakemake base`")["files"].get(MODEL_FILE)
    run = read_json(chain.adapter / "run.json", "run `snakemake --force train`")
    fields = check_gguf(chain.lora).fields
    adapter = file_hash(chain.adapter / "adapter_model.safetensors")
    claims = {
        f"{chain.lineage.name} names {str(recorded)[:12]}…, the file is {found[:12]}…": recorded == found,
        f"{chain.adapter.name}/ was trained on another file than {chain.gguf.name}": (
            run["base"]["weights_sha256"] == json_hash({MODEL_FILE: found})
        ),
        f"{chain.lora.name} was made for {str(fields.get(BASE_FILE))[:12]}…, the file is {found[:12]}…": (
            fields.get(BASE_FILE) == found
        ),
        f"{chain.lora.name} holds another adapter than {chain.adapter.name}/": (
            fields.get(ADAPTER) == adapter
        ),
        "the adapter was not trained on a GGUF's blocks": trained_with.quantization == "gguf",
    }
    wrong = [fault for fault, holds in claims.items() if not holds]
    return count_check(
        "The base's file, and whose adapter it is",
        what="records that name another file or adapter",
        different=len(wrong),
        compared=len(claims),
        first="; ".join(wrong),
        cause="Files of different runs lie here: run `snakemake` once more.",
    )


def outputs(chain: AdapterChain, tokenizer: Any, measure: Measure) -> ParityChecks:
    """Training's forward in float32 against llama.cpp's, of the bare base and of base and adapter, on the
    same held-out tokens.
    """
    prompts, threads, tools = measure.prompts(tokenizer), measure.evaluate.threads, measure.tools
    limits, where = (
        measure.limits,
        f"{len(prompts)} held-out rows, {sum(len(prompt.positions) for prompt in prompts)} positions",
    )
    with ExitStack() as files:

        def kept(model: Any) -> Any:
            return files.enter_context(kept_logits(prompts, model, measure.scratch))

        before = kept(trained_model(chain.base, None, float32=True, settings_of=chain.adapter))
        bare = compare(before, kept(gguf_speaker(chain.gguf, prompts, threads=threads, tools=tools)))
        trained = kept(trained_model(chain.base, chain.adapter, float32=True))
        answers = kept(gguf_speaker(chain.gguf, prompts, threads=threads, tools=tools, lora=chain.lora))
        served, moved = compare(trained, answers), compare(before, trained)
        own = training_rounding(chain, prompts[:OWN_ROWS], trained, measure.scratch)
    return {
        "outputs_bare": bare_check(bare, where),
        "outputs_served": served_check(served, bare, moved, own, limits, where),
    }


def training_rounding(
    chain: AdapterChain, prompts: list[Prompt], trained: Reference, scratch: Path
) -> Divergence:
    """What training's own arithmetic (bfloat16, mostly) differs from float32 by, on the first prompts."""
    with kept_logits(prompts, trained_model(chain.base, chain.adapter), scratch) as answers:
        return compare(answers, islice(trained, len(prompts)))


def bare_check(bare: Divergence, where: str) -> Check:
    """The floor: what llama.cpp's arithmetic alone changes of a model that nobody trained. Beyond
    `MOST_SERVED_KLD` it is no longer arithmetic.
    """
    title = OUTPUTS["outputs_bare"]
    if bare.fault:
        return incomparable(
            title,
            bare,
            sentence=f"{bare.fault}; {where}",
            cause="The GGUF is damaged or of another model: run `snakemake --force base`.",
        )
    cause = (
        "PyTorch and llama.cpp compute another model from this file (positions, order of heads, norms): take "
        "its Hugging Face folder and base.quantization nf4."
    )
    passed = bare.kld <= MOST_SERVED_KLD and bare.same_top >= LEAST_SERVED_SAME_TOP
    return divergence_check(
        title,
        bare,
        limit=MOST_SERVED_KLD,
        sentence=f"{where}, same first choice at {bare.same_top:.1%}: llama.cpp rounds activations to 8 bit "
        "before it multiplies quantized blocks",
        cause="" if passed else cause,
    )


def served_check(
    served: Divergence, bare: Divergence, moved: Divergence, own: Divergence, limits: Parity, where: str
) -> Check:
    """Base and adapter: within `parity.max_kld_served` and `min_same_top_served`, or where the bare base is
    not, within a fifth of its floor.

    And nearer to the trained model than that is to the bare base, or an adapter without effect would pass;
    where it moves the base by no more than twice the floor, that can't be told.
    """
    title = OUTPUTS["outputs_served"]
    if served.fault or bare.fault:
        found = served if served.fault else bare
        cause = "The GGUF or the adapter's is damaged or of another model: run `snakemake --force lora`."
        return incomparable(title, found, f"{found.fault}; {where}", cause)
    limit = max(limits.max_kld_served, (1 + ADDED_BY_ADAPTER) * bare.kld)
    least = min(limits.min_same_top_served, bare.same_top - ADDED_BY_ADAPTER * (1 - bare.same_top))
    within = served.kld <= limit and served.same_top >= least
    if within and moved.kld <= 2 * bare.kld:
        return Check(
            title,
            "not measured",
            f"the adapter moves the base by {moved.kld:.2g} nats, llama.cpp's arithmetic by "
            f"{bare.kld:.2g}: whether it has an effect can't be told",
            what=DIVERGENCE,
            unit="nats",
            figures=figures_of(served),
        )
    by_floor = limit > limits.max_kld_served or least < limits.min_same_top_served
    sentence = (
        (
            f"{where}, same first choice at {served.same_top:.1%} (at least {least:.1%}); the adapter "
            f"moves the base by {moved.kld:.2g} nats"
        )
        + (f"; training's own rounding is {own.kld:.2g} nats" if own.comparable else "")
        + (
            (
                f"; limits from the bare base, whose arithmetic alone costs {bare.kld:.2g} nats and "
                f"{1 - bare.same_top:.1%}"
            )
            if by_floor
            else ""
        )
    )
    cause = ""
    if served.kld >= 0.5 * moved.kld:
        cause = (
            "llama.cpp is no nearer to the trained model than the bare base is: the adapter's GGUF has "
            "no effect, run `snakemake --force lora`."
        )
    elif not within:
        cause = "The adapter's GGUF is of another run, or its scale is another: run `snakemake --force lora`."
    return divergence_check(title, served, limit, sentence, cause)
