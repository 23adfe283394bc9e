"""Sections `curate` and `preprocess`: the way from chats to rows and tokens."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator

from pipeline.config.field_sources import checked_fields
from pipeline.config.scorers import NAME as FUNCTION
from pipeline.config.sections.values import (
    ONCE,
    Format,
    Fraction,
    GuardFile,
    Section,
    Seed,
    SplitFraction,
    Tokens,
    fits,
    key,
)

SourceWeight = Annotated[float, Field(ge=0, le=100)]
Language = Annotated[
    str, fits("[a-z]{2,3}", "a language: write its ISO 639 code in small letters, en for example")
]

FieldMapping = Annotated[dict[str, Any], PlainValidator(checked_fields)]

Transform = Annotated[
    str,
    fits(
        f"python:{FUNCTION.pattern}", "a function: write python:FILE.py:FUNCTION, the file below data/guard"
    ),
]


def _of_all_files(value: object) -> object:
    return {"*": value} if isinstance(value, str) else value


Transforms = Annotated[dict[str, Transform], BeforeValidator(_of_all_files)]


def _without_overlong(repaired: Any) -> Any:
    if isinstance(repaired, list) and "overlong" in repaired:
        raise ValueError(
            "names overlong, which is a key of its own: take it out of this list; curate.overlong: split | "
            "truncate | reject says what becomes of long rows"
        )
    return repaired


Repaired = Annotated[list[Literal["turns", "control_tokens"]], ONCE, BeforeValidator(_without_overlong)]


class CurateKeys(Section):
    formats: dict[str, Format] = key(
        {},
        'glob below data/raw: format, for files that are not to be judged row by row, e.g. {"logs/*.csv": '
        "query_response}; formats: auto | messages | sharegpt | requests | gemini | dialogue | "
        "function_calls | alpaca | prompt_completion | query_response | input_output | text | preference | "
        "kto | prompt",
    )
    documents: dict[str, Literal["bare", "named"]] = key(
        {},
        "glob below data/raw: which files are read as plain text besides *.txt and *.md, each a document, "
        'e.g. {"src/*.py": named}: bare | named (the file\'s name is its first line)',
    )
    fields: dict[str, FieldMapping] = key(
        {},
        "glob below data/raw: targets and sources, for rows with other key names, e.g. "
        '{"tickets/*.csv": {user: Question, assistant: Command}}; a source is a key, a dotted path, a '
        'template ("{title}: {body}") or {text: a constant}, null drops a key; `quench data check FILE '
        "--write` proposes it",
    )
    transform: Transforms = key(
        {},
        "glob below data/raw: python:FILE.py:FUNCTION below data/guard, which gets each row as it was read "
        "and returns a row, several, or why there is none (a text); the function alone means all files",
    )
    repair: Repaired = key(
        ["turns", "control_tokens"],
        "rows to repair, not reject: turns (out of order: join neighbors of one side, drop what follows the "
        "last answer, keep other orders that the base's template shows), control_tokens (the base's, inside "
        "text: break them up with a space); [] rejects both",
    )
    mail: Literal["auto", "always", "never"] = key(
        "auto",
        "HTML, quoted mails, signatures and closings in turns: auto (taken out of files whose first rows are "
        "a help desk's) | always (of all rows, and closings that only their file shows) | never",
    )
    overlong: Literal["split", "truncate", "reject"] = key(
        "split",
        "rows above preprocess.max_length: split (conversations between exchanges, the system turn repeated, "
        "and texts between sentences; others are rejected) | truncate (the oldest exchanges go, then long "
        "texts are cut) | reject",
    )
    cut: Literal["end", "beginning"] = key(
        "end",
        "what truncate cuts off an answer or a text: end (the model isn't taught to stop there) | beginning; "
        "what is asked always loses its beginning",
    )
    reject: Annotated[list[Literal["refusals", "garbage"]], ONCE] = key(
        ["refusals"],
        'rows to reject: refusals (the answer is nothing but a stock one, "As an AI language model, I cannot '
        '…"), garbage (endless repetition, hardly a letter, broken encoding); [] rejects neither',
    )
    marked_bad: Literal["reject", "keep"] = key(
        "reject",
        "rows that a key beside them calls bad (status: discarded, is_correct: false, flagged: true, "
        "deleted_at …): reject | keep; a key set to null in curate.fields is no verdict",
    )
    languages: Annotated[list[Language], ONCE] = key(
        [], 'languages to keep, as ISO 639 codes, e.g. [en, de]; [] keeps all (needs the extra "languages")'
    )
    secrets: Literal["redact", "reject", "keep"] = key(
        "redact", "keys, tokens and passwords: redact | reject (the row) | keep"
    )
    personal: Annotated[list[Literal["email", "phone", "ip", "iban", "card"]], ONCE] = key(
        ["email", "phone", "ip", "iban", "card"],
        "kinds of personal data to redact: email, phone, ip, iban, card; [] keeps all",
    )
    names: GuardFile | None = key(None, "file of names to redact, one a line, below data/guard; null: none")
    drop_duplicates: Literal["near", "exact", "none"] = key(
        "near", "duplicates to drop: near (and exact ones; the best of a cluster stays) | exact | none"
    )
    decontaminate: Annotated[list[GuardFile], ONCE] = key(
        [],
        "files below data/guard that training must not share 13 words in a row with, as with the test split "
        "(benchmarks, private tests), e.g. [mmlu.jsonl]",
    )
    source_weights: dict[str, SourceWeight] = key(
        {},
        "glob below data/raw (best/: all below that folder): share of that source's training rows to use, 0 "
        "to 100; above 1 they are repeated, by 2.5 each twice and half of them once more; sources without "
        "one use all once",
    )
    temperature: Fraction = key(
        1.0, "1 keeps the domains' proportions, 0 makes all equally large, as curate.balance says"
    )
    balance: Literal["down", "up"] = key(
        "down",
        "how temperature brings domains together: down (to the smallest: rows are left out) | up (to the "
        "largest: rows are repeated)",
    )
    pairs: Literal["none", "rewards"] = key(
        "none",
        "make preferences of chats with a reward: none | rewards (of two answers to one request the one with "
        "the higher reward is chosen, the other rejected; the chats stay)",
    )
    val_fraction: SplitFraction = key(0.03, "share of the rows kept for monitoring training, 0 to 0.5")
    test_fraction: SplitFraction = key(
        0.12, "share of the rows kept for measuring the finished model, 0 to 0.5; never trained on"
    )
    seed: Seed = key(42, "another seed gives another split of the same rows")


class Curate(CurateKeys):
    """Section `curate` with values that none of its keys contains.

    `max_tokens` is `preprocess.max_length`.
    """

    max_tokens: Tokens = 1024
    # Bytes of a line or record that is read. Rows have some kB, and each process needs several times this
    # memory.
    max_line_bytes: Annotated[int, Field(ge=1024, le=1 << 28)] = 4 << 20
    # Least Jaccard similarity of the shingles of two near duplicates. 0.8 is usual for MinHash.
    near_threshold: Annotated[float, Field(ge=0.5, le=1)] = 0.8


class Preprocess(Section):
    max_length: Tokens = key(
        1024,
        "longest row and length of a packed row, in tokens; curate.overlong says what becomes of longer ones",
    )
    packing: bool = key(
        True,
        "put several short rows into one training row (best fit, unless train.order is as_given); each row "
        "sees only itself",
    )
    max_left_out: Fraction = key(
        0.5,
        "the stage stops if more than this share of the training rows can't be trained (too long, or the "
        "base's template doesn't show them whole); 1: train the others, however few",
    )
