"""The parity checks of the graphs without a merge: an adapter's GGUF on the very file it was trained on, or
that file with trained scales.

No model is made at other precisions here, so that one hand-over remains: training's forward in PyTorch, on
the file's own blocks, and llama.cpp's on what is served.
"""

from pipeline.chat.tokens import load_tokenizer
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
from pipeline.stages.parity.scales_weights import scales_weights
from pipeline.stages.parity.served_outputs import outputs
from pipeline.stages.parity.special_tokens import chat_template, special_tokens
from pipeline.stages.parity.unmerged_chain import UnmergedChain, base_file

SPECIAL = {"tokens_special": "Special tokens", "text_chat_template": "Chat template"}


def unmerged_checks(chain: UnmergedChain, measure: Measure) -> ParityChecks:
    """Every parity check that `parity.depth` asks for, the others by name; stored weights first, for where
    they are damaged they say why.
    """
    depth, tokenizer = measure.limits.depth, load_tokenizer(chain.adapter)
    announce("weights")
    checks = {"weights_file": base_file(chain)}
    if chain.lora:
        checks["weights_lora"] = lora_weights(chain.base, chain.adapter, chain.lora)
    else:
        checks["weights_scales"] = scales_weights(chain.base, chain.adapter, chain.served)

    add_part(
        checks,
        "text and tokens",
        SPECIAL,
        lambda: {
            "tokens_special": special_tokens(tokenizer, chain.base, chain.served, measure.tools),
            "text_chat_template": chat_template(tokenizer, chain.base, chain.served),
        },
    )
    add_part(checks, "", TEXT, lambda: text_and_tokens(chain.served, tokenizer, measure))
    titles = chain.made.titles
    if depth == "quick":
        return checks | unmeasured(titles | BEHAVIOR, LEFT_OUT.format(depth, "standard"))
    add_part(checks, "outputs", titles, lambda: outputs(chain, tokenizer, measure))
    add_part(checks, "behavior", BEHAVIOR, lambda: behavior([chain.served], tokenizer, measure, chain.lora))
    return checks
