"""Gemini's `contents`: roles `user` and `model`, parts with text, calls of functions and their responses.

After the Gemini API v1beta (`Content`, `Part`, `FunctionCall`, `FunctionResponse`, `Tool`,
<https://ai.google.dev/api/caching#Content>, 2025-06 to 2026-10) and the tuning files of Vertex AI. Keys are
in camel case there, in snake case in the Python library; both are read.
"""

from typing import Any

from pipeline.chat.rows import BadRow
from pipeline.core.jsonl import lax_text
from pipeline.intake.wire.draft import Draft, call_of
from pipeline.intake.wire.shapes import need

ROLES = {"user": "user", "function": "user", "model": "model", "assistant": "model"}
# Keys of a part without content, next to its text.
HARMLESS = ("thought", "thoughtSignature", "thought_signature")
TYPES = frozenset(("STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL"))


def turns_of_contents(value: Any, where: str) -> list[dict[str, Any]]:
    """Return the turns of `contents`. Raises `BadRow` for a part that no row can contain."""
    draft = Draft()
    contents = [value] if isinstance(value, dict) else need(list, value, where, "bad_shape")
    for number, content in enumerate(contents, start=1):
        place = f"{where} {number}"
        role = need(dict, content, place, "bad_shape").get("role") or "user"
        if not isinstance(role, str) or role not in ROLES:
            raise BadRow("bad_role", f"{place}: the role is none of {', '.join(ROLES)}")
        for index, part in enumerate(
            need(list, content.get("parts"), f"{place} parts", "bad_shape"), start=1
        ):
            _add_part(draft, ROLES[role], need(dict, part, place, "bad_shape"), f"{place}: part {index}")
    return draft.turns


def system_of(value: Any) -> str:
    """Return the text of `systemInstruction`, which is text or a content."""
    if isinstance(value, str):
        return value
    parts = value.get("parts") if isinstance(value, dict) else value
    if isinstance(parts, dict):
        parts = [parts]
    texts = []
    for part in need(list, parts, "systemInstruction", "bad_shape"):
        words = part.get("text") if isinstance(part, dict) else part
        if not isinstance(words, str):
            raise BadRow("content_not_text", "systemInstruction is not text")
        texts.append(words)
    return "\n".join(texts)


def tools_of(value: Any) -> list[dict[str, Any]]:
    """Return the functions of Gemini's tools as OpenAI's. Raises `BadRow` for tools that the service runs."""
    functions = []
    for number, tool in enumerate(need(list, value, "tools", "bad_shape"), start=1):
        stated = need(dict, tool, f"tools {number}", "bad_shape")
        declared = stated.get("functionDeclarations", stated.get("function_declarations"))
        if not isinstance(declared, list):
            raise BadRow("unsupported_field", f"tools {number} is run by the service, and would be lost")
        functions += [_function(declaration) for declaration in declared if isinstance(declaration, dict)]
    return functions


def _function(declared: dict[str, Any]) -> dict[str, Any]:
    schema = declared.get("parametersJsonSchema", declared.get("parameters_json_schema"))
    schema = schema or _json_schema(declared.get("parameters"))
    named = {key: declared[key] for key in ("name", "description") if declared.get(key)}
    return named | ({"parameters": schema} if schema else {})


def _json_schema(schema: Any) -> Any:
    """Return a schema with the types of JSON Schema, which are in small letters."""
    if isinstance(schema, list):
        return [_json_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    converted = dict[str, Any]()
    for key, inner in schema.items():
        if key == "type" and isinstance(inner, str) and inner in TYPES:
            converted[key] = inner.lower()
        else:
            converted[key] = _json_schema(inner)
    return converted


def _add_part(draft: Draft, role: str, part: dict[str, Any], where: str) -> None:
    stated = {key: value for key, value in part.items() if value is not None and key not in HARMLESS}
    call = stated.get("functionCall", stated.get("function_call"))
    response = stated.get("functionResponse", stated.get("function_response"))
    if role == "model" and isinstance(call, dict):
        draft.answer(call=call_of(call.get("name"), call.get("args"), call.get("id")))
    elif role == "user" and isinstance(response, dict):
        result = response.get("response")
        words = result if isinstance(result, str) else lax_text(result)
        draft.result(response.get("id"), words, response.get("name"))
    elif stated and (len(stated) > 1 or not isinstance(stated.get("text"), str)):
        raise BadRow("content_not_text", f"{where} is not text ({', '.join(sorted(stated))})")
    elif role == "user":
        draft.say("user", stated.get("text", ""))
    elif part.get("thought") is True:
        draft.answer(reasoning=stated.get("text", ""))
    else:
        draft.answer(stated.get("text", ""))
