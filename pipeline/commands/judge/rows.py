"""The held-out chats that every file is asked, and whether each file's template and context take them."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.chat.held_out import drawn, is_answerable
from pipeline.chat.rows import BadRow
from pipeline.chat.tokens import Row, chat_request, chats
from pipeline.commands.judge.files import Candidate
from pipeline.core.errors import DataError, ToolError
from pipeline.core.jsonl import read_rows
from pipeline.llamacpp.server import Server
from pipeline.stages.curate.reading.turns import read_tools, read_turns


def held_out_rows(file: Path, count: int, seed: int) -> list[Row]:
    """`count` drawn chats of `file` that end in an answer in words, the ones that stage evaluate draws.

    Rows are those of data/final, or chats in any form that `messages` of data/raw may have; one without an
    id is called by its line. Raises `DataError` if the file is missing, a line is no chat or no chat ends in
    an answer.
    """
    if not file.is_file():
        raise DataError(
            "Q-JUDGE-005",
            f"{file} is missing, so there are no chats to ask: run `snakemake curate`, or name a JSONL file "
            "with --data",
        )
    rows = drawn(filter(is_answerable, chats(_checked(file))), count, seed)
    if not rows:
        raise DataError(
            "Q-JUDGE-006",
            f"{file} holds no chat that ends in an assistant's answer in words: name another file with "
            "--data",
        )
    return rows


def check_rows(
    one: Candidate, server: Server, rows: Sequence[Row], *, ctx_size: int, max_new_tokens: int
) -> None:
    """Prove, before hours of answering, that the file's own template takes each row and that the context has
    room for it and its answer.

    Raises `DataError` otherwise.
    """
    room = min(ctx_size, one.positions or ctx_size)
    longest, which = max((prompt_tokens(one, server, row), str(row["id"])) for row in rows)
    if longest + max_new_tokens <= room:
        return
    needed = longest + max_new_tokens
    remedy = (
        f"give --ctx-size {needed} or more"
        if room == ctx_size
        else "leave that file or that row out, since the file was made for no longer one"
    )
    raise DataError(
        "Q-JUDGE-009",
        f"row {which} takes {longest:,} tokens in {one.name} and its answer up to {max_new_tokens:,} more, "
        f"but the context is of {room:,}: {remedy}",
    )


def prompt_tokens(one: Candidate, server: Server, row: Row) -> int:
    """How many tokens a row's question is, by the file's own template and tokenizer."""
    asked = chat_request(row["messages"][:-1], row.get("tools"))
    try:
        text = server.post("/apply-template", asked)["prompt"]
    except ToolError as error:
        raise DataError(
            "Q-JUDGE-011",
            f"the chat template of {one.name} does not take row {row['id']} ({said(error)}): leave the file "
            "or the row out, or put a system turn's text into the first question",
        ) from error
    return len(
        server.post("/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]
    )


def said(error: ToolError) -> str:
    """What llama-server answered, on one line of at most 200 letters."""
    return " ".join(error.sentence.partition(": ")[2].split())[:200]


def _checked(file: Path) -> Iterator[Row]:
    for number, row in enumerate(read_rows(file), 1):
        found = row
        if row.get("kind", "chat") == "chat":
            try:
                found = {key: value for key, value in row.items() if key != "tools"} | _chat(row)
            except BadRow as error:
                raise DataError(
                    "Q-JUDGE-006",
                    f"{file}, line {number}, is no chat ({error}): a line is "
                    '{"messages": [{"role": …, "content": …}, …]} with two messages at least',
                ) from error
        yield found | {"id": row.get("id") or f"line-{number}"}


def _chat(row: Row) -> Row:
    """The turns and tools of a row, read as stage curate reads them: of a call's arguments OpenAI's form has
    the text, and Quench's the object. Raises `BadRow`.
    """
    turns = read_turns(row.get("messages"), "messages")
    if len(turns) < 2:
        raise BadRow("bad_shape", "messages are fewer than two")
    tools = read_tools(row.get("tools") or [])
    return {"messages": turns} | ({"tools": tools} if tools else {})
