"""Check that llama-server's parser reads the tool calls of held-out rows in the text that training taught.

llama-server parses only generated text. So the model is forced to generate it: the turn, as training's
template writes it, is given as the beginning of the answer, the end of the turn is made more likely than all
other tokens, and one token is generated. The parser then reads the entire turn like any answer, and its calls
must be the row's. Text, tools and template are the served ones; the model's own answer is not measured.

For some templates (those that write arguments as XML) the parser uses the tool's own schema: arguments that
the schema does not contain, or contains with another type, are read as others or not at all. A row that calls
a tool against its schema is a fault of the row and not damage, so it is a warning.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.chat.prompts import read_only
from pipeline.chat.rendering import Unrenderable, renderings
from pipeline.chat.rows import calling_turns
from pipeline.chat.template_probe import Message
from pipeline.chat.tokens import Row, chat_request
from pipeline.core.checks import Check
from pipeline.core.errors import ToolError
from pipeline.core.text import one_line
from pipeline.llamacpp.server import Server
from pipeline.metrics.tool_calls import equal_calls, expected_calls, made_calls
from pipeline.stages.parity.check import CTX_SIZE, exact
from pipeline.stages.parity.probe_inputs import Conversation
from pipeline.stages.parity.rendering import trainable

TITLE = "Tool calls"
WHAT = "turns whose calls llama-server reads otherwise than the row has them"
NO_CALL = "llama-server reads no call, but the text "
MOST_LIKELY = 1e6  # added to the logit of the end of turn; logits are some tens
ROOM = 16  # tokens in addition to the rendered turns
SHOWN = 300  # characters of calls shown in the report
# Python types of JSON's values; true and false are handled before.
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
# Placeholders for the reasoning and the text of an answer.
REASONING, CONTENT = "q00000003", "q00000004"


@dataclass(frozen=True)
class CalledTurn:
    """A row up to a turn that calls tools, which is the last one."""

    row: Row
    turns: Sequence[Message]

    @property
    def name(self) -> str:
        """Row and turn, as a sentence names them."""
        return f"row {self.row['id']}, turn {len(self.turns)}"


@dataclass
class Compared:
    """Results of the comparison: how many turns of which rows were compared, which differ (a sentence each),
    which of them have a call against its tool's schema, and why others were not compared.
    """

    turns: int = 0
    rows: set[str] = field(default_factory=set)
    differences: list[str] = field(default_factory=list)
    against_schema: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


def called_turns(rows: Iterable[Row]) -> Iterator[CalledTurn]:
    """Yield each row up to each trained turn that calls tools."""
    for row in rows:
        for place in calling_turns(row):
            yield CalledTurn(row, row["messages"][: place + 1])


def holds_calls(row: Row) -> bool:
    """Return True if a trained turn of the row calls tools."""
    return bool(calling_turns(row))


def tool_calls(rows: Sequence[Row], tokenizer: Any, server: Server, gguf: Path) -> Check:
    """Return the check of `rows`, which contain calls, in a server of `gguf`."""
    compared = Compared()
    for turn in called_turns(rows):
        compare(turn, tokenizer, server, compared)
    left_out = [f"{count} {why}" for why, count in sorted(compared.left_out.items())]
    counted = f"{compared.turns} turns of {len(compared.rows)} rows compared"
    first = (compared.differences + compared.against_schema)[:1]
    sentence = "; ".join([counted, *left_out, *first])
    figures = {"rows": float(len(compared.rows)), "turns": float(compared.turns)}
    if not compared.turns:
        return Check(TITLE, "not measured", sentence, what=WHAT, figures={"turns": 0.0})
    cause = (
        f"llama-server does not read the calls that the chat template of {gguf.name} writes, so its clients "
        "get text or other calls: take a base whose calls it reads, or correct the template."
    )
    checked = exact(TITLE, len(compared.differences), "turns", sentence, cause, WHAT)
    figures["against_schema"] = float(len(compared.against_schema))
    if checked.verdict == "pass" and compared.against_schema:
        remedy = (
            f"{len(compared.against_schema)} turns call a tool against its own schema, by which llama-server "
            f"reads what the chat template of {gguf.name} writes: correct the calls or tools of these rows."
        )
        checked = replace(checked, verdict="warn", remedy=remedy)
    return replace(checked, figures=figures)


def compare(turn: CalledTurn, tokenizer: Any, server: Server, compared: Compared) -> None:
    """Have the server read a turn, and add the result to `compared`."""
    tools = turn.row.get("tools")
    if not tools:
        compared.left_out["without tools, where llama-server reads no calls"] += 1
        return
    try:
        said, tokens = training_text(turn, tokenizer)
    except Unrenderable:
        compared.left_out["not shown whole by the template, so never trained"] += 1
        return
    if tokens + ROOM > CTX_SIZE:
        compared.left_out[f"longer than {CTX_SIZE} tokens"] += 1
        return
    compared.turns += 1
    compared.rows.add(str(turn.row["id"]))
    expected = expected_calls(turn.turns[-1])
    try:
        message = read(server, turn, said, tokenizer.eos_token_id)
    except ToolError as refusal:
        reading = refusal.sentence
    else:
        calls = made_calls(message)
        if equal_calls(expected, calls):
            return
        reading = f"llama-server reads {_shown(calls)}" if calls else f"{NO_CALL}{message.get('content')!a}"
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    difference = f"{turn.name}: the row calls {_shown(expected)}, {one_line(reading, SHOWN)}"
    if all(follows_schema(call, schemas) for call in expected):
        compared.differences.append(difference)
    else:
        compared.against_schema.append(difference)


def follows_schema(call: dict[str, Any], schemas: Mapping[str, dict[str, Any]]) -> bool:
    """Return True if a call names an offered tool and has the arguments that it requires, each with the
    schema's type. The contents of lists and objects are not checked.
    """
    schema = schemas.get(call["name"])
    arguments = call["arguments"]
    if schema is None or not set(schema.get("required") or ()) <= arguments.keys():
        return False
    properties = schema.get("properties") or {}
    return all(name in properties and _has_type(value, properties[name]) for name, value in arguments.items())


def _has_type(value: Any, schema: Any) -> bool:
    """Return True if a value has a type that the schema names, or if the schema names none."""
    named = schema.get("type") if isinstance(schema, dict) else None
    types = named if isinstance(named, list) else [named]
    if named is None or isinstance(value, bool):
        return named is None or "boolean" in types
    return any(isinstance(value, TYPES[name]) for name in types if name in TYPES)


def training_text(turn: CalledTurn, tokenizer: Any) -> tuple[str, int]:
    """Return the text that training teaches as the turn, without the end of turn, and the number of tokens of
    the row up to there. Raises `Unrenderable` if training does not accept the row.
    """
    *before, last = turn.turns
    tools = turn.row.get("tools")
    if not trainable(tokenizer, Conversation(list(turn.turns), tools)):
        raise Unrenderable("template_drops", "the chat template does not show the turns")
    (rendered,) = renderings(tokenizer, [*map(read_only, before), last], tools)
    start, end = rendered.spans[-1]
    tokens = tokenizer(rendered.text, add_special_tokens=False)["input_ids"]
    return rendered.text[start:end].removesuffix(tokenizer.eos_token), len(tokens)


def read(server: Server, turn: CalledTurn, said: str, end_of_turn: int) -> dict[str, Any]:
    """Return the message that llama-server reads in an answer with the text `said`."""
    answer = split_reasoning(said, *reasoning_tags(server, turn))
    request = chat_request([*turn.turns[:-1], answer], turn.row.get("tools"))
    limits = {"temperature": 0, "max_tokens": 1, "logit_bias": [[end_of_turn, MOST_LIKELY]]}
    message: dict[str, Any] = server.post("/v1/chat/completions", request | limits)["choices"][0]["message"]
    return message


def reasoning_tags(server: Server, turn: CalledTurn) -> tuple[str, str]:
    """Return the text that llama-server writes before and after the reasoning of an answer that is begun; two
    empty strings if its template has none.
    """
    before = list(turn.turns[:-1])
    tools = turn.row.get("tools")
    asked = server.post("/apply-template", chat_request(before, tools))["prompt"]
    begun = {"role": "assistant", "reasoning_content": REASONING, "content": CONTENT}
    text = server.post("/apply-template", chat_request([*before, begun], tools))["prompt"]
    opening, has_reasoning, rest = text.partition(REASONING)
    if not has_reasoning:
        return "", ""
    before_reasoning = opening.removeprefix(asked) if opening.startswith(asked) else ""
    return before_reasoning, rest.partition(CONTENT)[0]


def split_reasoning(said: str, opening: str, closing: str) -> Message:
    """Return the beginning of an answer with the text `said`, with its reasoning separated, because
    llama-server writes the tags around it itself.
    """
    tag = closing.strip()
    thought, has_reasoning, content = said.partition(tag) if tag else ("", "", said)
    if not has_reasoning:
        return {"role": "assistant", "content": said}
    behind = closing[len(closing.rstrip()) :]
    ahead = closing[: len(closing) - len(closing.lstrip())]
    return {
        "role": "assistant",
        "reasoning_content": thought.removeprefix(opening).removesuffix(ahead),
        "content": content.removeprefix(behind),
    }


def _shown(calls: Sequence[dict[str, Any]]) -> str:
    """Return calls as text for a sentence."""
    return one_line(json.dumps(calls, ensure_ascii=False), SHOWN)
