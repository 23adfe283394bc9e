"""Show rows as the model will see them: rendered by the base's own template, with the trained text marked.

    quench data show --split test --row 3

Without `models/base` the messages are shown plainly.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

from pipeline.chat.prompts import read_only
from pipeline.chat.rows import ABOUT_TRAINING, JUDGED, OTHERS, Row, is_made_of
from pipeline.chat.sequences import answers_of
from pipeline.commands.data.versions import split_file
from pipeline.core.errors import DataError
from pipeline.core.jsonl import read_rows
from pipeline.core.text import console, one_line, plural

TRAINED = "bold green"
MASKED = "dim"
BRACKETS = "⟦⟧"  # marks around trained text if there are no colors
SHOWN = 3  # rows


@dataclass(frozen=True)
class View:
    """One rendering of a row: text pieces, trained or not, and token counts or why it can't be rendered."""

    title: str
    pieces: list[tuple[str, bool]]
    note: str


def chosen(source: Path, wanted: str | None, count: int | None) -> Iterator[tuple[int, Row]]:
    """Yield (number, row) of `count` rows from the wanted one on: an id, a source or a number from 1.

    For a source, yield all rows that were made from it, even if there are more. Without `count` there are
    `SHOWN` from a number on, and no others for an id or a source. Raises `DataError` if there is none.
    """
    rows = enumerate(read_rows(source), start=1)
    if wanted is not None:
        number = int(wanted) if re.fullmatch(r"[0-9]{1,15}", wanted) else None  # An id has 16 digits.
        numbered = next(
            (
                (at, row)
                for at, row in rows
                if at == number or wanted == row["id"] or is_made_of(row["source"], wanted)
            ),
            None,
        )
        if numbered is None:
            raise DataError(
                "Q-COMMANDS-019",
                f"{source} has no row {wanted!r}: name an id, a source (FILE:LINE) or a number from 1 to "
                "the number of rows",
            )
        yield numbered
        if count is None:
            count = 1 if number is None else SHOWN
        for at, row in rows:
            count -= 1
            if count <= 0 and not is_made_of(row["source"], wanted):
                return
            yield at, row
        return
    yield from islice(rows, count or SHOWN)


def views(row: Row, tokenizer: Any) -> list[View]:
    """Return the texts that the model sees of a row: usually one, two for a preference, and one for each
    answer if the template unfolds a chat.

    Without a tokenizer these are the plain messages.
    """
    if row["kind"] == "text":
        return [_segments(row, tokenizer)]
    if tokenizer is None:
        return [View(title, list(_messages(turns)), "") for title, turns in _sides(row)]
    return [view for title, turns in _sides(row) for view in _rendered(title, turns, row, tokenizer)]


def main(root: Path, split: str, wanted: str | None, count: int | None) -> None:
    """Print rows of a split of `data/final`."""
    from rich.text import Text

    rows = chosen(split_file(root, split), wanted, count)
    first = next(rows, None)
    if first is None:
        print(f"{split} has no rows")
        return
    tokenizer = _tokenizer(root)
    output = console(highlight=False, soft_wrap=True)
    colors = output.color_system is not None and not output.no_color
    output.print(
        Text.assemble(
            "what is trained: ",
            *_styled([("green text", True)] if colors else [("text in brackets", True)], colors),
        )
    )
    for number, row in (first, *rows):
        about = (f"row {number} of {split}", row["id"], row["source"], row["kind"], row.get("domain", ""))
        output.print()
        output.rule(
            Text(" · ".join(one_line(str(word)) for word in about if word)), align="left", style="dim"
        )
        for view in views(row, tokenizer):
            heading = ": ".join(filter(None, (view.title, view.note)))
            if heading:
                output.print(Text(heading, style="italic"))
            output.print(Text.assemble(*_styled(view.pieces, colors)))
        if "answer" in row:
            output.print(Text(f"a checker expects: {row['answer']}", style="italic"))
        for reference in row.get(OTHERS, ()):
            output.print(Text(f"accepted too, not trained: {reference}", style="italic"))


def _tokenizer(root: Path) -> Any:
    folder = root / "models" / "base"
    if not (folder / "tokenizer.json").exists():
        print(
            "show: models/base is missing, so the messages are shown without template and token counts: "
            "`snakemake base` makes it",
            file=sys.stderr,
        )
        return None
    from pipeline.chat.tokens import load_tokenizer

    return load_tokenizer(folder)


def _sides(row: Row) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return (title, messages) of each text that a row gives."""
    if row["kind"] in JUDGED:
        thumb = "thumb up" if row.get("label") else "thumb down"
        return [(name or thumb, chat["messages"]) for _, name, chat in answers_of(row)]
    if row["kind"] == "prompt":  # The model continues from here, so nothing in it is trained.
        return [("", [read_only(turn) for turn in row["messages"]])]
    return [("", row["messages"])]


def _rendered(title: str, turns: list[dict[str, Any]], row: Row, tokenizer: Any) -> list[View]:
    from pipeline.chat.rendering import Unrenderable, render, renderings
    from pipeline.chat.tokens import encode

    tools = row.get("tools")
    try:
        if row["kind"] == "prompt":
            text = render(tokenizer, turns, tools, add_generation_prompt=True)
            tokens = len(tokenizer(text, add_special_tokens=False)["input_ids"])
            return [View(title, [(text, False)], plural(tokens, "token"))]
        _, encoded = next(encode(tokenizer, [{"kind": "chat", "messages": turns, "tools": tools}]))
        if isinstance(encoded, Unrenderable):
            raise encoded
        texts = renderings(tokenizer, turns, tools)
    except Unrenderable as why:
        return [View(title, list(_messages(turns)), _refused(why))]
    return [
        View(
            " ".join(filter(None, (title, f"answer {text.part}" if text.part else ""))),
            _parted(text.text, text.spans),
            _counted(sequence),
        )
        for text, sequence in zip(texts, encoded, strict=True)
    ]


def _segments(row: Row, tokenizer: Any) -> View:
    from pipeline.chat.rendering import Unrenderable
    from pipeline.chat.tokens import encode_segments

    try:
        note = _counted(encode_segments(tokenizer, row["segments"])) if tokenizer else ""
    except Unrenderable as why:
        note = _refused(why)
    return View("no template", [(segment["text"], segment["train"]) for segment in row["segments"]], note)


def _counted(encoded: Any) -> str:
    from pipeline.chat.tokens import IGNORED

    return (
        f"{plural(len(encoded.ids), 'token')}, {sum(label != IGNORED for label in encoded.labels):,} trained"
    )


def _refused(why: Any) -> str:
    return f"stage preprocess will reject it ({why.code}): {one_line(str(why), 200)}"


def _messages(turns: Iterable[dict[str, Any]]) -> Iterator[tuple[str, bool]]:
    """Yield roles and contents, and the other keys of a turn as JSON."""
    import json

    for turn in turns:
        rest = {key: value for key, value in turn.items() if key not in ("role", "content", *ABOUT_TRAINING)}
        parts = (turn["content"], json.dumps(rest, ensure_ascii=False) if rest else "")
        trained = turn["role"] == "assistant" and turn.get("train", True)
        yield from ((f"{turn['role']}: ", False), (" ".join(filter(None, parts)), trained), ("\n", False))


def _parted(text: str, spans: Iterable[tuple[int, int]]) -> list[tuple[str, bool]]:
    """Return the text in pieces. Those within `spans` are trained."""
    edges = [0, *chain.from_iterable(spans), len(text)]
    return [(text[start:end], number % 2 == 1) for number, (start, end) in enumerate(pairwise(edges))]


def _styled(pieces: Iterable[tuple[str, bool]], colors: bool) -> Iterator[tuple[str, str]]:
    """Yield pieces for Rich: colored, or in brackets."""
    for text, trained in pieces:
        if not text:
            continue
        shown = f"{BRACKETS[0]}{text}{BRACKETS[1]}" if trained and not colors else text
        yield shown, TRAINED if trained else MASKED
