"""Text of conversations by training's template and by llama-server's, compared byte for byte.

llama-server makes three rewrites by design, with any template (llama.cpp 0c1e57098). They are applied to the
input of training's renderer. Numbers with a fraction keep six digits (`common/jinja/value.cpp`). A tool keeps
name, description and parameters, and gets the ones it lacks (`common_chat_tools_to_json_oaicompat`). `trim`
removes only ASCII white space.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline.chat.rendering import Unrenderable, implied_ids, render
from pipeline.chat.template_probe import Message
from pipeline.chat.tokens import chat_request
from pipeline.core.checks import Check
from pipeline.core.errors import ToolError
from pipeline.core.text import common_start
from pipeline.gguf.file import check_gguf
from pipeline.llamacpp.server import Server
from pipeline.models.base_header import named_templates
from pipeline.stages.parity.check import exact, first_difference
from pipeline.stages.parity.probe_inputs import Conversation

FIRST_STAND_IN = 0xF0000  # a private-use plane of Unicode, which no text and no template uses
TITLE = "Template text"
AGAIN = {"role": "user", "content": "And then?"}


class Rewrites:
    """Conversations as llama-server reads them, with stand-ins for content that JSON or templates change."""

    def __init__(self) -> None:
        self.stand_ins: dict[str, str] = {}
        self.reasons: set[str] = set()

    def tool(self, tool: dict[str, Any]) -> dict[str, Any]:
        """Return the definition with the three keys that llama-server keeps, in its order."""
        function = tool["function"]
        kept = {
            "name": function["name"],
            "description": function.get("description", ""),
            "parameters": function.get("parameters", {}),
        }
        if list(kept) != list(function) or list(tool) != ["type", "function"]:
            self.reasons.add("a tool that has not just name, description and parameters")
        return {"type": "function", "function": kept | {"parameters": self.tree(kept["parameters"])}}

    def turn(self, message: Message) -> Message:
        """Return the turn with stand-ins for fractions in its calls and for white space beyond ASCII."""
        changed = message | {
            key: self.words(message[key]) for key in ("content", "reasoning_content") if key in message
        }
        if "tool_calls" in message:
            changed["tool_calls"] = [
                each
                | {"function": each["function"] | {"arguments": self.tree(each["function"]["arguments"])}}
                for each in message["tool_calls"]
            ]
        return changed

    def words(self, text: str) -> str:
        """Return the text with stand-ins for white space beyond ASCII, which no `trim` removes."""
        if text == text.strip() or text.strip() == text.strip(" \t\n\r\v\f"):
            return text
        self.reasons.add("white space beyond ASCII at the ends")
        return "".join(
            self.stand_in(char) if char.isspace() and not char.isascii() else char for char in text
        )

    def tree(self, value: Any) -> Any:
        """Return a JSON value with stand-ins for numbers with a fraction."""
        if isinstance(value, float) and f"{value:g}" != repr(value):
            self.reasons.add("numbers with a fraction")
            return self.stand_in(f"{value:g}")
        if isinstance(value, dict):
            return {key: self.tree(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.tree(item) for item in value]
        return value

    def stand_in(self, text: str) -> str:
        """Return a character that represents `text` until `put_back`."""
        character = chr(FIRST_STAND_IN + len(self.stand_ins))
        self.stand_ins[character] = text
        return character

    def put_back(self, text: str) -> str:
        """Return the text with the stand-ins replaced by what they represent.

        Numbers lose the quotes of JSON strings.
        """
        for character, stands_for in self.stand_ins.items():
            text = text.replace(f'"{character}"', stands_for).replace(character, stands_for)
        return text


@dataclass(frozen=True)
class Text:
    """One conversation as text on both sides, with or without the generation prompt.

    `rewritten` names what llama-server rewrites by design, if the texts differ in nothing else.
    """

    conversation: Conversation
    prompt: bool
    complete: str  # training's text, with a beginning of text that llama-server adds to the tokens itself
    ours: str
    theirs: str
    rewritten: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        """True if the texts differ for no known reason."""
        return self.ours != self.theirs and not self.rewritten


@dataclass(frozen=True)
class Texts:
    """All texts that were compared, and how many were not: refused by the template, or different although
    training would refuse the row.
    """

    compared: list[Text]
    left_out: Counter[str]


def served_texts(tokenizer: Any, server: Server, conversations: Iterable[Conversation]) -> Texts:
    """Render every conversation by training's template and by llama-server's `/apply-template`.

    Each is rendered as a question and completely. llama-server removes a beginning of text that it adds to
    the tokens itself; it is removed here too.
    """
    compared: list[Text] = []
    left_out: Counter[str] = Counter()
    # llama-server tokenizes an empty text to a beginning of text if it puts one before every prompt.
    begin = (tokenizer.bos_token or "") if server.tokens("") else ""
    for conversation, prompt in forms(conversations):
        try:
            ours = training_text(tokenizer, conversation, prompt)
        except Unrenderable:
            left_out["refused by the template"] += 1
            continue
        text = Text(
            conversation, prompt, ours, ours.removeprefix(begin), server_text(server, conversation, prompt)
        )
        if text.differs:
            text = replace(text, rewritten=rewritten(tokenizer, text, begin))
        if text.differs and not trainable(tokenizer, conversation):
            left_out["not shown whole by the template, so never trained"] += 1
            continue
        compared.append(text)
    return Texts(compared, left_out)


def template_text(texts: Texts, tokenizer: Any, f16: Path) -> Check:
    """Return the texts' parity check, those that llama-server rewrites by design, and the likely cause."""
    different = [text for text in texts.compared if text.differs]
    own_way = Counter(reason for text in texts.compared for reason in text.rewritten)
    counts = [f"{count} {what}" for what, count in sorted(texts.left_out.items())]
    counts += [
        f"{count} with {what}, which llama-server shows in its own way"
        for what, count in sorted(own_way.items())
    ]
    detail = "; ".join([f"{len(texts.compared)} texts compared", *counts])
    title = TITLE
    what = "conversations whose text differs between training and llama-server"
    if not texts.compared:
        return Check(title, "not measured", detail, what=what)
    why = ""
    if different:
        detail += f"; first difference: {first_difference(different[0].ours, different[0].theirs)}"
        why = cause(different, tokenizer, f16)
    return replace(
        exact(title, count=len(different), unit="texts", sentence=detail, cause=why, what=what),
        figures={
            "compared": float(len(texts.compared)),
            "left_out": float(texts.left_out.total()),
            "rewritten": float(sum(bool(text.rewritten) for text in texts.compared)),
            "rewritten_held_out": float(
                sum(bool(text.rewritten) and text.conversation.held_out for text in texts.compared)
            ),
        },
    )


def cause(different: list[Text], tokenizer: Any, f16: Path) -> str:
    """Return one sentence: what differs in the server's text, and whether the GGUF has another template."""
    template = in_use(named_templates(check_gguf(f16).fields))
    if template is None:
        return f"{f16.name} has no chat template: run the stages merge and convert again."
    how = "; ".join(list(dict.fromkeys(kind(text) for text in different))[:2])
    if template != in_use(tokenizer.chat_template):
        return (
            f"The chat template of {f16.name} is not the one of training ({how}): run the stages merge "
            "and convert again."
        )
    first = different[0]
    extras: dict[str, dict[str, Any]] = {
        "switches thinking on (enable_thinking)": {"enable_thinking": True},
        "says today's date (date_string)": {"date_string": f"{datetime.now():%d %b %Y}"},
    }
    for habit, more in extras.items():
        if training_text(tokenizer, first.conversation, first.prompt, **more).endswith(first.theirs):
            return (
                f"llama-server {habit}, which training does not: train with a template "
                "that does not ask for it."
            )
    return (
        f"llama-server renders the same chat template in another way ({how}): take a template without "
        "what differs there."
    )


def in_use(templates: Any) -> str | None:
    """Return a chat template as text; None if there is none.

    A dict or the list of tokenizer_config.json may contain more than one template. Of these the one for chats
    and then the one for tools are returned, the only names that transformers and llama-server look for.
    """
    if isinstance(templates, list):
        templates = {entry["name"]: entry["template"] for entry in templates}
    if isinstance(templates, dict):
        return "\0".join(templates[name] for name in ("default", "tool_use") if name in templates) or None
    return templates and str(templates)


def kind(text: Text) -> str:
    """Describe how llama-server's text differs from training's."""
    trained, served = text.ours, text.theirs
    if trained.split() and "".join(trained.split()) == "".join(served.split()):
        extra = len(served) - len(trained)
        longer = f"its white space is {abs(extra)} characters {'longer' if extra > 0 else 'shorter'}"
        return longer if extra else "it has other white space"
    start = common_start(trained, served)
    end = common_start(trained[start:][::-1], served[start:][::-1])
    less, more = trained[start : len(trained) - end], served[start : len(served) - end]
    if less and more:
        return "it says other words"
    word, part = ("more", more) if more else ("less", less)
    has_system = text.conversation.messages[0]["role"] == "system"
    if "system" in part and not has_system:
        return f"it has a default system prompt {word}"
    return f"it has {part[:30]!r} {word}"


def forms(conversations: Iterable[Conversation]) -> Iterator[tuple[Conversation, bool]]:
    """Yield each conversation as a question with the generation prompt, and completely without it.

    A complete conversation that ends in an answer gets one more user turn: otherwise llama-server would treat
    that answer as one to be continued.
    """
    for conversation in conversations:
        turns = conversation.messages
        answered = turns[-1]["role"] == "assistant"
        yield replace(conversation, messages=turns[:-1] if answered else turns), True
        yield replace(conversation, messages=[*turns, AGAIN] if answered else turns), False


def training_text(tokenizer: Any, conversation: Conversation, prompt: bool, **more: Any) -> str:
    """Return the text of training's template with the variables `more`.

    Raises `Unrenderable` if it refuses.
    """
    return render(
        tokenizer,
        conversation.messages,
        conversation.tools,
        add_generation_prompt=prompt,
        **settings(conversation) | more,
    )


def server_text(server: Server, conversation: Conversation, prompt: bool) -> str:
    """Return the text of llama-server, or its error message if it refuses."""
    try:
        answer = server.post(
            "/apply-template",
            chat_request(conversation.messages, conversation.tools)
            | {"add_generation_prompt": prompt, "chat_template_kwargs": settings(conversation)},
        )
    except ToolError as refusal:
        return refusal.sentence
    return str(answer["prompt"])


def settings(conversation: Conversation) -> dict[str, bool]:
    """Return the variables of the template in addition to turns and tools."""
    return {} if conversation.thinking is None else {"enable_thinking": conversation.thinking}


def trainable(tokenizer: Any, conversation: Conversation) -> bool:
    """Return True if training would accept such turns: the template shows all of them, and the reasoning of
    an answer at least if that answer is the last turn.
    """
    messages = conversation.messages
    try:
        for turn, message in enumerate(messages):
            if message.get("reasoning_content"):
                implied_ids(tokenizer, messages[: turn + 1], conversation.tools, turn)
        implied_ids(tokenizer, messages, conversation.tools, len(messages))
    except Unrenderable:
        return False
    return True


def rewritten(tokenizer: Any, text: Text, begin: str) -> tuple[str, ...]:
    """Return what llama-server rewrites by design if that explains all differences, otherwise ()."""
    rewrites = Rewrites()
    try:
        ours = training_text(
            tokenizer,
            replace(
                text.conversation,
                tools=text.conversation.tools and [rewrites.tool(each) for each in text.conversation.tools],
                messages=[rewrites.turn(message) for message in text.conversation.messages],
            ),
            text.prompt,
        )
    except Unrenderable:
        return ()
    if rewrites.put_back(ours).removeprefix(begin) != text.theirs:
        return ()
    return tuple(sorted(rewrites.reasons))
