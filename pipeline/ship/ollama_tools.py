"""Write tools in a template for Ollama: extract the texts that the base's Jinja template renders around them,
and write a Go template with the same texts.

Ollama writes the JSON of a tool and of a call's arguments itself: without spaces, a tool's keys in an order
of its own and without those that it does not know. Everything else is the text of training, proven by
rendering.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message], Sequence[Message] | None], str | None]

OPENING = "<|im_start|>"
END = "<|im_end|>\n"
SYSTEM: Message = {"role": "system", "content": "system text"}
USER: Message = {"role": "user", "content": "question"}
FUNCTIONS: list[Message] = [
    {
        "name": name,
        "description": f"Description of {name}.",
        "parameters": {"type": "object", "properties": {key: {"type": "string"}}, "required": [key]},
    }
    for name, key in (("first_tool", "größe"), ("second_tool", "width"))
]
TOOLS: list[Message] = [{"type": "function", "function": function} for function in FUNCTIONS]
CALLS: list[Message] = [
    {"type": "function", "function": {"name": function["name"], "arguments": {"x": value, "y": [1, 2.5]}}}
    for function, value in zip(FUNCTIONS, ("ä<b>", "z"), strict=True)
]
RESULTS: list[Message] = [{"role": "tool", "content": text} for text in ("result one", "result two")]


def _calling(content: str, *calls: Message) -> Message:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


CALLED = [SYSTEM, USER, _calling("", CALLS[0]), *RESULTS]
PROOFS: list[list[Message]] = [
    [SYSTEM, USER],
    [USER],
    [USER, _calling("", CALLS[1]), RESULTS[0]],
    CALLED,
    [SYSTEM, USER, _calling("text", *CALLS), *RESULTS],
    [*CALLED, {"role": "assistant", "content": "answer"}, USER],
]


class ToolTexts(NamedTuple):
    """Texts around tools, calls and results in ChatML."""

    alone: str  # text before the first tool, in a chat without a system turn
    joined: str  # text between a system turn's and the first tool
    between: str  # text between two tools
    after: str  # text from the last tool to the turn's end
    call: tuple[str, str, str]  # texts before a call's name, before its arguments, after these
    result: tuple[
        str, str, str
    ]  # texts before the first of neighbouring results, between two, after the last


def tool_texts(render: Render) -> ToolTexts | None:
    """Return the texts of a template that renders plain ChatML, None if it writes tools in another way.

    `render` renders a conversation, with or without tools, by the template.
    """
    texts = _extracted(render)
    if texts is None or any(not _is_plain(text) for text in _flat(texts)):
        return None
    proven = all(render(chat, TOOLS) == with_tools(chat, FUNCTIONS, texts) for chat in PROOFS)
    return texts if proven else None


def _extracted(render: Render) -> ToolTexts | None:
    """Find the texts between known parts in three renderings; None if a known part is missing."""
    first, second = (_dumped(function) for function in FUNCTIONS)
    opening = f"{OPENING}system\n"
    end = END + f"{OPENING}user\n"
    joined = _pieces(render([SYSTEM, USER], TOOLS), opening + SYSTEM["content"], first, second, end)
    alone = _pieces(render([USER], TOOLS), opening, first, second, end)
    function = CALLS[0]["function"]
    called = _pieces(
        render(CALLED, TOOLS),
        f"{USER['content']}{END}{OPENING}assistant",
        function["name"],
        _dumped(function["arguments"]),
        f"{END}{OPENING}",
        *(result["content"] for result in RESULTS),
        f"{END}{OPENING}assistant\n",
    )
    if not (joined and alone and called):
        return None
    _, before_name, before_arguments, after_call, before_result, between, after_result, _ = called
    return ToolTexts(
        alone=alone[1],
        joined=joined[1],
        between=joined[2],
        after=joined[3],
        call=(before_name, before_arguments, after_call),
        result=(before_result, between, after_result),
    )


def _pieces(text: str | None, *marks: str) -> list[str]:
    """Return the texts before, between and after marks that follow each other; none if one is missing."""
    pieces = []
    rest = text or ""
    for mark in marks:
        piece, separator, rest = rest.partition(mark)
        if not separator:
            return []
        pieces.append(piece)
    return [*pieces, rest]


def _dumped(value: Any) -> str:
    """Return JSON as chat templates write it (`tojson`)."""
    return json.dumps(value, ensure_ascii=False)


def _flat(texts: ToolTexts) -> list[str]:
    return [texts.alone, texts.joined, texts.between, texts.after, *texts.call, *texts.result]


def _is_plain(text: str) -> bool:
    """Return False for a text in which Go would find an action, or Ollama the end of its value."""
    return "{{" not in text and not text.endswith("{") and '"""' not in text


def with_tools(messages: Sequence[Message], functions: Sequence[Message], texts: ToolTexts) -> str:
    """Return the conversation with tools as `go_template` writes it, except for the spelling of JSON."""
    text = ""
    before = ""
    opened, between, closed = texts.result
    for number, message in enumerate(messages):
        role = message["role"]
        content = message["content"]
        if before == "tool" and role != "tool":
            text += closed + END
        if number == 0:
            start = content + texts.joined if role == "system" else texts.alone
            declared = texts.between.join(map(_dumped, functions))
            text += f"{OPENING}system\n{start}{declared}{texts.after}{END}"
        if role == "assistant":
            calls = [call["function"] for call in message.get("tool_calls", [])]
            answer = f"\n{content}" if content or not calls else ""
            text += f"{OPENING}assistant{answer}{''.join(_call(call, texts) for call in calls)}{END}"
        elif role == "tool":
            text += (between if before == "tool" else OPENING + opened) + content
        elif number or role != "system":
            text += f"{OPENING}{role}\n{content}{END}"
        before = role
    return text + (closed + END if before == "tool" else "") + f"{OPENING}assistant\n"


def _call(call: Message, texts: ToolTexts) -> str:
    before_name, before_arguments, after = texts.call
    return f"{before_name}{call['name']}{before_arguments}{_dumped(call['arguments'])}{after}"


def go_template(texts: ToolTexts) -> str:
    """Return ChatML with tools as a Go template.

    Ollama looks for tools if a template names `.Tools`, and reads calls in an answer by the text that follows
    `if .ToolCalls`.
    """
    before_name, before_arguments, after_call = texts.call
    opened, between, closed = texts.result
    return "".join(
        (
            '{{ $before := "" }}{{ range $number, $_ := .Messages }}',
            # The results of tools end before another turn.
            '{{ if and (eq $before "tool") (ne .Role "tool") }}',
            f"{closed}{END}{{{{ end }}}}",
            # The tools, in the system's turn.
            f"{{{{ if and (eq $number 0) $.Tools }}}}{OPENING}system\n",
            f'{{{{ if eq .Role "system" }}}}{{{{ .Content }}}}{texts.joined}',
            f"{{{{ else }}}}{texts.alone}{{{{ end }}}}",
            f"{{{{ range $place, $_ := $.Tools }}}}{{{{ if $place }}}}{texts.between}{{{{ end }}}}",
            f"{{{{ .Function }}}}{{{{ end }}}}{texts.after}{END}{{{{ end }}}}",
            # Answers and calls.
            f'{{{{ if eq .Role "assistant" }}}}{OPENING}assistant',
            "{{ if or .Content (not .ToolCalls) }}\n{{ .Content }}{{ end }}",
            f"{{{{ if .ToolCalls }}}}{{{{ range .ToolCalls }}}}{before_name}{{{{ .Function.Name }}}}",
            f"{before_arguments}{{{{ .Function.Arguments }}}}{after_call}{{{{ end }}}}{{{{ end }}}}{END}",
            # Results.
            f'{{{{ else if eq .Role "tool" }}}}{{{{ if eq $before "tool" }}}}{between}',
            f"{{{{ else }}}}{OPENING}{opened}{{{{ end }}}}{{{{ .Content }}}}",
            # Other turns. The first system turn is written with the tools, if there are any.
            '{{ else if or $number (ne .Role "system") (not $.Tools) }}',
            f"{OPENING}{{{{ .Role }}}}\n{{{{ .Content }}}}{END}{{{{ end }}}}",
            '{{ $before = .Role }}{{ end }}{{ if eq $before "tool" }}',
            f"{closed}{END}{{{{ end }}}}{OPENING}assistant\n",
        )
    )
