"""heuristics: stock refusals, other languages and garbage are found, what people really write isn't."""

import builtins
from typing import Any

import pytest
from draws import draws
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.chat.rows import BadRow, Row
from pipeline.core.errors import ConfigError, ToolError
from pipeline.core.places import PROJECT
from pipeline.stages.curate.rules.heuristics import garbage, garbage_in, is_refusal, languages, refusals


def chat(answer: str, question: str = "?", kind: str = "chat", **more: Any) -> Row:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"source": "a:1", "kind": kind, "domain": "d", "messages": messages} | more


def untrained(answer: str) -> Row:
    row = chat(answer)
    row["messages"][-1]["train"] = False
    return row


def text(trained: str, *read: str) -> Row:
    """A row of text, of which what is `read` first is not trained."""
    segments = [*({"text": one, "train": False} for one in read), {"text": trained, "train": True}]
    return chat("", kind="text", messages=[], segments=segments)


def preference(chosen: str, rejected: str) -> Row:
    row = chat(chosen, kind="preference")
    ask, good = row["messages"]
    return row | {"messages": [ask], "chosen": [good], "rejected": [good | {"content": rejected}]}


REFUSALS = (
    "I'm sorry, but I can't assist with that.",
    "I’m sorry, but I can’t assist with that request.",
    "I cannot help with that.",
    "As an AI language model, I cannot provide personal opinions.",
    "As an AI language model, I don't have personal feelings or emotions.",
    "I'm unable to help with hacking into someone's account.",
    "I'm sorry, I cannot fulfill this request. As an AI assistant, I am not able to create harmful content.",
    "Sorry, I can't help you with that. Is there anything else I can help you with?",
    "I apologize, but I cannot provide that information.",
    "I'm sorry, but I cannot comply with that request. If you have any other questions, feel free to ask!",
    "Unfortunately, I'm not able to assist with this request.",
    "I can't do that.",
    "I cannot generate such content. It is unethical and against my programming.",
    "I'm sorry, but as an AI language model, I am unable to browse the internet.",
    "I'm sorry. I can't assist with that.",
    "I won't help with that.",
    "I must decline to answer that question.",
    "I'm really sorry, but I can't help with creating that.",
    "No, I cannot help with that.",
    "I’m sorry, but I won’t be able to help with that.",
    "  I'M SORRY, BUT I CAN'T ASSIST WITH THAT.\n\n",
)
ANSWERS = (
    "I'm sorry, but I can't come to the party tonight.",
    "I can't help but smile when I see you.",
    "You can't assist with that unless you are root.",
    "As an AI language model, I cannot browse, but you can run `ls -la` to list the files.",
    "I'm sorry to hear that! Have you tried turning it off and on again?",
    "I cannot recommend this book enough. It is wonderful.",
    "The sum is 42.",
    "Sorry, the shop is closed on Sundays.",
    "I can't provide a refund without the order number. Could you send it?",
    "I am unable to attend the meeting on Friday.",
    "I'm sorry, but I can't assist with that. Here is what I can do: list the open ports with ss -ltn.",
    "We cannot divide by zero, so x must not be 3.",
    "I do not know.",
    "No.",
    "Thank you!",
    "I could not create the file.",
    "I cannot create this file: permission denied.",
    "I'm sorry, I cannot write your name in Chinese.",
    "We cannot complete the square here.",
    "I am an assistant at a law firm.",
    "I'm sorry for the delay. Your parcel is on its way.",
    "As a vegetarian, I cannot eat that.",
    "This is not allowed in Python: strings are immutable.",
    "I cannot help with dinner tonight, I'm working late.",
    "I'm sorry, but I can't assist with that. " + "Long ago, a fox lived in a wood. " * 20,
    "",
)


@pytest.mark.parametrize("answer", REFUSALS)
def test_stock_refusals_are_found(answer: str) -> None:
    assert is_refusal(answer)


@pytest.mark.parametrize("answer", ANSWERS)
def test_answers_are_no_refusals(answer: str) -> None:
    assert not is_refusal(answer)


PHRASES = ["I'm sorry", ", but ", "as an ai ", "language model ", "I can't ", "help ", "with that", ". "]
PHRASES += ["a ", "\n", "my-", "?"]


@settings(max_examples=draws(300))
@given(parts=st.lists(st.sampled_from(PHRASES), max_size=60))
def test_no_text_makes_the_judgment_slow(parts: list[str]) -> None:
    assert is_refusal("".join(parts)) in (True, False)


NO = REFUSALS[0]


@pytest.mark.parametrize(
    ("row", "place"),
    [
        (chat(NO), "messages 2"),
        (chat(NO, kind="feedback", label=True), "messages 2"),
        (chat(NO, kind="feedback", label=False), None),  # a thumb down on a refusal teaches the right thing
        (chat("Sure: 4.", question=NO), None),
        (preference(NO, "Sure."), "chosen 1"),
        (preference("Sure.", NO), None),
        # only the last answer counts
        (chat("x") | {"messages": [*chat(NO)["messages"], *chat("Fine.")["messages"]]}, None),
        (untrained(NO), None),
        (chat(NO) | {"messages": [{"role": "user", "content": NO}], "kind": "prompt", "answer": NO}, None),
        (text(NO), None),
    ],
)
def test_rows_that_teach_to_refuse_are_rejected(row: Row, place: str | None) -> None:
    if place is None:
        assert refusals(row, []) is row
        return
    with pytest.raises(BadRow, match=f"{place} is nothing but a stock refusal") as caught:
        refusals(row, [])
    assert caught.value.code == "refusal"


ENGLISH = "Could you tell me how to reset my password without losing all of my data?"
OTHERS = {
    "de": "Kannst du mir bitte sagen, wie ich mein Passwort zurücksetzen kann, ohne Daten zu verlieren?",
    "fr": "Pourriez-vous me dire comment réinitialiser mon mot de passe sans perdre mes données ?",
    "ru": "Подскажите, пожалуйста, как сбросить пароль, не потеряв мои данные?",
    "zh": "请告诉我如何在不丢失数据的情况下重置我的密码？谢谢你的帮助，我等待你的回复。今天天气很好，我们决定沿着河边散步。",  # noqa: E501
    "ar": "هل يمكنك أن تخبرني كيف أعيد تعيين كلمة المرور دون فقدان بياناتي؟",
}


@pytest.mark.parametrize("code", OTHERS)
def test_an_answer_in_another_language_is_rejected(code: str) -> None:
    with pytest.raises(BadRow, match=f"messages 2 is in {code}, curate.languages has en") as caught:
        ENGLISH_ONLY(chat(OTHERS[code], question=ENGLISH), [])
    assert caught.value.code == "language"
    both = languages(("en", code))
    assert both(row := chat(OTHERS[code]), []) is row
    assert both(row := chat(ENGLISH), []) is row
    with pytest.raises(BadRow):
        both(preference(OTHERS["de" if code == "fr" else "fr"], ENGLISH), [])


ENGLISH_ONLY = languages(("en",))


@pytest.mark.parametrize(
    "row",
    [
        chat(ENGLISH, question=OTHERS["de"]),  # what the user speaks is not what is learned
        chat("Guten Tag!"),  # too short to tell
        chat(f"```\n{OTHERS['de']}\n```"),
        chat(
            "find . -type f -name '*.gz' -print0 | xargs -0 -I{} sh -c 'gzip -dc {} | wc -l' | sort -n | "
            "tail -n 5"
        ),
        untrained(OTHERS["de"]),
        preference(ENGLISH, OTHERS["de"]),
        chat("x", kind="prompt", messages=[{"role": "user", "content": OTHERS["de"]}]) | {"answer": "4"},
        text(ENGLISH, OTHERS["de"]),
    ],
)
def test_what_is_not_surely_another_language_passes(row: Row) -> None:
    assert ENGLISH_ONLY(row, []) is row


def test_an_unknown_language_is_a_mistake_in_the_settings() -> None:
    with pytest.raises(ConfigError, match="Q-CURATE-011"):
        languages(("en", "xx"))


def test_without_the_library_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("py3langid"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ToolError, match="Q-CURATE-010"):
        languages(("en",))


GARBAGE = (
    ("I love you. " * 30, "runs of 10 words"),
    ("yes\n" * 60, "runs of 10 words"),
    ("a" * 300, "runs of 10 words"),
    ("我爱你，我也爱你。" * 20, "runs of 10 words"),
    ("&%$#@!?;-+" * 20, "letters or digits"),
    (
        "Itâ€™s a lovely day, isnâ€™t it? The cafÃ© was open and we didnâ€™t know what to do next, so we "
        "walked.",
        "broken encoding",
    ),
    ("ÐŸÑ€Ð¸Ð²ÐµÑ‚, ÐºÐ°Ðº Ð´ÐµÐ»Ð°? Ð’ÑÑ‘ Ñ…Ð¾Ñ€Ð¾ÑˆÐ¾, ÑÐ¿Ð°ÑÐ¸Ð±Ð¾, Ð° Ñƒ Ñ‚ÐµÐ±Ñ?", "broken encoding"),
    (
        "The quick br\ufffdwn fox jumps \ufffdver the lazy dog and r\ufffdns away into the deep dark woods "
        "over there.",
        "broken encoding",
    ),
)
PROSE = (
    "Não, a situação não é tão simples assim: São Paulo é a maior cidade. À noite, às vezes, há muitas "
    "estações cheias de gente e ninguém lá fora.",
    "„Der Äquator läuft nicht durch Österreich“, sagte der Müller zum Spaß… „Größere Straßen führen "
    "dorthin“ – „schöner als früher“, so Fuß.",
    "« L’été dernier, à Pâques, j’étais en vacances à Évian ; c’était très agréable, arrêté… » dit-il. « Où "
    "l’on mangeait… » – « Noël, déjà ! »",
    (
        "«_Un café_», dit-elle_; «_un thé glacé_», dit-il. «_L’été_», «_la santé_», «_la clé_»_: tout y "
        "était, de bout en bout."
    ).replace("_", "\u00a0"),
    "क्या आप मुझे बता सकते हैं कि मैं अपना डेटा खोए बिना पासवर्ड कैसे रीसेट करूं? धन्यवाद, आपकी मदद के लिए "
    "मैं आभारी हूँ और प्रतीक्षा कर रहा हूँ।",
    "Việt Nam là một quốc gia ở Đông Nam Á. Thủ đô là Hà Nội, thành phố lớn nhất là Thành phố Hồ Chí Minh, "
    "với hơn chín triệu dân cư sinh sống.",
    "| a | b | c |\n|---|---|---|\n" + "".join(f"| {n} | {n * n} | {n**3} |\n" for n in range(20)),
    (
        "Row, row, row your boat,\nGently down the stream.\nMerrily, merrily, merrily, merrily,\nLife is "
        "but a dream.\n"
    )
    * 2,
    "mojibake (文字化け) is text like â€™ that was decoded with the wrong encoding; a good tool shows such text "  # noqa: E501
    "as it was meant, most of the time.",
    "aaaa",
    "",
)


@pytest.mark.parametrize(("bad", "why"), GARBAGE)
def test_garbage_is_found_and_the_figure_said(bad: str, why: str) -> None:
    assert why in (garbage_in(bad) or "")
    said = r"^(messages|rejected|segments) [12]: [\d.]+% of its? .*, the (most|least) is [\d.]+%$"
    for row in (chat(bad), chat("Yes.", question=bad), preference("Yes.", bad), text(bad)):
        with pytest.raises(BadRow, match=said) as caught:
            garbage(row, [])
        assert caught.value.code == "garbage"


@pytest.mark.parametrize("text", PROSE)
def test_prose_tables_and_songs_are_no_garbage(text: str) -> None:
    assert garbage_in(text) is None
    assert garbage(row := chat(text), []) is row


def test_what_a_tool_or_the_system_says_is_not_judged() -> None:
    row = chat("Yes.")
    row["messages"][:0] = [{"role": "system", "content": "a" * 300}]
    row["messages"] += [{"role": "tool", "content": "0 " * 300}, {"role": "assistant", "content": "Done."}]
    assert garbage(row, []) is row


def test_our_own_code_and_documents_are_no_garbage() -> None:
    looked = 0
    documents = *PROJECT.glob("*.md"), *(PROJECT / "docs").glob("*.md")
    for path in (*(PROJECT / "pipeline").rglob("*.py"), *documents):
        text = path.read_text(encoding="utf-8")
        if "MOJIBAKE" not in text:
            assert garbage_in(text) is None, path
            looked += 1
    assert looked > 40


@settings(max_examples=draws(200))
@given(said=st.text(max_size=200) | st.text("aé😀 \n", max_size=300))
def test_no_row_raises_anything_but_bad_row(said: str) -> None:
    for rule in (garbage, ENGLISH_ONLY, refusals):
        for row in (chat(said, question=said), preference(said, said), text(said)):
            try:
                assert rule(row, []) is row
            except BadRow as error:
                assert error.code in ("garbage", "language", "refusal")
