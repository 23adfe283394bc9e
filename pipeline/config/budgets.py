"""Budgets of `quantize.budgets`: how large the file of a level made to measure may be, as text.

A budget is spelled without blanks, because it is also the level's name, in files and on command lines.
"""

import re
from dataclasses import dataclass
from typing import Literal

from pipeline.core.text import quoted
from pipeline.core.units import DISK_GB, MEMORY_GB

NUMBER = r"(\d{1,6}(?:\.\d{1,6})?)"
SPELLINGS = {
    "size": re.compile(rf"{NUMBER}(GB|MB)"),
    "bits": re.compile(rf"{NUMBER}bpw"),
    "fits": re.compile(rf"fits-{NUMBER}(GB|MB)-at-(\d{{1,8}})"),
}
HOW = "write 4.2GB, 500MB, 4.6bpw or fits-8GB-at-8192"


@dataclass(frozen=True)
class Budget:
    """A limit: bytes of file (`size`), `bits` per weight or bytes of memory (`fits`) for `context` tokens."""

    kind: Literal["size", "bits", "fits"]
    amount: float
    context: int = 0


def parse_budget(text: str) -> Budget | None:
    """The budget that `text` spells, None if it spells none. A GB of a file is 10⁹ bytes, a GB of memory 2³⁰
    (`pipeline.core.units`).
    """
    if match := SPELLINGS["size"].fullmatch(text):
        return Budget("size", float(match[1]) * {"GB": DISK_GB, "MB": 10**6}[match[2]])
    if match := SPELLINGS["bits"].fullmatch(text):
        return Budget("bits", float(match[1]))
    if match := SPELLINGS["fits"].fullmatch(text):
        memory = float(match[1]) * {"GB": MEMORY_GB, "MB": 1 << 20}[match[2]]
        return Budget("fits", memory, int(match[3]))
    return None


def budget_problem(text: str) -> str | None:
    """Why `text` can't be a budget, as a sentence; None if it can."""
    budget = parse_budget(text)
    if budget is None:
        return f"{quoted(text)} is not a budget: {HOW}"
    if not budget.amount or (budget.kind == "fits" and not budget.context):
        return f"budget {text} leaves room for nothing: name a number above 0"
    return None
