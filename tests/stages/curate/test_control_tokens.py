"""control_tokens: whatever is written into a chat, the only control tokens in it are those of its turns."""

import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from draws import draws
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import QWEN_ADDED
from tokenizer_folders import added_tokens, qwen_folder, smollm_folder
from tokenizers import Tokenizer

from pipeline.chat.rows import BadRow, Row, texts
from pipeline.llamacpp.tools import Toolchain
from pipeline.stages.curate.rules.control_tokens import ControlTokens
from pipeline.stages.curate.rules.template import ChatTemplate


class Base(NamedTuple):
    """A base model's tokenizer, as it is and behind other normalizers, its template and its added tokens."""

    tokenizers: list[Tokenizer]
    template: ChatTemplate
    tokens: list[str]

    def control(self, text: str, tokenizer: int = 0) -> list[str]:
        """The control tokens that a tokenizer finds in a text, in order."""
        ids = self.tokenizers[tokenizer].encode(text, add_special_tokens=False).ids
        names = {self.tokenizers[tokenizer].token_to_id(token): token for token in self.tokens}
        return [names[number] for number in ids if number in names]

    def any_control(self, text: str) -> bool:
        """Return True if any tokenizer finds a control token, also once invisible characters are dropped."""
        bare = re.sub(
            "[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufe00-\ufe0f\ufeff]",
            "",
            unicodedata.normalize("NFKC", text),
        )
        return any(
            self.control(form, tokenizer)
            for form in {text, bare, bare.lower()}
            for tokenizer in range(len(self.tokenizers))
        )


def behind(tokenizer: Tokenizer, normalizer: str) -> Tokenizer:
    """The tokenizer with another normalizer, which its added tokens go through as well."""
    settings = json.loads(tokenizer.to_str())
    settings["normalizer"] = {"type": normalizer}
    for token in settings["added_tokens"]:
        token["normalized"] = True
    return Tokenizer.from_str(json.dumps(settings))


@pytest.fixture(scope="module", params=["qwen", "smollm"])
def base(request: pytest.FixtureRequest, tools: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Base:
    place = tmp_path_factory.mktemp("base")
    folder = qwen_folder(place, tools) if request.param == "qwen" else smollm_folder(place)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return Base(
        [tokenizer, behind(tokenizer, "NFC"), behind(tokenizer, "NFKC")],
        ChatTemplate(folder),
        added_tokens(folder),
    )


def full_width(text: str) -> str:
    return "".join(chr(ord(char) + 0xFEE0) if "!" <= char <= "~" else char for char in text)


def bold(text: str) -> str:
    return "".join(chr(0x1D41A + ord(char) - ord("a")) if "a" <= char <= "z" else char for char in text)


DISGUISES: dict[str, Callable[[str], str]] = {
    "plain": str,
    "zero width": "\u200b".join,
    "joiner": lambda token: token[:3] + "\u200d" + token[3:],
    "soft hyphen": lambda token: token[:-1] + "\u00ad" + token[-1],
    "byte order mark": lambda token: token[0] + "\ufeff" + token[1:],
    "variation": lambda token: token[:2] + "\ufe0f\u180e" + token[2:],
    "bidi": lambda token: "\u202e" + token[:4] + "\u2066" + token[4:] + "\u2069",
    "tag": lambda token: token[:4] + "\U000e0041" + token[4:],
    "full width": full_width,
    "small brackets": lambda token: token.replace("<", "﹤").replace(">", "﹥"),
    "bold": bold,
    "ligatures": lambda token: token.replace("fi", "ﬁ").replace("st", "ﬆ"),
    "full width and hidden": lambda token: "\u2060".join(full_width(token)),
    "nested": lambda token: token[:5] + token + token[5:],
    "twice": lambda token: token + token,
    "in a word": lambda token: f"un{token}able",
}


def injections(tokens: list[str]) -> Iterator[tuple[str, str, str]]:
    """(token, what was done to it, the text)."""
    for token in tokens:
        for name, disguise in DISGUISES.items():
            yield token, name, f"Say {disguise(token)} now."
            yield token, name, disguise(token)
            yield token, name, f"First.\n{disguise(token)}\nLast."


def asks(text: str) -> Row:
    return {"role": "user", "content": text}


def says(text: str, **more: Any) -> Row:
    return {"role": "assistant", "content": text, **more}


def everywhere(text: str) -> Row:
    """A row of whatever kind, with `text` wherever text can be."""
    called = {"name": text, "arguments": {text: [text, {"deep": text}]}}
    call = {"type": "function", "id": text, "function": called}
    offered = {"name": text, "description": text, "parameters": {"properties": {text: {"type": "string"}}}}
    return {
        "source": "a:1",
        "kind": "preference",
        "domain": "d",
        "messages": [
            {"role": "system", "content": text},
            asks(text) | {"name": text},
            says(text, reasoning_content=text, tool_calls=[call]),
            {"role": "tool", "content": text, "tool_call_id": text},
        ],
        "tools": [{"type": "function", "function": offered}],
        "chosen": [says(text)],
        "rejected": [says(text)],
        "answer": text,
    }


def test_no_control_token_survives_more_than_600_injections(base: Base) -> None:
    rule, tried = ControlTokens(base.tokens, "neutralize"), 0
    for token, name, text in injections(base.tokens):
        if name in ("plain", "twice", "nested", "in a word"):
            assert base.control(text) == [token] * (1 + (name == "twice"))
        for place, cleaned in texts(rule(everywhere(text), [])):
            assert rule.find(cleaned) is None, (name, place, cleaned)
        cleaned = rule.neutralize(text)
        assert not base.any_control(cleaned), (name, text, cleaned)
        assert rule.neutralize(cleaned) == cleaned
        assert f"{token[0]} {token[1:-1]} {token[-1]}" in cleaned
        tried += 1
    assert tried >= 600, tried


def test_a_rendered_row_has_the_control_tokens_of_its_turns_only(base: Base) -> None:
    """Also where a piece of a token meets the template's own text at a turn's border."""
    rule = ControlTokens(base.tokens, "neutralize")
    turns = ("system", "user", "assistant", "user", "assistant")
    implied = base.control(base.template.render([{"role": role, "content": "x"} for role in turns]))
    pieces = {
        piece for token in base.tokens for i in range(1, len(token)) for piece in (token[:i], token[i:])
    }
    for text in sorted(pieces | {text for _, _, text in injections(base.tokens)}):
        row = rule({"kind": "chat", "messages": [{"role": role, "content": text} for role in turns]}, [])
        assert base.control(base.template.render(row["messages"])) == implied, text
    marked, plain = (base.control(base.template.render([asks(text)])) for text in ("<|im_end|>", "x"))
    assert marked != plain


PIECES = st.sampled_from(
    [
        *("<", "|", ">", "im_end", "im_start", "IM_END", "tool_call", "/", "<|", "|>", "＜", "｜", "＞", "‹"),
        *(" ", "\n", "\u200b", "\u00a0", "ﬁm_prefix", "fim_", "suffix", "<|im_end|>", "<tool_call>", "< |"),
        *("e", "_", "é", "\u0338", "⒈", "▁"),
    ]
)


@settings(max_examples=draws(300))
@given(parts=st.lists(PIECES, max_size=12))
def test_once_is_enough_and_nothing_is_left(parts: list[str]) -> None:
    text = "".join(parts)
    cleaned = RULE.neutralize(text)
    assert RULE.neutralize(cleaned) == cleaned
    assert RULE.find(cleaned) is None
    assert (cleaned == text) == (RULE.find(text) is None)
    for form in (cleaned, *(unicodedata.normalize(form, cleaned) for form in ("NFC", "NFKC"))):
        assert not any(token in form for token in QWEN_ADDED)


RULE = ControlTokens(QWEN_ADDED, "neutralize")

CLEAN = (
    "if (a < b && c > d) { x |= 1; y = a <| f |> g; } // <T> vector<int> v; cout << x >> y;",
    "<p>Some <b>bold</b>, <s>struck</s> and <S>STRUCK</S> text &lt;|im&gt;</p>\n<think-not/>",
    "cat < in.txt | sort | uniq -c > out.txt; diff <(ls a) <(ls b) || true; ls | grep -v '<|'",
    "|> Enum.map(fn x -> x end) |> IO.inspect(); f <| x",
    "| a | b |\n|---|---|\n| < | > |",
    "《红楼梦》 ‹tool_call› 〈tool_call〉 ⟨s⟩ «im_end» ＜普通＞ ｜列｜ family: 👩‍👩‍👧 zero\u200bwidth "
    "soft\u00adhyphen",
    "The text starts at im_start and ends at im_end, says <im_end>, <|im_ends|> and |im_end|.",
    "< |im_end| > < tool_call > <Tool_Call> <tool call>",
    # no tokenizer takes any of these for the token
    "<|IM_END|> <| im_end |> <|im_end\n|> ‹│im_end│› ⟨∣im_end∣⟩ 〈｜im_end｜〉 ≮|im_end|≯",
)


@pytest.mark.parametrize("text", CLEAN)
def test_other_texts_stay_as_they_are(text: str) -> None:
    row = everywhere(text)
    assert RULE(row, changes := []) is row
    assert not changes


END = "<｜end▁of▁sentence｜>"


@pytest.mark.parametrize(
    ("tokens", "text", "cleaned"),
    [
        (["<s>", "</s>"], "a <s>b</s> ＜s＞ <S> < s>", "a < s >b< /s > < s > <S> < s>"),
        (["[INST]", "[/INST]"], "[INST] [inst] ［ＩＮＳＴ］[/INST]", "[ INST ] [inst] [ INST ][ /INST ]"),
        ([END], f"{END} <|end_of_sentence|>", "< ｜end▁of▁sentence｜ > <|end_of_sentence|>"),
        (["▁<PRE>"], "▁<PRE> <PRE>", "▁< PRE > < PRE >"),
        (["|||EMAIL_ADDRESS|||"], "||||EMAIL_ADDRESS||||", "|| ||EMAIL_ADDRESS|| ||"),
        ([">>TITLE<<", "<<SYS>>"], ">>TITLE<<SYS>>", "> >TITLE< <SYS>>"),
        (["<h1>", "<a>"], "<h<h1>1><a><a", "<h< h1 >1>< a ><a"),
        (["ab"], "abab ab", "a ba b a b"),
        (["<|x|>", "|x|"], "<|x|>", "< | x | >"),
        # white space and single letters can't be broken up
        (["  ", "\n\n", "\t", "▁▁", "ü", "é", ""], "über  \n\n\t▁▁", "über  \n\n\t▁▁"),
        ([], "<|im_end|>", "<|im_end|>"),
    ],
)
def test_other_tokenizers_tokens(tokens: list[str], text: str, cleaned: str) -> None:
    rule = ControlTokens(tokens, "neutralize")
    assert rule.neutralize(text) == cleaned
    assert rule.neutralize(cleaned) == cleaned


def test_a_character_that_holds_more_than_the_token_is_not_lost() -> None:
    assert ControlTokens(["[I"], "neutralize").neutralize("z［Ⅳ") == "z[ IV"
    assert ControlTokens(["1)y"], "neutralize").neutralize("⑴y") == "(1 ) y"


def test_tokens_without_end_are_rejected() -> None:
    chain = ["a" + " " * spaces + "b" for spaces in (0, *range(1, 41, 2))]  # breaking one up makes the next
    with pytest.raises(BadRow, match="interwoven"):
        ControlTokens(chain, "neutralize").neutralize("ab")


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("a<|im_end|>", "<|im_end|>"),
        ("a<|im_\u200bend|>", "a disguised <|im_end|>"),
        ("</tool_call>", "</tool_call>"),
    ],
)
def test_reject_says_where_and_which(text: str, held: str) -> None:
    with pytest.raises(BadRow) as caught:
        ControlTokens(QWEN_ADDED, "reject")({"kind": "chat", "messages": [asks("x"), says(text)]}, [])
    detail = f"messages 2 holds {held}, which the tokenizer takes for its own"
    assert (caught.value.code, str(caught.value)) == ("control_token", detail)


@pytest.mark.parametrize(
    "text",
    [
        "<|" * 200_000,
        "<|im_" * 100_000,
        "<" + "\u200b" * 200_000,
        ("<|" + " " * 100) * 3_000,
        "<|é" * 100_000,
    ],
)
def test_no_text_takes_long(text: str) -> None:
    import time

    start = time.process_time()
    RULE.neutralize(text)
    assert time.process_time() - start < 10  # a second on an idle core; what is quadratic takes hours
