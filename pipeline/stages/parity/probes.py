"""Parity as a list of probes: what each measures, at which depth, and what it is measured with."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from pipeline.chat.tokens import Row, encodable
from pipeline.config.sections import Depth, Machine, Parity
from pipeline.core.checks import Check
from pipeline.core.errors import DataError, ToolError
from pipeline.llamacpp.tools import Toolchain
from pipeline.metrics.divergence import Prompt, spread

CTX_SIZE = 2048  # tokens; parity's conversations are short
DEPTHS = get_args(Depth)
ParityChecks = dict[str, Check]
LEFT_OUT = "parity.depth is {}; `quench model parity --depth {}` measures it"


@dataclass(frozen=True)
class Measure:
    """What every parity check is measured with: the held-out chats, the limits, how llama.cpp is run, and a
    folder for temporary files.
    """

    rows: Sequence[Row]
    limits: Parity
    machine: Machine
    tools: Toolchain
    scratch: Path
    tensor_types: Mapping[str, str] = field(default_factory=dict)
    distilled: Path = Path("reports/distill")  # a record for each distilled level

    def prompts(self, tokenizer: Any) -> list[Prompt]:
        """Held-out rows as tokens, and which next tokens are compared. Raises `DataError` for none."""
        encoded = list(islice(encodable(tokenizer, self.rows, CTX_SIZE), self.limits.rows))
        if not encoded:
            raise DataError(
                "Q-PARITY-003",
                f"no held-out chat can be rendered in {CTX_SIZE} tokens, so parity has no logits to "
                "compare: look at reports/labels.json",
            )
        return [spread(row.ids) for row in encoded]


@dataclass(frozen=True)
class Probe:
    """Parity checks that are measured together: the title of each by its key, and `measure`, which is given
    the checks that were made before.

    From `depth` on; never where something is `lacking`, a sentence. `name` is announced: the whole takes
    minutes.
    """

    name: str
    titles: Mapping[str, str]
    measure: Callable[[ParityChecks], ParityChecks]
    depth: Depth = "quick"
    lacking: str = ""


def measured(probes: Sequence[Probe], depth: Depth) -> ParityChecks:
    """What the probes of this depth measure; the checks of the others as not measured, so that nobody takes
    them for passed.

    So are those of a probe for which llama.cpp refuses a file that a parity check has failed already. Raises
    the `ToolError` where nothing had failed: then it is an error of its own.
    """
    checks: ParityChecks = {}
    for probe in probes:
        why = probe.lacking
        if not why and DEPTHS.index(probe.depth) > DEPTHS.index(depth):
            why = LEFT_OUT.format(depth, probe.depth)
        if not why:
            print(f"parity: measuring {probe.name}", file=sys.stderr, flush=True)
            try:
                checks |= probe.measure(checks)
            except ToolError as error:
                if not any(check.verdict == "fail" for check in checks.values()):
                    raise
                why = error.sentence.splitlines()[0]
        if why:
            checks |= {key: Check(title, "not measured", why) for key, title in probe.titles.items()}
    return checks
