"""What parity checks are measured with, and what all graphs measure of a GGUF alike: its texts and tokens,
and what it does in llama-server.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline.chat.tokens import Row, encodable
from pipeline.config.sections import Evaluate, Parity
from pipeline.core.checks import Check
from pipeline.core.errors import DataError, ToolError
from pipeline.llamacpp.server import serving
from pipeline.llamacpp.tools import Toolchain
from pipeline.metrics.divergence import Prompt, spread
from pipeline.stages.parity.behavior import behavior_checks
from pipeline.stages.parity.conversations import chosen
from pipeline.stages.parity.corpus import strings
from pipeline.stages.parity.text import served_texts, template_text
from pipeline.stages.parity.tokens import corpus_ids, token_ids

CTX_SIZE = 2048  # tokens; parity's conversations are short
ParityChecks = dict[str, Check]
LEFT_OUT = "parity.depth is {}; `quench parity --depth {}` measures it"
# parity checks by key with their titles, to name those that were not measured
TEXT = {"text_template": "Template text", "tokens_ids": "Token ids", "tokens_corpus": "Token ids of a corpus"}
BEHAVIOR = {"behavior": "What each GGUF does in llama-server"}


@dataclass(frozen=True)
class Measure:
    """What every parity check is measured with: the held-out chats, the limits, how llama.cpp is run, and a
    folder for temporary files.
    """

    rows: Sequence[Row]
    limits: Parity
    evaluate: Evaluate
    tools: Toolchain
    scratch: Path
    tensor_types: Mapping[str, str] = field(default_factory=dict)
    distilled: Path = Path("reports/distill")  # a record for each distilled level

    def prompts(self, tokenizer: Any) -> list[Prompt]:
        """Held-out rows as tokens, with the positions whose next token is compared. Raises `DataError` where
        no row can be used.
        """
        encoded = list(islice(encodable(tokenizer, self.rows, CTX_SIZE), self.limits.rows))
        if not encoded:
            raise DataError(
                "Q-PARITY-003",
                f"no held-out chat can be rendered in {CTX_SIZE} tokens, so parity has no logits to "
                "compare: look at reports/labels.json",
            )
        return [spread(row.ids) for row in encoded]


def text_and_tokens(gguf: Path, tokenizer: Any, measure: Measure) -> ParityChecks:
    """What llama-server makes of conversations, and the GGUF's vocabulary of strings; both as training
    does.
    """
    limits, tools = measure.limits, measure.tools
    with serving(tools, gguf, ctx_size=CTX_SIZE, threads=measure.evaluate.threads) as server:
        texts = served_texts(tokenizer, server, chosen(measure.rows, limits.conversations))
        checks = {
            "text_template": template_text(texts, tokenizer, gguf),
            "tokens_ids": token_ids(texts, tokenizer, server, gguf),
        }
    rendered_rows = [text.complete for text in texts.compared if text.conversation.held_out]
    return checks | {
        "tokens_corpus": corpus_ids(strings(tokenizer, rendered_rows, limits.strings), tokenizer, gguf, tools)
    }


def behavior(
    models: Sequence[Path], tokenizer: Any, measure: Measure, lora: Path | None = None
) -> ParityChecks:
    """What each GGUF does in llama-server, with the adapter's GGUF `lora` on it if one is given."""
    return behavior_checks(
        list(models),
        measure.rows,
        tokenizer,
        prompts=measure.limits.prompts,
        ctx_size=CTX_SIZE,
        threads=measure.evaluate.threads,
        n_gpu_layers=measure.evaluate.n_gpu_layers,
        tools=measure.tools,
        lora=lora,
    )


def unmeasured(titles: dict[str, str], why: str) -> ParityChecks:
    """Parity checks that were not measured, so that nobody takes them for passed."""
    return {key: Check(title, "not measured", why) for key, title in titles.items()}


def add_part(
    checks: ParityChecks, announced: str, titles: dict[str, str], part: Callable[[], ParityChecks]
) -> None:
    """Add what `part` measures to `checks`; `announced` is said first ("": nothing).

    Where llama.cpp refuses a file that a parity check has failed already, its `titles` were not measured.
    Raises the `ToolError` where nothing had failed: then it is an error of its own.
    """
    if announced:
        announce(announced)
    try:
        checks.update(part())
    except ToolError as error:
        if not any(check.verdict == "fail" for check in checks.values()):
            raise
        checks.update(unmeasured(titles, error.sentence.splitlines()[0]))


def announce(part: str) -> None:
    """Say what is measured now: the whole takes minutes."""
    print(f"parity: measuring {part}", file=sys.stderr, flush=True)
