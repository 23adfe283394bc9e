"""Show what each method of training learns from and on which bases it runs, by the settings that say so.

A base is supported if the settings that name it are accepted; what refuses them is the reason.

    quench methods [--markdown | --json]
"""

import json
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from pipeline.config.methods import METHODS, Method
from pipeline.config.params import Params

LEVEL = "Q4_0"  # of a GGUF that is made of the base, for what needs one
BASES: dict[str, dict[str, dict[str, Any]]] = {
    "NF4": {"base": {"quantization": "nf4"}},
    "16 bit": {"base": {"quantization": "none"}},
    "GGUF, adapter": {"base": {"quantization": "gguf"}, "evaluate": {"models": ["base", "adapter"]}},
    "GGUF, scales": {
        "base": {"quantization": "gguf"},
        "train": {"tuner": "scales"},
        "evaluate": {"models": ["base", "tuned"]},
    },
}


def rows() -> Iterator[dict[str, Any]]:
    """For each method: the kinds of rows, what a packed row holds whole, who computes the loss, and for each
    base "yes" or why not.
    """
    for method, learning in METHODS.items():
        yield {
            "method": method,
            "rows": ", ".join(learning.rows),
            "packs": "pairs" if learning.pairs else "sequences",
            "loss": learning.loss,
            **{base: refusal(method, base) or "yes" for base in BASES},
        }


def refusal(method: Method, base: str) -> str | None:
    """Why `method` can't run on a base; None if it can."""
    changes = {section: dict(keys) for section, keys in BASES[base].items()}
    # without dropout, which some methods refuse on any base
    changes["train"] = changes.get("train", {}) | {"method": method, "lora_dropout": 0.0}
    if base.startswith("GGUF"):
        changes["base"]["level"] = LEVEL
    try:
        Params.model_validate(changes)
    except ValidationError as error:
        return str(error.errors()[0]["msg"]).removeprefix("Value error, ")
    return None


def markdown() -> str:
    """The table as docs/methods.md has it; a refusal is a dash."""
    found = list(rows())
    lines = ["| " + " | ".join(found[0]) + " |", "| " + " | ".join("---" for _ in found[0]) + " |"]
    for one in found:
        cells = [value if name not in BASES or value == "yes" else "–" for name, value in one.items()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(*, as_json: bool = False, as_markdown: bool = False) -> None:
    """Print the table, and under it why what is not supported is not."""
    if as_json:
        print(json.dumps(list(rows()), indent=2))
        return
    if as_markdown:
        print(markdown(), end="")
        return
    from rich.console import Console
    from rich.table import Table

    found, console = list(rows()), Console()
    table = Table(*found[0])
    for one in found:
        table.add_row(*(value if name not in BASES or value == "yes" else "–" for name, value in one.items()))
    console.print(table)
    for one in found:
        for base in BASES:
            if one[base] != "yes":
                print(f"{one['method']} on {base}: {one[base]}")
