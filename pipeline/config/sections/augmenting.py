"""Section `augment`: rows that a model adds to the project's own."""

from collections.abc import Iterator
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from pipeline.config.sections.values import (
    ONCE,
    THIS_MACHINE,
    Count,
    Location,
    Section,
    Seed,
    Slots,
    fits,
    key,
)
from pipeline.core.text import quoted

AugmentKind = Literal["questions", "rejected", "answers"]


def _check_address(text: str) -> str:
    """Return an address that a key and rows may be sent to: this machine's, or one over https.

    Raises `ValueError` for others.
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts = urlsplit("")
        port = None
    host = parts.hostname
    if not host or port == 0 or parts.username is not None or parts.query or parts.fragment:
        raise ValueError(
            f"{quoted(text)} is not an address: write one like https://HOST/v1, without a key or a question "
            "mark in it"
        )
    if parts.scheme != "https" and not (parts.scheme == "http" and host in THIS_MACHINE):
        raise ValueError(
            f"{quoted(text)} is neither https nor this machine's (http://127.0.0.1:PORT/v1), so rows and key "
            "would cross the network in the clear"
        )
    return text


Address = Annotated[str, Field(max_length=500), AfterValidator(_check_address)]
VARIABLE = "the name of an environment variable, OPENAI_API_KEY for example, not the key itself"
Variable = Annotated[str, fits("[A-Z_][A-Z0-9_]{0,99}", VARIABLE)]


class Augment(Section):
    kinds: Annotated[list[AugmentKind], ONCE] = key(
        [],
        "rows that a model writes to training's own (docs/augmentation.md): questions (what is asked in "
        "other words, the answer kept) | rejected (a wrong, vague or incomplete answer beside the row's own, "
        "as pairs for dpo, ipo, orpo, simpo and kto) | answers (to prompts whose answer is empty); []: none",
    )
    model: Location | None = key(
        None, "what writes them: a GGUF file, which llama-server serves; with url: the model's name there"
    )
    url: Address | None = key(
        None,
        "an OpenAI-compatible address that writes instead: https://HOST/v1 or http://127.0.0.1:8080/v1; the "
        "rows that are asked about are sent there; null: none",
    )
    key_env: Variable | None = key(
        None, "environment variable that holds the address's key, OPENAI_API_KEY for example; null: no key"
    )
    rows: Count = key(200, "rows that are asked about, drawn by the seed; of each kind")
    per_row: Annotated[int, Field(ge=1, le=100)] = key(1, "rows that are written to each of them")
    temperature: Annotated[float, Field(ge=0, le=2)] = key(0.8, "of the model that writes, 0 to 2")
    max_new_tokens: Annotated[int, Field(ge=1, le=1 << 16)] = key(256, "longest written text, in tokens")
    max_calls: Count = key(1000, "most calls of a kind: more are refused before the first")
    max_tokens: Count = key(
        1_000_000, "most tokens of a kind, read and written: more are refused before the first call"
    )
    parallel: Slots = key(1, "calls at the same time; a GGUF writes the same rows in every run only with 1")
    seed: Seed = key(42, "another seed draws other rows and other texts")

    def problems(self) -> Iterator[str]:
        """Yield what is missing before any row can be written."""
        if self.kinds and not self.model:
            yield (
                "augment.kinds asks for rows and augment.model is null: name a GGUF file, or with "
                "augment.url a model of that address"
            )
        if self.key_env and not self.url:
            yield "augment.key_env names a key and augment.url is null: set the address, or leave the key out"
