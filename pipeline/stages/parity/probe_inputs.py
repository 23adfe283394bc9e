"""Inputs on which training and llama.cpp may differ. Conversations that users have and training sets rarely
contain are contents combined with the shapes of a template. Strings on which tokenizers differ are tokens,
Unicode blocks, digits, white space, code, emoji and real text.
"""

import random
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, product
from typing import Any

from pipeline.chat.template_probe import Message, Tools
from pipeline.chat.tokens import Row

ENOUGH = 200  # held-out chats; if at least this many are compared, so are all synthetic conversations
ALL = 100_000  # number of strings from which on all tokens and all of Unicode are included
TOGETHER = 4096  # tokens decoded per call
RUN = 8  # neighboring characters of a Unicode block per string
UNSEEN = ("Cn", "Co", "Cs")  # unassigned, private, surrogate: not text
SPACES = (" ", "\t", "\n", "\r\n", "\r", "\u00a0", "\u3000", "\u2003", "\u2028", "\u0085", "\u200b", "\ufeff")
# strings in addition to the contents of conversations
SNIPPETS = (
    "for (int i=0;i<n;++i) { a[i]+=b[i]*0x1F; } // done\n",
    "SELECT * FROM t WHERE a='b' AND c<>1e-5;",
    '<div class="x">&amp;</div>\r\n',
    '{"a": [1, 2.50, -3e+10, true, null], "b": {"c": "\\u00e9\\n"}}',
    "$ git log --oneline | grep -v '^#' > /tmp/x",
    "\\frac{a}{b} \\leq \\sqrt{x^2}",
    "| a | b |\n|---|:-:|\n| 1 | **2** |",
    "https://example.org/a_b?c=d&e=%20f#g",
    "me+you@example.org",
    "C:\\Users\\x\\y.txt",
    "a=b==c===d!=e<=f>=g->h=>i::j...k--l__m",
    "''''\"\"\"\"````~~~~!!!!????....,,,,;;;;::::",
    "==========\n----------\n**********\n##########",
)
WORDS = (
    "I'm you're he'd we'll they've it's don't",
    "I'M YOU'RE HE'D WE'LL THEY'VE IT'S DON'T",
    "'S 'T 'Re 'vE 'M 'lL 'D 'x",
    "o’clock “quoted” ‘single’ – — …",
    "Straße Ärger naïve café Çağrı Łódź",
    "Γειά σου Κόσμε",
    "ខ្មែរ ភាសា",
    "e\u0301 a\u0308\u0323 q\u0307\u0323 Z͑ͫ̓a̴l͌g̶o̷",
    "\u202eRTL\u202c \u2066iso\u2069",
    "½ ① Ⅷ x² H₂O 10℃",
    "𝕬𝖇𝖈 𝟙𝟚𝟛 𐍈 𒀀 𓀀 🄰",
    "camelCaseWord snake_case_word kebab-case SHOUTED MiXeD",
    "supercalifragilisticexpialidocious" * 3,
)
EMOJI = (
    "🙂",
    "👩\u200d💻",
    "👨\u200d👩\u200d👧\u200d👦",
    "🏳️\u200d🌈",
    "🇩🇪🇫🇷",
    "👍🏽",
    "❤️",
    "☎︎",
    "1️⃣",
    "😶\u200d🌫️",
    "🦙🦙",
    "🏴\U000e0067\U000e0062\U000e007f",
)


@dataclass(frozen=True)
class Conversation:
    """Turns with their tools. `thinking` is the template's `enable_thinking`; None if it is not set."""

    messages: list[Message]
    tools: Tools = None
    thinking: bool | None = None
    held_out: bool = False


CONTENTS = (
    "Hi",
    "",
    " ",
    "\n",
    " leading",
    "trailing ",
    "\n\nlines\n\n",
    "\ttab\t",
    "a\r\nb\rc",
    "two  spaces   three",
    "ends in newline\n",
    "naïve café – “quotes” ½ ① Straße",
    "東京でこんにちは、カタカナﾊﾝｶｸ",
    "你好，世界！《书》",
    "Привет, мир",
    "مرحبا بالعالم",
    "שלום \u202eRTL\u202c עולם",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "안녕하세요",
    "q\u0307\u0323 Z͑ͫ̓a̴l͌g̶o̷",
    "🙂👩\u200d💻🏳️\u200d🌈🇩🇪👍🏽1️⃣",
    "𝕬𝖇𝖈 𒀀 𐍈",
    "\u200b\ufeff\u00a0\u2028\u2029\u0085",
    "1234567890 3.14159 1e-5 0x1F 1,000,000",
    "def f(x):\n    return {'a': x ** 2}\n\n\n\t# tabs  and   spaces",
    "```python\nprint('hi')\n```",
    '{"a": [1, 2.5, null], "b": {"c": "\\u00e9"}}',
    "<b>&amp;</b> <!-- x --> \"quoted\" \\n 'single'",
    "{{braces}} {% raw %}{# note #}{% endraw %}",
    "{{ 7 * 7 }}",
    "{% for m in messages %}",
    "user",
    "assistant\n",
    "system:",
    "### Instruction:\nDo it",
    "[INST] x [/INST]",
    "Human: a\n\nAssistant: b",
    "\\",
    "$PATH `cmd` %s {0}",
    "'\"'\"'",
    "C:\\new\\table",
    "null",
    "true",
    "[]",
    "{}",
    "-",
    "long " * 200,
)
NOT_BLANK = ("Why?", "Answer:\n1. a\n2. b", "はい。", '{"ok": true}', "a\n\n\nb", "🙂")
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "object", "properties": {}},
    {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "Name of the “city”, e.g. Zürich"}},
        "required": ["city"],
    },
    {
        "type": "object",
        "properties": {
            "unit": {"type": "string", "enum": ["°C", "°F"], "default": "°C"},
            "days": {"type": "integer", "minimum": 1},
        },
        "required": [],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {
            "where": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"lat": {"type": "number"}, "ok": {"type": "boolean"}},
                },
            }
        },
    },
)
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {},
    {"city": "Zürich"},
    {"n": 3, "flag": True, "none": None},
    {"list": [1, "two", [3]], "empty": [], "object": {"a": {"b": []}}},
    {"text": "line\nbreak \"quoted\" \\ tab\t </tool_call> & <x> 'single' \u2028"},
    {"sql": "SELECT * FROM t WHERE a = 'b'"},
    {"": "", " key ": " value "},
    {"emoji": "👩\u200d💻", "rtl": "שלום"},
    {"ratio": 0.25, "large": 9007199254740993, "negative": -17},
)
FRACTIONS: dict[str, Any] = {"latitude": 48.13743, "longitude": 11.5754901, "price": 5.0, "tiny": 1e-7}


def user(text: str) -> Message:
    """Return a turn of the user."""
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> Message:
    """Return a turn of the assistant."""
    return {"role": "assistant", "content": text, **more}


def system(text: str) -> Message:
    """Return a system turn."""
    return {"role": "system", "content": text}


def chosen(rows: Iterable[Row], count: int) -> list[Conversation]:
    """Return `count` chats of `data/final` and all synthetic conversations. If `count` is below `ENOUGH`, the
    synthetic ones are thinned in proportion.
    """
    chats = [Conversation(row["messages"], row.get("tools"), held_out=True) for row in islice(rows, count)]
    return [*chats, *synthetic()[:: max(1, ENOUGH // count)]]


def synthetic() -> list[Conversation]:
    """Return all synthetic conversations, in this order: contents, exchanges, tools, reasoning."""
    return [*words(), *turns(), *with_tools(), *with_reasoning()]


def words() -> Iterator[Conversation]:
    """Yield every content as the only question, after a system turn, as the system turn, and as an answer."""
    for text in CONTENTS:
        yield Conversation([user(text)])
        yield Conversation([system("Answer briefly."), user(text)])
        yield Conversation([system(text), user("Why?")])
        yield Conversation([user("Say it."), assistant(text), user("Again.")])


def turns() -> Iterator[Conversation]:
    """Yield two to ten exchanges, with and without a system turn."""
    for count in range(2, 11):
        talk = [
            turn
            for i in range(count)
            for turn in (user(f"Question {i}? {NOT_BLANK[i % 6]}"), assistant(f"{NOT_BLANK[-i % 6]} {i}"))
        ]
        yield Conversation(talk)
        yield Conversation([system("You are terse."), *talk])


def tool(name: str, parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the definition of a function, with its keys in the order in which llama-server writes them."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Does “{name}”\nand more.",
            "parameters": parameters,
            **more,
        },
    }


def call(name: str, arguments: dict[str, Any], number: int = 0) -> dict[str, Any]:
    """Return a call of a function.

    Its id has the nine letters and digits that Mistral's templates require.
    """
    return {"type": "function", "id": f"call{number:05}", "function": {"name": name, "arguments": arguments}}


def with_tools() -> Iterator[Conversation]:
    """Yield definitions, calls with all shapes of arguments, multiple calls in a turn, results, and
    definitions that llama-server rewrites.
    """
    tools = [tool(f"tool_{i}", schema) for i, schema in enumerate(SCHEMAS)]
    for definition in tools:
        yield Conversation([user("Which tools have you?")], [definition])
        yield Conversation([system("Use tools."), user("Hi"), assistant("Hello.")], [definition])
    yield Conversation([user("Hi")], tools)
    question = user("Do it.")
    for arguments in (*ARGUMENTS, FRACTIONS):
        called = assistant("", tool_calls=[call("tool_1", arguments)])
        result = {"role": "tool", "content": '22 °C\n"fine"', "tool_call_id": "call00000", "name": "tool_1"}
        yield Conversation([question, called], tools[:2])
        yield Conversation([question, called, result, assistant("It is fine.")], tools[:2])
    calls = [call("tool_1", {"city": "A"}), call("tool_2", {"days": 2}, 1)]
    results = [
        {"role": "tool", "content": text, "tool_call_id": f"call0000{i}"}
        for i, text in enumerate(('{"a": [1]}', ""))
    ]
    yield Conversation([question, assistant("I look it up.", tool_calls=calls)], tools)
    yield Conversation(
        [question, assistant("", tool_calls=calls), *results, assistant("Done."), user("Thanks")], tools
    )
    yield Conversation([system("Use tools."), question, assistant("", tool_calls=calls), *results], tools)
    yield Conversation([question], [{"type": "function", "function": {"name": "bare"}}])
    yield Conversation([question], [tool("strict", SCHEMAS[1], strict=True)])


def with_reasoning() -> Iterator[Conversation]:
    """Yield answers with their reasoning, and thinking switched on and off, with and without tools."""
    for thought in ("hm", "two\n\nlines", " spaces ", "日本", "<b>&</b> {{x}}"):
        yield Conversation([user("a"), assistant("b", reasoning_content=thought)])
        yield Conversation(
            [
                user("a"),
                assistant("b", reasoning_content=thought),
                user("c"),
                assistant("d", reasoning_content="so"),
            ]
        )
    called = assistant("", reasoning_content="look it up", tool_calls=[call("tool_1", {"city": "A"})])
    result = {"role": "tool", "content": "22 °C", "tool_call_id": "call00000"}
    for thinking in (None, True, False):
        yield Conversation(
            [user("a"), called, result, assistant("b", reasoning_content="fine")],
            [tool("tool_1", SCHEMAS[1])],
            thinking,
        )
        yield Conversation([user("a")], None, thinking)
        yield Conversation([system("s"), user("a"), assistant("b"), user("c")], None, thinking)
        yield Conversation([user("a"), assistant("b", reasoning_content="hm"), user("c")], None, thinking)


def strings(tokenizer: Any, texts: list[str], count: int, *, seed: int = 0) -> Iterator[str]:
    """Yield strings in NFC: difficult ones written by hand, all single tokens, all of Unicode, then cuts of
    `texts` and mixtures until there are `count`.

    If `count` is below `ALL`, single tokens and Unicode are thinned in proportion. The result depends only on
    `seed` (and on Python's Unicode version). It is in NFC because stage curate writes all text in NFC and
    llama.cpp does not normalize.
    """
    step = max(1, ALL // count)
    hard = list(by_hand(tokenizer))
    fixed = [
        *hard,
        *islice(single_tokens(tokenizer), 0, None, step),
        *islice(unicode_runs(), 0, None, step),
    ]
    rng = random.Random(seed)  # noqa: S311 (no secret)
    pieces = [*hard, *EMOJI, *SPACES, *(" ", "\n") * 20]
    mixed = (mix(rng, texts, pieces) for _ in range(count - len(fixed)))
    return (unicodedata.normalize("NFC", text) for text in chain(fixed, mixed))


def by_hand(tokenizer: Any) -> Iterator[str]:
    """Yield texts that pre-tokenizers are known to split differently, and added tokens among neighbors."""
    yield from (*CONTENTS, *SNIPPETS, *WORDS, *EMOJI)
    for length in range(1, 41):
        digits = "1234567890"[:length] if length <= 10 else "9876543210" * 4
        yield from (
            digits[:length],
            f"a{digits[:length]}b",
            f" {digits[:length]} ",
            f"-{digits[:length]}.{length}",
            f"{int(digits[:length]):,}",
        )
    for space, length in product(SPACES, (1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 100)):
        run = space * length
        yield from (
            run,
            f"{run}a",
            f"a{run}",
            f"a{run}b",
            f"1{run}2",
            f"a{run}\n{run}b",
            f"!{run}!",
            f"{run}\n",
        )
    for token in sorted(tokenizer.get_added_vocab()):
        yield from (
            f"a{token}b",
            f" {token} ",
            f"  {token}  ",
            f"{token}{token}",
            f"\n{token}\n",
            f"1{token}2",
            f"é{token}中",
            f"'{token}s",
            f".{token}.",
            token[:-1],
            token[1:],
            f"{token[:-1]} {token[-1:]}",
            token.upper(),
            f"a\n\n{token}\n\nb",
            f"\t{token}\t",
        )


def single_tokens(tokenizer: Any) -> Iterator[str]:
    """Yield every token of the vocabulary as text. Bytes that are not text by themselves become U+FFFD."""
    backend = tokenizer.backend_tokenizer
    for start in range(0, len(tokenizer), TOGETHER):
        ids = range(start, min(start + TOGETHER, len(tokenizer)))
        yield from backend.decode_batch([[number] for number in ids], skip_special_tokens=False)


def unicode_runs() -> Iterator[str]:
    """Yield every assigned character, `RUN` per string, and one of each run among letters, digits, spaces."""
    assigned = (
        chr(code) for code in range(1, sys.maxunicode + 1) if unicodedata.category(chr(code)) not in UNSEEN
    )
    while run := "".join(islice(assigned, RUN)):
        yield run
        yield f"a{run[0]}1 {run[-1]}b\n{run[0]}"


def mix(rng: random.Random, texts: list[str], pieces: list[str]) -> str:
    """Join two to five parts: cuts of real texts or of generated ones."""
    parts = []
    for _ in range(rng.randint(2, 5)):
        source = rng.choice(texts) if texts and rng.random() < 0.5 else rng.choice(pieces)
        start = rng.randrange(len(source)) if source else 0
        parts.append(source[start : start + rng.randint(1, 40)])
    return "".join(parts)
