"""Texts over the token budget: parts that join to the text, each within budget, cut where a reader would."""

import random
import time
from pathlib import Path
from typing import Any

import pytest
from canonical import check_row
from draws import draws
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_folders import smollm_folder

from pipeline.chat.rows import BadRow, Row, row_id
from pipeline.chat.tokens import encode, load_tokenizer
from pipeline.stages.curate.rules.length import Length
from pipeline.stages.curate.rules.text_parts import Unbreakable, text_parts

ENGLISH = "The quick brown fox jumps over the lazy dog. It runs far away! Does it come back? "
CHINESE = "敏捷的棕色狐狸跳过了懒狗。它跑得很远！它会回来吗？"
HINDI = "तेज़ भूरी लोमड़ी कुत्ते के ऊपर कूदती है। वह दूर भागती है। "
THAI = "สุนัขจิ้งจอกสีน้ำตาลกระโดดข้ามสุนัขขี้เกียจ"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return smollm_folder(tmp_path_factory.mktemp("base") / "smollm")


@pytest.fixture(scope="module")
def rule(folder: Path) -> Length:
    return Length(folder, 40, "split")


def with_budget(rule: Length, most: int) -> Length:
    other = Length(rule.folder, most, rule.mode)
    other.counter = rule.counter  # type: ignore[misc]
    return other


def text_row(text: str, **more: Any) -> Row:
    row = {"source": "a.jsonl:3", "kind": "text", "domain": "d", "messages": []}
    row |= {"segments": [{"text": text, "train": True}], **more}
    return {"id": row_id(row), **row}


def joined(parts: list[Row]) -> str:
    return "".join(segment["text"] for part in parts for segment in part["segments"])


PIECES = st.sampled_from(
    [
        *(ENGLISH, CHINESE, HINDI, THAI, "\n\n", "\n", " \t ", "\r\n \r\n", "3.14", "…", "e.g. this", "。」"),
        *("👩‍💻", "e\u0301\u0323", "  x = 1\n", "0123456789" * 3, "مرحبا بالعالم؟ ", "\u2029", "．"),
        *("a" * 30, "Z\u0335\u0321" * 4),
    ]
)


@settings(max_examples=draws(150))
@given(
    text=st.lists(PIECES | st.text(max_size=8), min_size=1, max_size=40).map("".join).filter(str.strip),
    most=st.integers(24, 120),
)
def test_joined_parts_are_the_text_and_each_is_within_the_budget(rule: Length, text: str, most: int) -> None:
    rule, changes = with_budget(rule, most), list[Any]()
    row = text_row(text)
    try:
        parts = rule.parts(row, changes)
    except BadRow as why:
        assert why.code == "over_budget"
        return
    assert joined(parts) == text
    assert all(rule.counter.count_row(part) <= most for part in parts)
    assert all(part["segments"][0]["text"].strip() for part in parts)
    assert (len(parts) == 1) == (rule.counter.count_row(row) <= most) == (not changes)
    if len(parts) > 1:
        numbers = range(1, len(parts) + 1)
        assert [part["source"] for part in parts] == [f"a.jsonl:3#{number}" for number in numbers]
        assert [len(part["segments"]) for part in parts] == [2] * (len(parts) - 1) + [1]
    for part in parts:
        check_row(part)


def cut(text: str, most: int) -> list[str]:
    """The parts where every character is a token."""
    return [text[start:end] for start, end, tokens in text_parts(text, lambda start, end: end - start, most)]


LEFT, PI = "He said “no.” Then (he left!) ", "Pi is 3.14 and e.g. this goes on. "


@pytest.mark.parametrize(
    ("text", "most", "parts"),
    [
        ("One two. Three.\n\nFour five six seven.", 24, ["One two. Three.\n\n", "Four five six seven."]),
        ("One two. Three four. Five six.", 22, ["One two. Three four. ", "Five six."]),
        (LEFT + "Then more of it.", 32, [LEFT, "Then more of it."]),
        (PI + "And so on", 40, [PI, "And so on"]),
        ("他说：「好。」然后走了。再见！", 13, ["他说：「好。」然后走了。", "再见！"]),
        ("कुत्ता है। बिल्ली है। और", 22, ["कुत्ता है। बिल्ली है। ", "और"]),
        ("first line\nsecond line\nthird", 25, ["first line\nsecond line\n", "third"]),
        ("def f():\n    return 1\n\n\n    x = 2\n", 26, ["def f():\n    return 1\n\n\n", "    x = 2\n"]),
        ("no end of any sentence here", 12, ["no end of ", "any ", "sentence ", "here"]),
        ("漢字仮名交文章", 3, ["漢字仮", "名交文", "章"]),
        ("  \n indented", 9, ["  \n inden", "ted"]),  # a word that is too long by itself
        ("to 0123456789 and", 6, ["to ", "012345", "6789 ", "and"]),
        # a letter is never torn from its accents, a picture never from its parts
        ("e\u0301\u0323e\u0301\u0323 x", 4, ["e\u0301\u0323", "e\u0301\u0323 ", "x"]),
        ("e\u0301\u0323", 2, None),
        ("ab👩‍💻c", 4, ["ab", "👩‍💻c"]),
        ("fits", 4, ["fits"]),
        (" " * 50 + "word wor", 56, [" " * 50 + "word ", "wor"]),  # no part is space alone
        (" " * 50 + "word", 53, [" " * 50 + "wor", "d"]),
        (" " * 50 + "word", 50, None),
    ],
)
def test_a_text_is_cut_where_a_reader_would_cut_it(text: str, most: int, parts: list[str] | None) -> None:
    if parts is None:
        with pytest.raises(Unbreakable):
            cut(text, most)
    else:
        assert cut(text, most) == parts


def test_only_the_last_part_learns_the_end_of_text(rule: Length, folder: Path) -> None:
    parts = rule.parts(text_row(ENGLISH * 6), [])
    assert len(parts) > 2
    tokenizer = load_tokenizer(folder)
    encoded = [each[0] for _, each in encode(tokenizer, parts) if isinstance(each, list)]
    ends = [tokenizer.eos_token_id in one.labels for one in encoded]
    assert ends == [False] * (len(parts) - 1) + [True]
    assert [len(one.ids) for one in encoded] == [rule.counter.count_row(part) for part in parts]


def test_a_split_text_is_noted(rule: Length) -> None:
    changes = list[Any]()
    parts = rule.parts(text_row(ENGLISH * 4), changes)
    (change,) = changes
    assert (change.rule, change.place) == ("length", "segments 1")
    assert change.after.count(",") == len(parts) - 1
    assert parts[0]["id"] == row_id(parts[0]) != parts[1]["id"]


READ = {"text": ENGLISH, "train": False}


@pytest.mark.parametrize(
    ("row", "mode"),
    [
        (text_row("a" + "\u0301" * 900), "split"),
        (text_row(ENGLISH * 9), "reject"),
        (text_row("") | {"segments": [READ, {"text": ENGLISH * 4, "train": True}]}, "split"),
    ],
)
def test_what_can_not_be_split_is_rejected_with_its_reason(rule: Length, row: Row, mode: Any) -> None:
    strict = with_budget(rule, 40)
    strict.mode = mode
    with pytest.raises(BadRow) as caught:
        strict.parts(row, [])
    assert caught.value.code == "over_budget"


LINE = 1 << 17  # bytes; in the longest line, 32 times as long, what is quadratic takes 1,000 times as long
LONG = {
    "a book": lambda: "".join(
        ENGLISH * random.Random(n).randrange(1, 9) + "\n\n"  # noqa: S311
        for n in range(LINE // 400)  # noqa: RUF100, S311
    )[:LINE],
    "different words": lambda: " ".join(f"w{number:x}" for number in range(LINE // 7)),
    "one word": lambda: "a" * LINE,
    "nearly one word a part": lambda: " ".join(["xq" * 2000] * (LINE // 4001)),
    "spaces": lambda: "a" + " " * (LINE - 2) + "b",
    "lines": lambda: "a" + "\n" * (LINE - 2) + "b",
    "marks": lambda: "." * LINE,
    "accents": lambda: "a" + "\u0301" * (LINE // 2),
    "Chinese": lambda: CHINESE * (LINE // (3 * len(CHINESE))),
    "Thai": lambda: THAI * (LINE // (3 * len(THAI))),
}


@pytest.mark.parametrize("name", LONG)
def test_no_text_takes_long(rule: Length, name: str) -> None:
    text, rule = LONG[name](), with_budget(rule, 1024)
    start = time.process_time()
    try:
        parts = rule.parts(text_row(text), [])
    except BadRow as why:
        assert why.code == "over_budget"
        assert name not in ("a book", "Chinese", "Thai", "different words")
    else:
        assert joined(parts) == text
        assert all(rule.counter.count_row(part) <= 1024 for part in parts[:: max(1, len(parts) // 20)])
    assert time.process_time() - start < 3  # 0.4 s on an idle core at most
