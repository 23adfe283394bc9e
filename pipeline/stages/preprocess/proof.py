"""Prove that data/tokens matches data/final, from the written files and without the encoder.

Every sequence is decoded, its masked and its trained stretches apart, and compared with the text that the
template itself gives for the row's turns. An answer, up to its end of turn, is what the template adds to the
text before it.
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.chat.new_tokens import text_tokens
from pipeline.chat.prompts import as_chat
from pipeline.chat.tokenizer_file import plain_tokenizer
from pipeline.chat.tokens import IGNORED, Row
from pipeline.config.methods import METHODS, Method
from pipeline.config.sections import Train
from pipeline.core.errors import DataError
from pipeline.core.publish import read_if_there
from pipeline.core.text import plural
from pipeline.stages.preprocess.stats import row_name, rows_in
from pipeline.stages.preprocess.stretches import (
    Base,
    Claim,
    check_claims,
    ended,
    ends_of,
    of_segments,
    of_turns,
    with_prompt,
)
from pipeline.stages.preprocess.tables import Written

TOGETHER = 256  # rows decoded in one call


def load_base(folder: Path, tokenizer: Any) -> Base:
    """Return the base in `folder`. Raises `DataError` if generation would not stop at its end of turn.

    Generation uses generation_config.json, and config.json only if that names no end.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    parts = (config, config.get("text_config") or {})
    sizes = [part["vocab_size"] for part in parts if "vocab_size" in part]
    generation = folder / "generation_config.json"
    values = read_if_there(generation)
    stating = generation.name
    if values.get("eos_token_id") is None:
        values = config
        stating = "config.json"
    ends = values.get("eos_token_id")
    end_ids = ends if isinstance(ends, list) else [ends]
    if ends is not None and tokenizer.eos_token_id not in end_ids:
        raise DataError(
            "Q-PREPROCESS-004",
            f"the end of turn is {tokenizer.eos_token_id} ({tokenizer.eos_token}) in the tokenizer and "
            f"{ends} in {folder / stating}, so the model would not stop where it learned to: run stage base "
            "again",
        )
    if not sizes:
        raise DataError(
            "Q-PREPROCESS-005",
            f"{folder / 'config.json'} names no vocab_size: fetch the base again",
        )
    plain = plain_tokenizer(folder)
    text = text_tokens(tokenizer)
    control = []
    for token in plain.get_added_tokens_decoder().values():
        is_blank = not token.content.replace("▁", " ").strip()
        if token.single_word or len(token.content) <= 1 or is_blank or token.content in text:
            continue
        control.append(re.escape(token.content))
    return Base(tokenizer, plain, sizes[0], re.compile("|".join(control) or "(?!)"))


def prove(
    path: Path, rows: Sequence[Path], base: Base, max_length: int, train: Train, rejected: int
) -> dict[str, int]:
    """Check the Parquet file at `path` against the files of `rows` that it was made from, and return its
    counts. `rejected` rows were left out. With `train.train_on_prompt` the prompts are trained too.

    Raises `DataError` with the failure's name and the row at the first difference.
    """
    written = Written(path)
    file = rows[0].name
    method = train.method
    if len(written.lengths) and written.lengths.max() > max_length:
        raise DataError(
            "Q-PREPROCESS-013",
            f"{path.name} has a row of {written.lengths.max()} tokens, preprocess.max_length is "
            f"{max_length}: rows were packed wrongly",
        )
    if len(written.ids) and not (written.ids.min() >= 0 and written.ids.max() < base.embeddings):
        raise DataError(
            "Q-PREPROCESS-006",
            f"{path.name} has token {written.ids.max()}, but the base has {base.embeddings} rows of "
            "embeddings: its tokenizer is another model's",
        )
    if np.any((written.labels != IGNORED) & (written.labels != written.ids)):
        raise DataError(
            "Q-PREPROCESS-013",
            f"{path.name} has a label that is not its own token: the labels are shifted",
        )
    if METHODS[method].pairs:
        check_pairs(written, path.name)
    read = trained_rows = turns = 0
    numbered = enumerate(rows_in(rows), start=1)
    while batch := list(islice(numbered, TOGETHER)):
        by_row = [
            list(_claims(row, row_name(row, file, number), written, base, method)) for number, row in batch
        ]
        if train.train_on_prompt:
            by_row = [
                [with_prompt(claim, row, base) for claim in claims]
                for claims, (_, row) in zip(by_row, batch, strict=True)
            ]
        claims = list(chain.from_iterable(by_row))
        read += len(batch)
        trained_rows += sum(map(bool, by_row))
        turns += sum(count for _, _, _, count in claims)
        check_claims(claims, base, file)
    extra_row = next(written.remaining(), None)
    if extra_row:
        raise DataError(
            "Q-PREPROCESS-014",
            f"row {extra_row} of {path.name} is not in {file}, or more often than there: rows were made up",
        )
    if read != trained_rows + rejected:
        counts = f"{trained_rows} are in {path.name} and {rejected} were rejected with a reason"
        raise DataError("Q-PREPROCESS-014", f"{file} has {plural(read, 'row')}, {counts}: rows got lost")
    return {
        "rows": trained_rows,
        "sequences": len(written.row_ids),
        "packed_rows": len(written.lengths),
        "tokens": len(written.ids),
        "trained_tokens": int((written.labels != IGNORED).sum()),
        "trained_turns": turns,
    }


def check_pairs(written: Written, file: str) -> None:
    """Raise `DataError` unless each packed row has pairs, a chosen answer right before its rejected one."""
    names = written.row_ids
    roles = written.roles.tolist()
    starts = np.concatenate(([0], np.cumsum(written.counts)))
    has_whole_pairs = all(start % 2 == 0 for start in starts)
    is_paired = has_whole_pairs and roles == [1, -1] * (len(roles) // 2)
    for chosen, rejected in zip(names[::2], names[1::2], strict=is_paired):
        is_paired &= chosen.removesuffix("#chosen") == rejected.removesuffix("#rejected") != rejected
    if not is_paired:
        raise DataError(
            "Q-PREPROCESS-014",
            f"{file}: a chosen answer is not right before its rejected one: a pair is torn",
        )


def _claims(row: Row, name: str, written: Written, base: Base, method: Method) -> Iterator[Claim]:
    """Yield (name, written sequence, expected stretches, number of trained turns) for each sequence of the
    row. Yield nothing for a row that was left out.
    """
    if METHODS[method].prompts:
        if row.get("kind", "chat") not in METHODS[method].rows:
            return
        row = as_chat(row)
    elif METHODS[method].answers:
        yield from _claims_of_answers(row, name, written, base)
        return
    entire = written.take(name)
    if row.get("kind", "chat") == "text":
        if entire is not None:
            stretches = of_segments(row["segments"], base)
            yield name, entire, stretches, ends_of(stretches, base)
        return
    messages = row["messages"]
    tools = row.get("tools")
    learned = [
        turn
        for turn, message in enumerate(messages)
        if message["role"] == "assistant" and message.get("train") is not False
    ]
    if entire is not None:
        yield name, entire, of_turns(messages, tools, learned, base, name), ended(messages, learned)
        return
    for part, turn in enumerate(learned, start=1):
        sequence = written.take(f"{name}#{part}")
        if sequence is None and part == 1:
            return
        if sequence is None:
            raise DataError(
                "Q-PREPROCESS-014",
                f"turn {turn + 1} of row {name} is not in data/tokens, but the turns before it are: the row "
                "lost a part",
            )
        stretches = of_turns(messages[: turn + 1], tools, [turn], base, name)
        yield f"{name}#{part}", sequence, stretches, ended(messages, [turn])


def _claims_of_answers(row: Row, name: str, written: Written, base: Base) -> Iterator[Claim]:
    """Yield the claims of a row with compared or judged answers: each after the prompt, in its role."""
    if "chosen" in row:
        prompt = len(row["messages"])
        answers = [
            (f"{name}#{key}", role, row["messages"] + row[key], prompt)
            for key, role in (("chosen", 1), ("rejected", -1))
        ]
    elif "label" in row:
        turns = [turn["role"] for turn in row["messages"]]
        last = len(turns) - 1 - turns[::-1].index("assistant")
        label_role = 1 if row["label"] else -1
        answers = [(name, label_role, row["messages"][: last + 1], last)]
    else:
        return
    for named, role, messages, start in answers:
        written_role = written.role(named)
        if written_role is None:
            continue
        if written_role != role:
            wrong = "preferred" if written_role > 0 else "not preferred"
            raise DataError(
                "Q-PREPROCESS-013",
                f"answer {named} is written as {wrong}, and is not: pairs would be learned the wrong way "
                "round",
            )
        learned = [
            turn
            for turn in range(start, len(messages))
            if messages[turn]["role"] == "assistant" and messages[turn].get("train") is not False
        ]
        entire = written.take(named)
        stretches = of_turns(messages, row.get("tools"), learned, base, name)
        yield named, entire, stretches, ended(messages, learned)
