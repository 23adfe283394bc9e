"""One conversation in any dialect: roles and their aliases, content parts, tool calls, reasoning, weights;
and lists of tools.

Content that the canonical form can't represent raises `BadRow` with the place (`messages 3: …`), never with
the text itself.
"""

import json
import re
from collections.abc import Mapping
from itertools import islice, takewhile
from typing import Any

from pipeline.chat.rows import BadRow
from pipeline.core.text import listed, one_line, quoted
from pipeline.intake.rows.marks import is_trained, marks_of
from pipeline.intake.rows.reasoning import reasoning_of, split_reasoning
from pipeline.intake.rows.text_calls import find_calls, value_of
from pipeline.intake.rows.values import Value, from_json, is_blank, is_by_columns, items, one_text, text
from pipeline.intake.wire.blocks import has_blocks, spread
from pipeline.intake.wire.shapes import KINDS, need, without_nulls

Turn = dict[str, Any]  # a `pipeline.chat.rows.Message`
SPEAKER = re.compile(r"\n\n(Human|Assistant): ?")  # transcripts of Anthropic's hh-rlhf

ROLES = (
    dict.fromkeys(("system", "developer"), "system")
    | dict.fromkeys(("user", "human", "prompter", "input"), "user")
    | dict.fromkeys(
        ("assistant", "gpt", "chatgpt", "chatbot", "bot", "model", "bing", "bard", "ai", "claude", "output"),
        "assistant",
    )
    | dict.fromkeys(
        ("tool", "function", "observation", "function_response", "tool_response", "tool_result", "ipython"),
        "tool",
    )
)
USUAL = ("system", "user", "assistant", "tool")
MAP_IT = "map it in curate.fields (role, roles)"
TAKE_OUT = "take out what nobody says (curate.transform)"
KEYS_SHOWN = 6  # keys of a turn without a role
KEY_SHOWN = 40  # characters of such a key
# Key of the tools of Anthropic and of MCP → key of OpenAI's.
SCHEMAS = {"input_schema": "parameters", "inputSchema": "parameters"}
# Keys of such tools that no model gets to see.
UNSHOWN = ("cache_control", "annotations", "outputSchema", "title", "_meta")
# Keys of parameters in a form of their own, which templates don't show as such.
OTHER_SCHEMAS = ("args", "args_schema", "arguments", "inputs", "params", "parameter_definitions", "schema")
# roles of an assistant's turn whose text is the call, as JSON
CALLERS = frozenset({"function_call", "tool_call"})
# Without them the turn means something else.
MEDIA = ("audio", "audios", "image", "images", "video", "videos")
TIMES = frozenset(
    (
        "created_at",
        "createdAt",
        "createdDateTime",
        "date",
        "sent_at",
        "time",
        "timestamp",
        "timestamp_ms",
        "ts",
    )
)
ISO_DATE = re.compile(r"\d{4}-\d\d-\d\dT?")
LOST = ("refusal", *MEDIA)  # Keys that would be lost, which would change the turn.


def read_turns(value: Any, field: str) -> list[Turn]:
    """Return the turns of a list (or of its JSON text) below the key `field`."""
    turns = []
    stated = items(value, field)
    _need_oldest_first(stated, field)
    for number, item in enumerate(stated, start=1):
        if type(item) is dict and len(item) == 2:  # A role and a text, the usual case.
            role = item.get("role", item.get("from"))
            content = item.get("content", item.get("value"))
            if type(content) is str and type(role) is str and role in ROLES:
                turns.append({"role": ROLES[role], "content": content})
                continue
        where = f"{field} {number}"
        if isinstance(item, dict) and has_blocks(item.get("content")):
            turns += [_turn(message, where) for message in spread(item, where)]
        else:
            turns.append(_turn(item, where))
    return turns


def _need_oldest_first(stated: list[Any], field: str) -> None:
    """Raise `BadRow` if the turns' times fall, as in exports that have the newest message first."""
    first = stated[0] if stated else None
    if not isinstance(first, dict) or len(first) < 3:  # The usual case: a role and a text.
        return
    for key in TIMES.intersection(first):
        times: list[Any] = [item.get(key) if isinstance(item, dict) else None for item in stated]
        kinds = set(map(type, times))
        is_time = kinds <= {int, float} or (kinds == {str} and all(map(ISO_DATE.match, times)))
        if is_time and times[0] > times[-1] and times == sorted(times, reverse=True):
            raise BadRow("bad_order", f"{field} begin with the newest by {key}: turn the list round")


def turn(role: str, content: Any, where: str) -> Turn:
    """Return a plain turn with the text of a row's field."""
    return {"role": role, "content": one_text(content, where)}


def turns_of(value: Mapping[str, Any], field: str, role: str) -> list[Turn]:
    """Return the turns of a field that is a list of them, a single one, or the text of one by `role`."""
    stated = value[field]
    if isinstance(stated, str) and field not in ("messages", "conversations"):
        return [turn(role, stated, field)]
    single = isinstance(stated, dict) and not is_by_columns(stated)
    return read_turns([stated] if single else stated, field)


def transcript(words: str, where: str) -> list[Turn]:
    """Return the turns of a conversation that is one text, as in hh-rlhf."""
    nothing, *pieces = SPEAKER.split(words)
    if nothing.strip() or not pieces:
        raise BadRow("bad_shape", f"{where} is text, and there is no prompt")
    return [
        turn("user" if who == "Human" else "assistant", stated, where)
        for who, stated in zip(pieces[::2], pieces[1::2], strict=True)
    ]


def with_marks(row: Value, field: str) -> Value:
    """Return the row with its lists of marks moved to the turns of `field`, an entry for each turn.

    Raises `BadRow` for a list of another length, or if a turn contradicts its mark.
    """
    lists = {key: items(marks, key) for key, marks in marks_of(row).items() if is_list(marks)}
    if not lists:
        return row
    turns = items(row[field], field)
    for key, marks in lists.items():
        if len(marks) != len(turns):
            raise BadRow(
                "unsupported_field", f"{key} has {len(marks)} entries, and {field} has {len(turns)} turns"
            )
        for number, (item, mark) in enumerate(zip(turns, marks, strict=True), start=1):
            if need(dict, item, f"{field} {number}", "bad_shape").get(key, mark) != mark:
                raise BadRow("unsupported_field", f"{field} {number} and {key} contradict each other")
        turns = [item | {key: mark} for item, mark in zip(turns, marks, strict=True)]
    return {key: value for key, value in row.items() if key not in lists} | {field: turns}


def is_list(value: Any) -> bool:
    """Return True for a list, also for the text of one, as in tables."""
    return isinstance(value, list) or (isinstance(value, str) and value.lstrip().startswith("["))


def shared_prompt(
    prompt: list[Turn], chosen: list[Turn], rejected: list[Turn]
) -> tuple[list[Turn], list[Turn], list[Turn]]:
    """Return the prompt and the two answers of a pair.

    The turns with which both sides begin belong to the prompt. They replace the stated prompt if they repeat
    it.
    """
    turn_pairs = zip(chosen[:-1], rejected[:-1], strict=False)  # Each side keeps a turn.
    common = [shared for shared, _ in takewhile(lambda pair: pair[0] == pair[1], turn_pairs)]
    stated = [turn for turn in prompt if turn["role"] != "system"]
    repeated = [turn for turn in common if turn["role"] != "system"][: len(stated)]
    if repeated == stated:  # Both sides are complete conversations.
        # A set, because `in` on a list takes quadratic time.
        stated_systems = {json.dumps(turn) for turn in common if turn["role"] == "system"}
        prompt = [
            turn for turn in prompt if turn["role"] == "system" and json.dumps(turn) not in stated_systems
        ]
    return prompt + common, chosen[len(common) :], rejected[len(common) :]


def system_turn(value: Mapping[str, Any]) -> list[Turn]:
    """Return the system turn that a row has next to its turns, if it has one."""
    if "system" not in value and "system_prompt" not in value:  # The usual case.
        return []
    stated = [value.get(key) for key in ("system", "system_prompt")]
    system = next((words for words in stated if not is_blank(words)), None)
    return [] if system is None else [turn("system", system, "system")]


def read_tools(value: Any) -> list[dict[str, Any]]:
    """Return a row's tools in OpenAI's form, from a list (or its JSON text) of tools or bare functions."""
    return [_tool(tool, f"tools {number}") for number, tool in enumerate(items(value, "tools"), start=1)]


def _turn(item: Any, where: str) -> Turn:
    item = without_nulls(need(dict, item, where, "bad_shape"))
    lost = [key for key in LOST if item.get(key)]
    if lost:
        raise BadRow("unsupported_field", f"{where}: {lost[0]} would be lost")
    name = item.get("role", item.get("from"))
    if isinstance(name, str) and name not in ROLES:
        name = name.strip().lower().replace("-", "_")
    if not isinstance(name, str) or (name not in ROLES and name not in CALLERS):
        raise BadRow("bad_role", f"{where}: {_without_role(item)}")
    role = ROLES.get(name, "assistant")
    content = item.get("content", item.get("value", item.get("text")))
    calls = _calls(item, where)
    if name in CALLERS:
        if calls:
            raise BadRow("bad_tool_call", f"{where} is a call, and has tool_calls too")
        calls = _parse_calls(content, where)
    if calls and role != "assistant":
        raise BadRow("bad_tool_call", f"{where}: only the assistant calls tools")
    thoughts, content = split_reasoning(content, where)
    if role == "tool":
        content = _result_text(content)
    result: Turn = {
        "role": role,
        "content": "" if name in CALLERS or (calls and content is None) else text(content, where),
    }
    stated = reasoning_of(item, role, where)
    if stated and thoughts and stated.strip() != thoughts.strip():
        raise BadRow("unsupported_field", f"{where}: its parts have other reasoning than its own key")
    reasoning = stated or thoughts
    if reasoning:
        if role != "assistant":
            raise BadRow("unsupported_field", f"{where}: only the assistant's reasoning is kept")
        result["reasoning_content"] = reasoning
    if calls:
        result["tool_calls"] = calls
    result |= {key: text(item[key], f"{where} {key}") for key in ("tool_call_id", "name") if item.get(key)}
    if not is_trained(item, role, where):
        result["train"] = False
    if item.get("cut") in ("beginning", "end"):  # a row that curation wrote
        result["cut"] = item["cut"]
    return result


def _without_role(item: Mapping[str, Any]) -> str:
    """Return a phrase on what a turn has instead of a known role."""
    stated = next((item[key] for key in ("role", "from") if key in item), None)
    if stated is None:
        keys = listed([one_line(key, KEY_SHOWN) for key in islice(item, KEYS_SHOWN)])
        return f"it says by no role or from who speaks; it has the keys {keys}: {MAP_IT}, or {TAKE_OUT}"
    name = quoted(stated) if isinstance(stated, str) else KINDS[type(stated)]
    return f"the role {name} is none of {', '.join(USUAL)} and their other names: {MAP_IT}"


def _result_text(content: Any) -> Any:
    """Return a tool's result as the JSON that a model is given, if it is neither text nor parts of one."""
    parts = isinstance(content, list) and all(
        isinstance(part, str) or (isinstance(part, dict) and "text" in part) for part in content
    )
    if content is None or isinstance(content, str) or parts:
        return content
    return json.dumps(content, ensure_ascii=False)


def _calls(item: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Return the calls of a turn in OpenAI's form, `tool_calls` or the older `function_call`."""
    calls = item.get("tool_calls")
    single = item.get("function_call")
    if calls and single:
        raise BadRow("bad_tool_call", f"{where} has both tool_calls and function_call")
    calls = need(list, calls or ([single] if single else []), f"{where} tool_calls", "bad_tool_call")
    return [read_call(call, f"{where} tool_calls {number}") for number, call in enumerate(calls, start=1)]


def _parse_calls(content: Any, where: str) -> list[dict[str, Any]]:
    """Return the calls in the text of a turn `function_call`: one object, or a list of them."""
    value = content
    if isinstance(content, str):
        try:
            tagged = find_calls(content)
            value = tagged.calls if tagged and not tagged.before else value_of(content.strip())
        except ValueError:
            raise BadRow("bad_tool_call", f"{where} is not strict JSON, nor a Python literal") from None
    return [
        read_call(call, f"{where} call {number}")
        for number, call in enumerate(value if isinstance(value, list) and value else [value], start=1)
    ]


def read_call(call: Any, where: str) -> dict[str, Any]:
    """Return a call in OpenAI's form. Nulls outside of its arguments count as missing."""
    call = without_nulls(need(dict, call, where, "bad_tool_call"))
    function = call.get("function", call)
    identity = call.get("id")
    if call.get("type") not in ("function", None) or not isinstance(function, dict):
        raise BadRow("bad_tool_call", f"{where} is not a call of a function")
    function = without_nulls(function)
    name = function.get("name")
    arguments = function.get("arguments", function.get("parameters"))
    if not isinstance(name, str) or not name:
        raise BadRow("bad_tool_call", f"{where} has no name")
    if isinstance(arguments, str):
        # Both null and "" mean no arguments.
        arguments = from_json(arguments.strip() or "null", f"{where} arguments", "bad_tool_call")
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, dict):
        raise BadRow("bad_tool_call", f"{where}: arguments want an object")
    if not isinstance(identity, str | None):
        raise BadRow("bad_tool_call", f"{where}: id wants text")
    result: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return result | {"id": identity} if identity else result


def _tool(tool: Any, where: str) -> dict[str, Any]:
    """Return a tool in OpenAI's form, also from Anthropic's (`input_schema`) and MCP's (`inputSchema`). Its
    nulls stay for the rule `nulls`, except a null `function`.
    """
    need(dict, tool, where, "bad_shape")
    function = tool if tool.get("function") is None else tool["function"]
    name = function.get("name") if isinstance(function, dict) else None
    types = ("function", None)
    if function is tool and any(isinstance(tool.get(key), dict) for key in SCHEMAS):
        types = ("custom", None)
        tool = {SCHEMAS.get(key, key): value for key, value in tool.items() if key not in UNSHOWN}
        function = tool
    if not isinstance(name, str) or not name or tool.get("type") not in types:
        raise BadRow("bad_shape", f"{where} is not a function with a name")
    unread = [key for key in OTHER_SCHEMAS if function.get(key)]
    if unread and not function.get("parameters"):
        raise BadRow("bad_shape", f"{where}: {unread[0]} is not read: write a JSON Schema below parameters")
    rest = {key: value for key, value in tool.items() if key != "type" and (key, value) != ("function", None)}
    return {"type": "function"} | (rest if function is not tool else {"function": rest})
