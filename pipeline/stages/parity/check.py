"""Parity checks, the keys of their entries in reports/parity.json, and probes. A probe defines what is
measured, at which depth, and with what.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from pipeline.chat.tokens import Row, chats, encodable
from pipeline.config.sections import Depth, Parity
from pipeline.core.checks import Check, Verdict
from pipeline.core.errors import DataError, ToolError
from pipeline.core.text import common_start
from pipeline.llamacpp.tools import Llama
from pipeline.metrics.divergence import Divergence, Prompt, spread

# Key of an entry in the report: field of `Check`.
KEYS = {
    "title": "name",
    "what": "what",
    "figure": "figure",
    "limit": "limit",
    "unit": "unit",
    "verdict": "verdict",
    "detail": "sentence",
    "cause": "remedy",
    "figures": "figures",
}
DIVERGENCE = "mean KL divergence of the next token"
Figures = Mapping[str, float]
NONE: Figures = {}
CTX_SIZE = 2048  # tokens; parity's conversations are short
DEPTHS = get_args(Depth)
ParityChecks = dict[str, Check]


def exact(title: str, count: int, unit: str, sentence: str, cause: str, what: str) -> Check:
    """Return a check that fails, with its likely `cause`, unless `count` is 0. A fault's `count`
    is never 0.
    """
    verdict: Verdict = "fail" if count else "pass"
    remedy = cause if count else ""
    return Check(title, verdict, sentence, remedy, what=what, figure=float(count), limit=0.0, unit=unit)


def count_check(title: str, what: str, different: int, compared: int, first: str, cause: str = "") -> Check:
    """Return a check that allows no difference. It is "not measured" if nothing was compared."""
    if not compared:
        return Check(title, "not measured", "nothing to compare", what=what)
    return exact(
        title,
        count=different,
        unit="differences",
        sentence=f"{compared} compared" + (f"; first difference: {first}" if first else ""),
        cause=cause,
        what=what,
    )


def divergence_check(
    title: str, divergence: Divergence, limit: float, sentence: str, cause: str, more: Figures = NONE
) -> Check:
    """Return a check of the divergence between two models. It fails if a `cause` is given."""
    verdict: Verdict = "fail" if cause else "pass"
    return Check(
        title,
        verdict,
        sentence,
        cause,
        what=DIVERGENCE,
        figure=divergence.kld,
        limit=limit,
        unit="nats",
        figures={**figures_of(divergence), **more},
    )


def incomparable(title: str, divergence: Divergence, sentence: str, cause: str) -> Check:
    """Return the failed check of two models whose logits can't be compared. Its figure counts positions with
    NaN or Inf, or the tokens by which the vocabularies differ.
    """
    count = divergence.strange
    unit = "positions"
    if not count:
        count = abs(divergence.widths[0] - divergence.widths[1])
        unit = "tokens"
    return exact(title, count, unit, sentence, cause, "logits that can't be compared")


def figures_of(divergence: Divergence) -> dict[str, float]:
    """Return the figures that are reported with a divergence."""
    return {
        "nmse": divergence.nmse,
        "kld_max": divergence.kld_max,
        "same_top": divergence.same_top,
        "positions": float(divergence.positions),
    }


def first_difference(ours: Any, theirs: Any) -> str:
    """Describe the first position where two sequences differ, with the items there on both sides."""
    at = common_start(ours, theirs)
    return f"at {at} training has {ours[at : at + 12]!r}, llama-server {theirs[at : at + 12]!r}"


@dataclass(frozen=True)
class Measure:
    """Inputs of every parity check: the held-out chats (or texts if there is no chat), the limits, how
    llama.cpp is run, and a folder for temporary files. `calling` are chats that contain tool calls.
    """

    rows: Sequence[Row]
    limits: Parity
    llama: Llama
    scratch: Path
    tensor_types: Mapping[str, str] = field(default_factory=dict)
    calling: Sequence[Row] = ()

    @property
    def chats(self) -> list[Row]:
        """Rows that are chats."""
        return list(chats(self.rows))

    @property
    def texts(self) -> list[str]:
        """Contents of the rows that are texts."""
        return [
            "".join(segment["text"] for segment in row["segments"])
            for row in self.rows
            if row.get("kind") == "text"
        ]

    def prompts(self, tokenizer: Any) -> list[Prompt]:
        """Return held-out rows as tokens with the next-token positions to compare. Raises `DataError` if
        there are none.
        """
        encoded = list(islice(encodable(tokenizer, self.rows, CTX_SIZE), self.limits.rows))
        if not encoded:
            raise DataError(
                "Q-PARITY-003",
                f"no held-out chat or text can be rendered in {CTX_SIZE} tokens, so parity has no logits to "
                "compare: look at reports/labels.json",
            )
        return [spread(row.ids) for row in encoded]


@dataclass(frozen=True)
class Probe:
    """Parity checks that are measured together: the title of each by its key, and `measure`, which is called
    with the earlier checks.

    It runs if the setting is at least `depth`. It never runs if something is `lacking` (a sentence). `name`
    is printed before it runs, because all probes together take minutes.
    """

    name: str
    titles: Mapping[str, str]
    measure: Callable[[ParityChecks], ParityChecks]
    depth: Depth = "quick"
    lacking: str = ""


def measured(probes: Sequence[Probe], depth: Depth) -> ParityChecks:
    """Return the checks of the probes of this depth. The checks of the other probes are "not measured", so
    that they are not mistaken for passed ones.

    The same applies to a probe for which llama.cpp rejects a file that a parity check has failed before. If
    nothing had failed, the `ToolError` is raised, because it is an error of its own.
    """
    checks: ParityChecks = {}
    for probe in probes:
        why = probe.lacking
        if not why and DEPTHS.index(probe.depth) > DEPTHS.index(depth):
            why = f"parity.depth is {depth}; `quench model parity --depth {probe.depth}` measures it"
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
