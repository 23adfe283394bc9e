"""Parser of chats that were rendered to text before: their dialects, and the turns of such a text.

A dialect's `header` begins a turn and names its role. A text is in a dialect if its first word is a header
(after white space, tokens that begin a text, and the dialect's own first sentence). A text that only mentions
a marker further on is not. Dialects whose markers are plain words require an answer too, because a novel or a
log may begin with `USER:`. Then all of the text must be turns, or it is rejected: nothing is guessed.
"""

import re
from typing import NamedTuple

from pipeline.chat.rows import BadRow
from pipeline.intake.rows.turns import ROLES, Turn

BEGIN_TOKENS = ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<|endoftext|>", "[gMASK]", "<sop>")
END_TOKENS = ("</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>")
MOST_TOKENS = 4  # tokens after a turn: its end, the end of the text, the beginning of the next one
MORE_ROLES = {  # roles of dialects, in addition to `ROLES`
    "chatbot": "assistant",
    "instruction": "user",
    "context": "user",
    "response": "assistant",
    "answer": "assistant",
    "function response": "tool",
    "[inst]": "user",
    "[/inst]": "assistant",
    "[system_prompt]": "system",
}
CONTINUES = ("input", "context")  # headers that continue the question before them
LEAD = re.compile(rf"\s*(?:(?:{'|'.join(map(re.escape, BEGIN_TOKENS))})\s*)*")
# Beginnings of all dialects and `BEGIN_TOKENS`, so that most texts are checked quickly.
MAYBE = re.compile(
    r"\s*(?:[<\[]|### |USER:|User:|SYSTEM:|Human:|Below is an |A chat between |The (?:following|conver))"
)
SYSTEM_IN_QUESTION = re.compile(r"\s*<<SYS>>(.*?)<</SYS>>", re.DOTALL)
# Llama 3.1's template writes this in front of every system turn.
DATES = re.compile(r"Cutting Knowledge Date: [^\n]*\nToday Date: [^\n]*\n*")
ALPACA_SENTENCE = r"Below is an instruction that describes a task[^\n]*\n+"
VICUNA_SENTENCE = r"A chat between a curious [^\n]*"
BAIZE_SENTENCE = r"The (?:following is a )?conversation between [^\n]*"
BARS = "system|user|assistant|tool|observation|prompter|human|bot|model"


class Dialect(NamedTuple):
    """Turns of one family of templates, as regular expressions."""

    name: str
    first: str  # beginning of the text
    header: str  # beginning of a turn; its group is the role
    ends: tuple[str, ...] = END_TOKENS  # ends of a turn, as plain text
    marks: str = r"(?!)"  # further markers, which no turn may contain
    ends_each: bool = True  # True if only the last turn may lack its end
    words: bool = False  # True if the markers are plain words
    opening: str = "()"  # text in front of the first turn; its group is a system turn


DIALECTS = (
    Dialect(
        "ChatML",
        r"<\|im_(?:start|user|assistant|system)\|>",
        r"<\|im_(?:start|user|assistant|system)\|>(\w{1,20}) ?(?:\r?\n|<\|im_sep\|>|<\|im_middle\|>|\Z)",
        ("<|im_end|>",),
        r"<\|im_\w+\|>",
    ),
    Dialect(
        "Llama 3",
        r"<\|start_header_id\|>",
        r"<\|start_header_id\|>(\w{1,20})<\|end_header_id\|>",
        ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
        r"<\|(?:start|end)_header_id\|>",
    ),
    Dialect(
        "Llama 4",
        r"<\|header_start\|>",
        r"<\|header_start\|>(\w{1,20})<\|header_end\|>",
        ("<|eot|>", "<|eom|>", "<|end_of_text|>"),
        r"<\|header_(?:start|end)\|>",
    ),
    Dialect(
        "Gemma",
        r"<start_of_turn>|<\|turn>",
        r"(?:<start_of_turn>|<\|turn>)(\w{1,20})(?:\r?\n|\Z)",
        ("<end_of_turn>", "<turn|>"),
        r"<start_of_turn>|<\|turn>|<\|channel>",
    ),
    Dialect(
        "Granite",
        r"<\|start_of_role\|>",
        r"<\|start_of_role\|>(\w{1,20})<\|end_of_role\|>",
        ("<|end_of_text|>",),
        r"<\|(?:start|end)_of_role\|>",
    ),
    Dialect(
        "Command",
        r"<\|START_OF_TURN_TOKEN\|>",
        r"<\|START_OF_TURN_TOKEN\|><\|(USER|CHATBOT|SYSTEM)_TOKEN\|>",
        ("<|END_OF_TURN_TOKEN|>",),
        r"<\|(?:START|END)_\w+\|>",
    ),
    Dialect(
        "gpt-oss",
        r"<\|start\|>",
        r"<\|start\|>(\w{1,20})(?:<\|channel\|>final)?<\|message\|>",
        ("<|end|>", "<|return|>"),
        r"<\|(?:start|channel|message|call|constrain)\|>",
    ),
    Dialect(  # dialect of TinyLlama, Tulu, GLM and OpenAssistant too
        "Phi or Zephyr",
        rf"<\|(?:{BARS})\|>",
        rf"<\|({BARS})\|>",
        ("<|end|>", "<|eot|>", *END_TOKENS),
        ends_each=False,
    ),
    Dialect(
        "Llama 2 or Mistral",
        r"\[/?INST\]|\[SYSTEM_PROMPT\]|<<SYS>>|\[AVAILABLE_TOOLS\]",
        r"(\[/?INST\]|\[SYSTEM_PROMPT\]) ?",
        ("[/SYSTEM_PROMPT]", *END_TOKENS),
        r"<</?SYS>>|\[(?:AVAILABLE_TOOLS|TOOL_RESULTS)\]",
        ends_each=False,
    ),
    Dialect(
        "DeepSeek",
        r"(?:<｜begin▁of▁sentence｜>[^<]*)?<｜(?:User|Assistant)｜>",
        r"<｜(User|Assistant)｜>",
        ("<｜end▁of▁sentence｜>",),
        r"<｜[\w▁]+｜>",
        ends_each=False,
        opening=r"(?:<｜begin▁of▁sentence｜>)?([^<]*)",
    ),
    Dialect(
        "Baize",
        rf"(?:{BAIZE_SENTENCE}\s+)?\[\|(?:Human|AI)\|\]",
        r"\[\|(Human|AI)\|\] ?",
        ends_each=False,
        opening=f"({BAIZE_SENTENCE})?",
    ),
    Dialect(
        "Guanaco",
        r"### (?:Human|User|System):",
        r"### (Human|User|Assistant|System): ?",
        ends_each=False,
        words=True,
    ),
    Dialect(
        "Alpaca",
        rf"(?:{ALPACA_SENTENCE})?### Instruction:?[ \t]*\r?\n",
        r"(?m:^)### (Instruction|Input|Context|Response|Answer|Output):?[ \t]*(?:\r?\n|\Z)",
        ends_each=False,
        words=True,
        opening=f"()(?:{ALPACA_SENTENCE})?",
    ),
    Dialect(
        "Vicuna",
        rf"(?:{VICUNA_SENTENCE}?\s)?(?:USER|SYSTEM): ",
        r"(?:(?<=\s)|(?<=</s>)|\A)(USER|ASSISTANT|SYSTEM|FUNCTION RESPONSE):(?: |(?=\n|\Z))",
        ends_each=False,
        words=True,
        opening=f"({VICUNA_SENTENCE})?",
    ),
    Dialect(
        "Human and Assistant",
        r"(?:Human|User):",
        r"(?m:^)(Human|User|Assistant|AI):(?: |(?=\r?\n|\Z))",
        ends_each=False,
        words=True,
    ),
)
# Tokens after the last word of an answer that are the end of a turn or of the text.
ENDS = tuple({end: None for dialect in DIALECTS for end in dialect.ends if not end.startswith("[")})
REMEDY = (
    "write messages with role and content, or two or more segments if the markers are to be trained as text"
)


class Rendered(NamedTuple):
    """Turns of a rendered chat. `ended` is false if the last one has no end, so that it may continue."""

    dialect: Dialect
    turns: list[Turn]
    ended: bool


class _Reader(NamedTuple):
    """A dialect with its patterns compiled."""

    dialect: Dialect
    first: re.Pattern[str]
    header: re.Pattern[str]
    marks: re.Pattern[str]
    opening: re.Pattern[str]


READERS = tuple(
    _Reader(
        dialect,
        re.compile(dialect.first),
        re.compile(dialect.header),
        re.compile("|".join([dialect.header, dialect.marks, *map(re.escape, dialect.ends)])),
        re.compile(rf"{dialect.opening}\s*\Z"),
    )
    for dialect in DIALECTS
)


def is_rendered(text: str) -> bool:
    """Return True if the text begins like a rendered chat."""
    return _reader_of(text) is not None


def parse(text: str, place: str) -> Rendered | None:
    """Return the turns of a rendered chat, None for another text. Raises `BadRow` for a text that begins like
    one but is not one as a whole.
    """
    reader = _reader_of(text)
    return _parsed(reader, text, place) if reader else None


def parse_part(text: str, place: str) -> Rendered | None:
    """Return the result of `parse` for the text of one turn of a chat.

    There, plain words are markers only if the text ends with the header of the answer, as a prompt does.
    Otherwise it may be an example.
    """
    reader = _reader_of(text)
    if reader is None:
        return None
    if reader.dialect.words:
        *_, last = reader.header.finditer(text)
        if _role(last[1]) != "assistant" or text[last.end() :].strip():
            return None
    return _parsed(reader, text, place)


def _parsed(reader: _Reader, text: str, place: str) -> Rendered:
    opening, *pieces = reader.header.split(text[_lead(text) :])
    lead = reader.opening.match(opening)
    if lead is None:
        raise _unclear(reader, place, "a marker in it begins no turn of a role that is known")
    system_text = (lead[1] or "").strip()
    turns: list[Turn] = [{"role": "system", "content": system_text}] if system_text else []
    ended = True
    for name, content in zip(pieces[::2], pieces[1::2], strict=True):
        if reader.dialect.ends_each and not ended:
            raise _unclear(reader, place, "a turn in the middle has no end")
        content, ended = _without_end(content, reader.dialect.ends)
        system = SYSTEM_IN_QUESTION.match(content)
        if reader.marks.search(content, system.end() if system else 0):
            raise _unclear(reader, place, "a turn holds a marker")
        if name.lower() in CONTINUES:
            if not turns or turns[-1]["role"] != "user":
                raise _unclear(reader, place, "an input follows no instruction")
            turns[-1]["content"] = "\n\n".join(filter(None, (turns[-1]["content"], content.strip())))
            continue
        turns += _turns(reader, place, name, content)
    if not reader.dialect.ends_each:
        _need_alternation(reader, place, turns)
    return Rendered(reader.dialect, turns, ended)


def without_ends(text: str) -> str:
    """Return the text without a token of `ENDS` after its last word, and then without one that begins a text.

    A text that contains such a token elsewhere too is about it, and stays.
    """
    if not text.rstrip().endswith(ENDS):
        return text
    body, _ = _without_end(text, ENDS)
    body = body[_lead(body) :] if body.lstrip().startswith(BEGIN_TOKENS) else body
    return text if any(token in body for token in (*ENDS, *BEGIN_TOKENS)) else body


def _lead(text: str) -> int:
    """Return the number of characters before the first word."""
    lead = LEAD.match(text)
    return lead.end() if lead else 0


def _reader_of(text: str) -> _Reader | None:
    if not MAYBE.match(text):
        return None
    start = _lead(text)
    reader = next((reader for reader in READERS if reader.first.match(text, start)), None)
    if reader is None or not reader.dialect.words:
        return reader
    roles = (_role(header[1]) for header in reader.header.finditer(text))
    return reader if "assistant" in roles else None


def _role(name: str) -> str | None:
    return MORE_ROLES.get(name.lower(), ROLES.get(name.lower()))


def _without_end(content: str, ends: tuple[str, ...]) -> tuple[str, bool]:
    """Return the text without the part after its last word, and True if that was the end of a turn."""
    ended = False
    content = content.rstrip()
    for _ in range(MOST_TOKENS):
        token = next(filter(content.endswith, (*ends, *END_TOKENS, *BEGIN_TOKENS)), None)
        if token is None:
            break
        ended = ended or token in ends
        content = content.removesuffix(token).rstrip()
    return content, ended


def _turns(reader: _Reader, place: str, name: str, content: str) -> list[Turn]:
    """Return the turn, and before it the system turn that Llama 2 writes into the first question. An empty
    system turn is left out.
    """
    role = _role(name)
    if role is None:
        raise _unclear(reader, place, "a turn's role is not known")
    system = SYSTEM_IN_QUESTION.match(content)
    if system:
        content = content[system.end() :].lstrip()
    if role == "system":
        content = DATES.sub("", content)
    content = content.lstrip("\r\n")  # The first line of code may be indented.
    if reader.dialect.words or name.startswith("["):
        content = content.lstrip()
    parts = [("system", system[1].strip())] if system else []
    parts.append((role, content))
    return [{"role": role, "content": text} for role, text in parts if text or role != "system"]


def _need_alternation(reader: _Reader, place: str, turns: list[Turn]) -> None:
    """Check that user and assistant alternate: a marker that a turn only mentions would end it."""
    before = "assistant"
    for role in (turn["role"] for turn in turns if turn["role"] != "system"):
        if role == before != "tool":
            raise _unclear(reader, place, "user and assistant do not take turns")
        before = role


def _unclear(reader: _Reader, place: str, why: str) -> BadRow:
    name = reader.dialect.name
    return BadRow("markup", f"{place} begins like a chat rendered for {name}, but {why}: {REMEDY}")
