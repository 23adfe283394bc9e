"""length: rows over the budget are split between exchanges or rejected; the count is what training counts."""

import json
import random
import re
import shutil
import time
from datetime import datetime
from itertools import chain, pairwise
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pytest
from canonical import ROWS
from draws import draws
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_folders import qwen_folder, smollm_folder

from pipeline.chat.rows import BadRow, Row, row_id
from pipeline.chat.template import compiled
from pipeline.chat.template_probe import TOOL_RECIPES
from pipeline.chat.tokens import encode
from pipeline.core.errors import DataError
from pipeline.core.places import PROJECT
from pipeline.llamacpp.tools import Toolchain
from pipeline.stages.curate.rules import token_counter
from pipeline.stages.curate.rules.length import Length
from pipeline.stages.curate.rules.shape import turns
from pipeline.stages.curate.rules.template import ChatTemplate

BUDGET = 120
PARAMETERS = {"type": "object", "properties": {"a": {"type": "number"}}}
TOOLS = [
    {"type": "function", "function": {"name": "add", "description": "Adds", "parameters": PARAMETERS}},
]


@pytest.fixture(scope="module")
def folders(tools: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("bases")
    return {"qwen": qwen_folder(place / "qwen", tools), "smollm": smollm_folder(place / "smollm")}


@pytest.fixture(scope="module")
def rules(folders: dict[str, Path]) -> dict[str, Length]:
    """One rule per base, loaded once."""
    return {name: Length(folder, BUDGET, "split") for name, folder in folders.items()}


@pytest.fixture(scope="module")
def templates(tools: Toolchain) -> dict[str, tuple[str, Any]]:
    """llama.cpp's collection of chat templates: name, source and our render function."""
    sources = {
        path.name: path.read_text(encoding="utf-8")
        for path in sorted((tools.source / "models" / "templates").glob("*.jinja"))
    }
    return {name: (source, compiled(source)) for name, source in sources.items()}


def with_budget(rule: Length, max_tokens: int, mode: Any = "split") -> Length:
    """The rule with another budget and the tokenizer that is loaded already."""
    other = Length(rule.folder, max_tokens, mode)
    other.counter = rule.counter  # type: ignore[misc]
    return other


def turn(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def call(**arguments: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "add", "arguments": arguments}}]


def chat(*messages: dict[str, Any], **more: Any) -> Row:
    return {"source": "chats.jsonl:7", "kind": "chat", "domain": "d", "messages": list(messages), **more}


def long_chat(words: int, exchanges: int = 6, system: str | None = "Be brief.") -> Row:
    turns = [
        turn(role, f"{i} " + "word " * words) for i in range(exchanges) for role in ("user", "assistant")
    ]
    return chat(*([turn("system", system)] if system else []), *turns)


def exchanges_of(row: Row) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
    """The system turn, and the turns from each of the user's to the next one's."""
    system, found = list[Any](), list[list[Any]]()
    for one in row["messages"]:
        if one["role"] == "user":
            found.append([])
        (found[-1] if found else system).append(one)
    return system, found


WORDS = st.text(st.sampled_from("abc XYZ 09,.!\n\t'éß東🙂\u0301"), max_size=120)
EXCHANGE = st.one_of(
    st.tuples(WORDS, WORDS).map(lambda output: [turn("user", output[0]), turn("assistant", output[1])]),
    st.tuples(WORDS, WORDS, st.booleans()).map(
        lambda output: [
            turn("user", output[0]),
            turn("assistant", "", tool_calls=call(a=output[1])),
            turn("tool", output[1]),
            turn("assistant", output[0], reasoning_content="so") | ({} if output[2] else {"train": False}),
        ]
    ),
)
CHATS = st.tuples(st.none() | WORDS, st.lists(EXCHANGE, min_size=1, max_size=6), st.booleans()).map(
    lambda drawn: chat(
        *([] if drawn[0] is None else [turn("system", drawn[0])]),
        *chain.from_iterable(drawn[1]),
        **({"tools": TOOLS} if drawn[2] else {}),
    )
)


@pytest.mark.parametrize("name", ["qwen", "smollm"])
@settings(max_examples=draws(80))
@given(row=CHATS, budget=st.integers(20, 250))
def test_parts_are_the_conversation_without_what_is_noted_as_lost(
    rules: dict[str, Length], name: str, row: Row, budget: int
) -> None:
    rule, changes = with_budget(rules[name], budget), list[Any]()
    counter = rule.counter
    system, exchanges = exchanges_of(row)

    def tokens(turns: list[dict[str, Any]]) -> int:
        return counter.count_by_tokenizer(counter.template.render(turns, row.get("tools")))

    try:
        parts = rule.parts(row, changes)
    except BadRow as error:
        assert error.code == "over_budget"
        for exchange in exchanges:
            trained = [turn for turn in exchange if turn["role"] == "assistant" and turn.get("train", True)]
            assert not trained or tokens(system + exchange) > budget
        return
    if parts == [row]:
        assert not changes
        assert tokens(row["messages"]) <= budget
        return
    assert tokens(row["messages"]) > budget
    numbers = range(1, len(parts) + 1)
    assert [part["source"] for part in parts] == [f"chats.jsonl:7#{number}" for number in numbers]
    lost = set()
    for change in changes:
        if found := re.fullmatch(r"messages (\d+) to (\d+)", change.place):
            lost.update(range(int(found[1]), int(found[2]) + 1))
    kept = [one for number, one in enumerate(row["messages"], start=1) if number not in lost]
    assert system + [one for part in parts for one in part["messages"][len(system) :]] == kept
    for part in parts:
        own = {key: row[key] for key in ("messages", "source")}
        assert part | own == row
        assert tokens(part["messages"]) <= budget
        assert part["messages"][: len(system)] == system
        assert (part["messages"][len(system)]["role"], part["messages"][-1]["role"]) == ("user", "assistant")
        assert rule.parts(part, []) == [part]
    for one, other in pairwise(parts):  # as many exchanges as fit: the next one would not have
        following = exchanges_of(other)[1][0]
        if not lost:
            assert tokens(one["messages"] + following) > budget


@pytest.mark.parametrize("name", ["qwen", "smollm"])
@settings(max_examples=draws(150))
@given(row=ROWS, budget=st.integers(16, 120), mode=st.sampled_from(["split", "reject"]))
def test_no_row_raises_anything_but_bad_row(
    rules: dict[str, Length], name: str, row: Row, budget: int, mode: str
) -> None:
    rule = with_budget(rules[name], budget, mode)
    try:
        assert all(rule.counter.count_row(part) <= budget for part in rule.parts(row, []))
    except BadRow as error:
        assert error.code in ("over_budget", "template_refuses")


@settings(max_examples=draws(300))
@given(
    text=st.text(max_size=60)
    | WORDS
    | st.lists(
        st.sampled_from(["<|im_start|>", "<|im_end|>", " ", "  ", "\n", "a", "I'm", "42", "é", "½"])
    ).map("".join)
)
def test_counting_words_is_counting(rules: dict[str, Length], text: str) -> None:
    for rule in rules.values():
        assert rule.counter.words is not None
        assert rule.counter.count(text) == rule.counter.count_by_tokenizer(text)


@pytest.mark.parametrize("name", ["qwen", "smollm"])
@settings(max_examples=draws(60))
@given(row=CHATS)
def test_no_row_has_more_tokens_than_its_bound(rules: dict[str, Length], name: str, row: Row) -> None:
    counter = rules[name].counter
    for content in ("", "ﷺ\u0958\U0001d160"):  # the last two grow under NFC
        plain = chat(
            *(turn(one["role"], one["content"] + content) for one in row["messages"] if one["role"] != "tool")
        )
        bound = counter.bound(plain)
        assert bound is not None
        assert bound >= counter.count_row(plain)


# recipe that sentences name because its base shows tools → template of its family in llama.cpp's sources
SHOW_TOOLS = {
    "demo": "Qwen-Qwen2.5-7B-Instruct.jinja",
    "qwen2.5-0.5b": "Qwen-Qwen2.5-7B-Instruct.jinja",
    "qwen3-0.6b": "Qwen-Qwen3-0.6B.jinja",
    "llama3.2-1b": "meta-llama-Llama-3.2-3B-Instruct.jinja",
}


def test_the_recipes_that_sentences_name_have_bases_that_show_tools(
    folders: dict[str, Path], templates: dict[str, tuple[str, Any]]
) -> None:
    assert SHOW_TOOLS.keys() == set(TOOL_RECIPES)
    template = ChatTemplate(folders["qwen"])
    for recipe, file in SHOW_TOOLS.items():
        assert (PROJECT / f"recipes/{recipe}.yaml").is_file()
        template.templates = {"default": templates[file][1]}
        assert template.shows_calls(), recipe


def test_the_bound_holds_under_other_templates(
    rules: dict[str, Length], templates: dict[str, tuple[str, Any]]
) -> None:
    counter, held = rules["qwen"].counter, 0
    own = counter.template.templates
    try:
        for name, (_, rendering) in templates.items():
            counter.template.templates = {"default": rendering}
            counter.overhead.cache_clear()
            for row in (
                long_chat(3),
                long_chat(1, 1, None),
                long_chat(0, 3, " \n"),
                chat(turn("user", "<think>a</think> /no_think"), turn("assistant", "b")),
            ):
                try:
                    bound = counter.bound(row)
                    assert bound is not None
                    assert bound >= counter.count_row(row), name
                    held += 1
                except BadRow as error:
                    assert error.code == "template_refuses"
    finally:
        counter.template.templates = own
        counter.overhead.cache_clear()
    assert held > 150


def test_templates_are_rendered_as_transformers_renders_them(
    folders: dict[str, Path], templates: dict[str, tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import PreTrainedTokenizerFast
    from transformers.utils import chat_template_utils

    class Day:
        @staticmethod
        def now() -> Any:
            return datetime(2023, 9, 27)

    monkeypatch.setattr(chat_template_utils, "datetime", Day)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folders["qwen"])
    ours, same = ChatTemplate(folders["qwen"]), 0
    assert ours.special == tokenizer.special_tokens_map
    calling = turn("user", "2?"), turn("assistant", "", tool_calls=call(a="é"))
    first = turn("user", "x"), turn("assistant", "y", reasoning_content="hm")
    conversations: list[tuple[list[dict[str, Any]], Any]] = [
        ([turn("user", "Hi"), turn("assistant", "Hello <b>")], None),
        (long_chat(2, 2)["messages"], None),
        ([*calling, turn("tool", "5", name="add"), turn("assistant", "5.")], TOOLS),
        ([*first, turn("user", "z"), turn("assistant", "w", reasoning_content="m")], None),
    ]
    for name, (source, rendering) in templates.items():
        ours.templates = {"default": rendering}
        for messages, schema in conversations:
            for prompt in (False, True):
                try:
                    how = {"chat_template": source, "tokenize": False, "add_generation_prompt": prompt}
                    theirs = tokenizer.apply_chat_template(messages, tools=schema, **how)
                except Exception:
                    with pytest.raises(BadRow, match="the chat template"):
                        ours.render(messages, schema, prompt=prompt)
                else:
                    assert ours.render(messages, schema, prompt=prompt) == theirs, name
                    same += 1
    assert same > 400


def test_the_count_is_that_of_training(folders: dict[str, Path], rules: dict[str, Length]) -> None:
    from transformers import PreTrainedTokenizerFast

    for name, folder in folders.items():
        tokenizer, counter = PreTrainedTokenizerFast.from_pretrained(folder), rules[name].counter
        row = long_chat(20)
        assert counter.count_row(row) == len(tokens(tokenizer, row))
        for text in ("Plain text 1.", "Ends itself.<|im_end|>", ""):
            segments = [{"text": "Read: ", "train": False}, {"text": text + "x", "train": True}]
            row = {"kind": "text", "messages": [], "segments": segments}
            assert counter.count_row(row) == len(tokens(tokenizer, row))
            row["segments"].append({"text": text, "train": False})
            assert counter.count_row(row) == len(tokens(tokenizer, row))


def tokens(tokenizer: Any, row: dict[str, Any]) -> list[int]:
    """The ids of the one training row that `row` gives."""
    [(_, [encoded])] = encode(tokenizer, [row])
    return encoded.ids


def changed_to(row: Row, place: int, **more: Any) -> Row:
    messages = [
        one | (more if number == place else {}) for number, one in enumerate(row["messages"], start=1)
    ]
    return row | {"messages": messages}


def untrained(row: Row, *places: int) -> Row:
    for place in places:
        row = changed_to(row, place, train=False)
    return row


@pytest.mark.parametrize(
    ("row", "asked", "places"),
    [
        (long_chat(14), ["01", "23", "45"], []),
        # an exchange that is too long is lost, and no part leaps over it
        (changed_to(long_chat(14), 7, content="endless " * 200), ["01", "34", "5"], ["messages 6 to 7"]),
        # parts without anything to train are lost
        (untrained(long_chat(14), 3, 5, 7, 9, 11), ["45"], ["messages 2 to 5", "messages 6 to 9"]),
    ],
    ids=["split", "too long", "untrained"],
)
def test_a_long_chat_is_split_and_the_system_turn_repeated(
    rules: dict[str, Length], row: Row, asked: list[str], places: list[str]
) -> None:
    changes = list[Any]()
    parts = rules["smollm"].parts({"id": "0" * 16, **row}, changes)
    assert ["".join(one["content"][0] for one in part["messages"][1::2]) for part in parts] == asked
    for number, part in enumerate(parts, start=1):
        assert part["source"] == f"chats.jsonl:7#{number}"
        assert part["messages"][0] == {"role": "system", "content": "Be brief."}
        assert part["id"] == row_id(part)
        turns("reject")(part, [])
    *lost, split = changes
    assert {change.rule for change in changes} == {"length"}
    assert [(change.place, change.after) for change in lost] == [(place, "") for place in places]
    counts = [rules["smollm"].counter.count_row(part) for part in parts]
    assert split.place == "messages" and [int(n) for n in re.findall(r"\d+", split.after)] == counts


LONG = "word " * 200


def answered(text: str) -> dict[str, Any]:
    return turn("assistant", text)


@pytest.mark.parametrize(
    "row",
    [
        chat(turn("user", "a"), turn("assistant", LONG)),
        chat(turn("system", LONG), *[turn("user", "a"), turn("assistant", "b")] * 2),
        untrained(long_chat(14), 3, 5, 7, 9, 11, 13),
        long_chat(14) | {"reward": 1.0},
        long_chat(14) | {"kind": "feedback", "label": True},
        chat(turn("user", LONG), kind="prompt", answer="4"),
        chat(turn("user", "a"), kind="preference", chosen=[answered("b")], rejected=[answered(LONG)]),
        chat(kind="text", segments=[{"text": LONG, "train": True}] * 2),
    ],
)
def test_what_can_not_be_split_is_rejected(rules: dict[str, Length], row: Row) -> None:
    with pytest.raises(BadRow) as caught:
        rules["smollm"].parts(row, [])
    assert caught.value.code == "over_budget"
    assert with_budget(rules["smollm"], 100_000).parts(row, []) == [row]


def test_mode_reject_splits_nothing(rules: dict[str, Length]) -> None:
    with pytest.raises(BadRow, match=r"\b266\b.*\b265\b"):
        with_budget(rules["smollm"], 265, "reject").parts(long_chat(14), [])
    assert len(with_budget(rules["smollm"], 266, "reject").parts(long_chat(14), [])) == 1


def test_a_row_that_the_template_refuses_is_rejected(rules: dict[str, Length]) -> None:
    counter = rules["qwen"].counter
    own = counter.template.templates
    try:
        counter.overhead.cache_clear()
        for source, detail in (
            ("{{ raise_exception('no system turns') }}", "no system turns"),
            ("{{ 1 + messages }}", "TypeError"),
        ):
            counter.template.templates = {"default": compiled(source)}
            with pytest.raises(BadRow, match=detail) as caught:
                rules["qwen"].parts(long_chat(14), [])
            assert caught.value.code == "template_refuses"
    finally:
        counter.template.templates = own


def test_a_broken_folder_is_one_sentence(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Q-CURATE-004"):
        Length(tmp_path, 10, "split").parts(long_chat(1), [])
    folder = Path(shutil.copytree(folders["smollm"], tmp_path / "base"))
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(DataError, match=r"^Q-CHAT-001: ((?!Q-).)*$"):  # as the stages after curate say it
        Length(folder, 10, "split").parts(long_chat(1), [])


def test_a_tokenizer_that_cuts_is_made_to_count_all(folders: dict[str, Path], tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    folder = Path(shutil.copytree(folders["smollm"], tmp_path / "base"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=16)
    tokenizer.save(str(folder / "tokenizer.json"))
    counter = Length(folder, BUDGET, "split").counter
    assert (counter.count_by_tokenizer("word " * 99), counter.count_by_tokenizer("word")) == (100, 1)


def test_other_tokenizers_are_counted_whole(folders: dict[str, Path], tmp_path: Path) -> None:
    """Check that words are not counted separately where a space does not always start a piece, and that no
    bound is given where a byte can become more than one token.
    """
    folder = Path(shutil.copytree(folders["smollm"], tmp_path / "base"))
    file = folder / "tokenizer.json"
    own = json.loads(file.read_text(encoding="utf-8"))
    added = [token["content"] for token in own["added_tokens"]]
    few = [*added, *(word for word in own["model"]["vocab"] if len(word) == 1)]  # a token for each byte
    own["model"] |= {"vocab": {word: number for number, word in enumerate(few)}, "merges": []}
    split = {"type": "Split", "pattern": {"Regex": r"[^\n]+"}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokens = [{**token, "rstrip": True} for token in own["added_tokens"]]
    for changed, bounded in (
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]}}, True),
        ({"added_tokens": tokens}, True),
        ({"pre_tokenizer": byte_level | {"add_prefix_space": True, "use_regex": True}}, False),
        ({"normalizer": {"type": "NFKC"}}, False),
    ):
        file.write_text(json.dumps(own | changed), encoding="utf-8")
        counter = Length(folder, BUDGET, "split").counter
        assert (counter.bounded, counter.words) == (bounded, None)
        assert (counter.bound(long_chat(1)) is not None) == bounded
        words = "a b <|im_end|> c"
        assert counter.count(words) == counter.count_by_tokenizer(words)


LINE = 1 << 19  # bytes, an eighth of the longest line, in which what is quadratic takes 64 times as long
OUTPUTS = "The quick brown fox jumps over the lazy dog and runs far away. "


def random_words(size: int, word: int) -> str:
    """Letters in words that hardly repeat."""
    letters = "".join(random.Random(1).choices(ascii_lowercase, k=size))  # noqa: S311 (no secret)
    return " ".join(letters[start : start + word] for start in range(0, size, word + 1))


def repeated(user: str, assistant: str, *system: str, size: int = LINE) -> Row:
    """A chat of one exchange again and again, as many as a line of so many bytes holds."""
    times = size // (len(user) + len(assistant) + 62)
    return chat(
        *(turn("system", text) for text in system),
        *[turn("user", user), turn("assistant", assistant)] * times,
    )


def sliced(text: str, size: int) -> Row:
    """A chat that says the text in turns of `size` characters."""
    pieces = (text[start : start + size] for start in range(0, len(text) - size, size))
    return chat(*(turn(("user", "assistant")[i % 2], piece) for i, piece in enumerate(pieces)))


CALLING = turn("assistant", "", tool_calls=call(a=1))
SPLIT = {"as many as are split", "ordinary turns"}
HOSTILE = {
    "tiny exchanges": lambda: repeated("a", "b", size=LINE * 4),  # more turns than are split
    "as many as are split": lambda: repeated("a", "b", size=10_000 * 64),
    "a system turn of half the budget": lambda: repeated("hi", "yes", "word " * 500),
    "a system turn of nearly the budget": lambda: repeated(OUTPUTS, OUTPUTS, "word " * 950),
    "a system turn over the budget": lambda: repeated("hi", "yes", "word " * 1500, size=400_000),
    "a long system turn of few tokens": lambda: repeated("7" * 200, "b", " " * 60_000),
    "long tools": lambda: (
        repeated(OUTPUTS, OUTPUTS, size=400_000) | {"tools": [{"description": "word " * 100_000}]}
    ),
    "one word": lambda: chat(turn("user", "a"), turn("assistant", "a" * LINE)),
    "digits": lambda: chat(turn("user", "a"), turn("assistant", "7" * LINE * 4)),
    "digits that are counted": lambda: chat(turn("user", "a"), turn("assistant", "7" * 500_000)),
    "many words": lambda: chat(turn("user", "a"), turn("assistant", "a " * (LINE // 2))),
    "many different words": lambda: chat(turn("user", "a"), turn("assistant", random_words(LINE, 6))),
    "many different words in turns": lambda: sliced(random_words(LINE, 6), 700),
    "many different long words in turns": lambda: sliced(random_words(LINE, 64), 320),
    "thoughts in digits": lambda: chat(
        *[turn("user", "a"), turn("assistant", "b", reasoning_content="7" * 1000)] * 500
    ),
    "ordinary turns": lambda: repeated(OUTPUTS * 3, OUTPUTS * 5),
    "exchanges of half the budget": lambda: repeated("7 " * 130, "7 " * 130),
    "exchanges over the budget": lambda: repeated("7 " * 520, "7 " * 520),
    "Chinese": lambda: chat(
        turn("user", "a"), turn("assistant", "".join(map(chr, range(0x4E00, 0x9000))) * 80)
    ),
    "control tokens": lambda: chat(turn("user", "a"), turn("assistant", "<|im_start|>" * (LINE // 12))),
    "marks": lambda: chat(turn("user", "a"), turn("assistant", "a" + "\u0301\u0323" * (LINE // 4))),
    "segments": lambda: chat(kind="text", segments=[{"text": "ab", "train": True}] * (LINE // 32)),
    "calls": lambda: chat(*[turn("user", "a"), CALLING, turn("tool", "x"), turn("assistant", "b")] * 1_250),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_line_takes_long(rules: dict[str, Length], name: str) -> None:
    row, rule = HOSTILE[name](), with_budget(rules["smollm"], 1024)

    def parts() -> Any:
        changes = list[Any]()
        try:
            return rule.parts(row, changes), changes
        except BadRow as error:
            return error.code, str(error)

    rule.counter.overhead.cache_clear()
    start = time.process_time()
    first = parts()
    assert time.process_time() - start < 3  # a quarter on an idle core
    assert parts() == first
    if first[0] == "over_budget":
        assert name not in SPLIT
    else:
        assert sum(len(str(part)) for part in first[0]) < 2.5 * len(str(row)) + (1 << 17)
        assert all(rule.counter.count_row(part) <= 1024 for part in first[0][:: max(1, len(first[0]) // 20)])


@settings(max_examples=draws(200))
@given(
    text=st.text(max_size=60)
    | st.sampled_from(["ᾂ", "\u03b1\u0313\u0300\u0345", " ", "-", "\u1112\u1161\u11ab"]).map(
        lambda one: one * 40
    ),
    most=st.integers(0, 40),
)
def test_counting_stops_only_above_what_is_asked_for(rules: dict[str, Length], text: str, most: int) -> None:
    for rule in rules.values():
        tokens = rule.counter.count_by_tokenizer(text)
        assert rule.counter.at_least(text) <= tokens
        assert rule.counter.count(text, most) == tokens or most < rule.counter.count(text, most) <= tokens


def test_what_is_remembered_has_an_end(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_counter, "CACHED_SHAPES", 4)
    monkeypatch.setattr(token_counter, "CACHED_CHARACTERS", 100)
    counter = Length(folders["smollm"], BUDGET, "split").counter
    assert counter.words is not None
    for exchanges in range(1, 40):
        row = long_chat(1, exchanges, None)
        bound = counter.bound(row)
        assert bound is not None
        whole = counter.count_by_tokenizer(counter.template.render(row["messages"]))
        assert bound >= counter.count_row(row) == whole
        assert counter.overhead.cache_info().currsize <= 4
    assert 0 < sum(map(len, counter.words[1])) <= 120
