"""Show the rows that each training method learns from and the bases it runs on, by the settings' checks.

A base is supported if the settings that name it are accepted. Otherwise the error is the reason. A second
table lists the settings that only some methods use: under the others any value but the default is refused.

    quench config methods [--markdown | --json]
"""

import json
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from pipeline.config.conditions import CONDITIONS
from pipeline.config.methods import METHODS, Method
from pipeline.config.params import Params
from pipeline.core.errors import ConfigError
from pipeline.core.text import console

LEVEL = "Q4_0"  # level of a GGUF made from the base, for methods that need one
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
    """Yield for each method the kinds of rows, the unit that packing keeps together, the loss that it
    minimizes, and for each base "yes" or the reason why not.
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
    """Return the reason why `method` can't run on a base, or None if it can."""
    changes = {section: dict(keys) for section, keys in BASES[base].items()}
    changes["train"] = changes.get("train", {}) | {"method": method}
    if base.startswith("GGUF"):
        changes["base"]["level"] = LEVEL
    try:
        Params.model_validate(changes)
    except ValidationError as error:
        return str(error.errors()[0]["msg"]).removeprefix("Value error, ")
    return None


def settings() -> Iterator[dict[str, str]]:
    """Yield the settings that are refused unless another has a value that they need, with that condition."""
    for only in CONDITIONS:
        if only.refused:
            yield {"setting": ", ".join(only.keys), "acts only if": only.condition}


def table_rows() -> list[dict[str, str]]:
    """Return `rows` with each refusal as a dash."""
    return [
        {name: value if name not in BASES or value == "yes" else "–" for name, value in row.items()}
        for row in rows()
    ]


def markdown() -> str:
    """Return both tables as in docs/methods.md. A refusal is a dash."""
    return "\n".join("\n".join(_lines(table)) + "\n" for table in (table_rows(), list(settings())))


def _lines(rows: list[dict[str, str]]) -> Iterator[str]:
    for cells in (rows[0].keys(), ("---" for _ in rows[0]), *(row.values() for row in rows)):
        yield "| " + " | ".join(cells) + " |"


def main(*, as_json: bool = False, as_markdown: bool = False) -> None:
    """Print the table, and below it the reason for each unsupported base.

    Raises `ConfigError` for two forms.
    """
    if as_json and as_markdown:
        raise ConfigError("Q-COMMANDS-005", "--json and --markdown name two forms: give one of them")
    if as_json:
        print(json.dumps({"methods": list(rows()), "settings": list(settings())}, indent=2))
        return
    if as_markdown:
        print(markdown(), end="")
        return
    from rich.table import Table

    output = console()
    for records in (table_rows(), list(settings())):
        table = Table(*records[0])
        for row in records:
            table.add_row(*row.values())
        output.print(table)
    for method in rows():
        for base in BASES:
            if method[base] != "yes":
                print(f"{method['method']} on {base}: {method[base]}")
