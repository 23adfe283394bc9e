"""Verdicts on a hand-over: each is a `Check` with a stable id as key and a remedy that needs no project."""

import re
from dataclasses import replace

from pipeline.core.checks import Check
from pipeline.core.errors import QuenchError
from pipeline.core.text import first_line

# advice of the stages' own checks, and its replacement if there is no project
REMEDIES = (
    (r"run `snakemake --force (?:models/gguf/[^`]*)`", "make the level again from the 16-bit GGUF"),
    (r"run `snakemake --force merge`", "merge again"),
    (r"run `snakemake --force convert`", "convert the folder again"),
    (r"run (?:the stages? )?merge and convert again", "convert the right folder again"),
    (r"run the stages? (?:from )?merge(?: and convert| on)? again", "merge and convert again"),
    (r"run stage convert again", "convert again with the llama.cpp that knows this tokenizer"),
    (r"set convert\.type to BF16", "convert with --outtype bf16"),
    (r"; if nothing changes, correct the ids in the model that base\.model names, and train again", ""),
    (r"models/base/", "the folder's "),
    (r": run the stage that makes it again", ""),
)


def passed(key: str, name: str, sentence: str) -> Check:
    """Return the verdict on a hand-over at which nothing differs."""
    return Check(name, "pass", sentence, key=key)


def failed(key: str, name: str, sentence: str, remedy: str) -> Check:
    """Return the verdict on a hand-over that differs. `key` is a stable id for the difference."""
    return Check(name, "fail", sentence, remedy, key=key)


def warned(key: str, name: str, sentence: str, remedy: str) -> Check:
    """Return the verdict on a hand-over at which nothing differs although something may surprise."""
    return Check(name, "warn", sentence, remedy, key=key)


def unmeasured(key: str, name: str, why: str) -> Check:
    """Return the verdict on a hand-over that could not be checked."""
    return Check(name, "not measured", plain(why).splitlines()[0].rstrip(":"), key=key)


def reason_of(error: Exception) -> str:
    """Return the first line of an error's message, without the id of a Quench error."""
    return error.sentence.splitlines()[0] if isinstance(error, QuenchError) else first_line(error)


def reworded(check: Check, key: str, name: str) -> Check:
    """Return a stage's check as a hand-over with this id. Its remedy is for files that no stage made."""
    return replace(check, key=key, name=name, remedy=plain(check.remedy))


def plain(remedy: str) -> str:
    """Return the remedy of a stage's check without names of stages."""
    for pattern, words in REMEDIES:
        remedy = re.sub(pattern, words, remedy)
    return remedy
