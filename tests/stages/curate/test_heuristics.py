"""heuristics: stock refusals, other languages and garbage are found, what people really write isn't."""

import builtins
import re
from pathlib import Path
from typing import Any

import pytest
from curating import Row, chat, of_rows
from draws import draws
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import ToolError
from pipeline.core.places import PROJECT
from pipeline.metrics.refusals import is_refusal


def judged(root: Path, rows: list[Row], **changes: Any) -> dict[int, tuple[str, str]]:
    """{number: (reason, detail)} of the rows that the stage rejects."""
    project = of_rows(root, [*rows, said("Fine.")])  # there must be something to train on
    project.run(**{"drop_duplicates": "none", "secrets": "keep", "personal": [], "reject": []} | changes)
    rejects = {row["line"] - 1: (row["reason"], row["detail"]) for row in project.rejects()}
    assert len(rejects) + len(project.lines()) == len(rows) + 1
    return rejects


def untrained(answer: str) -> Row:
    """A row whose last answer is not trained."""
    row = said("Sure.", answer)
    row["messages"][-1]["train"] = False
    return row


def said(*answers: str) -> Row:
    return {"messages": [turn for answer in answers for turn in chat("?", answer)["messages"]]}


def text(trained: str, *read: str) -> Row:
    """A row of text, of which what is `read` first is not trained."""
    segments = [*({"text": one, "train": False} for one in read), {"text": trained, "train": True}]
    return {"segments": segments}


def preference(chosen: str, rejected: str) -> Row:
    return {"prompt": "?", "chosen": chosen, "rejected": rejected}


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
)


def test_stock_refusals_are_found_and_answers_are_none(tmp_path: Path) -> None:
    found = judged(tmp_path, [said(answer) for answer in (*REFUSALS, *ANSWERS)], reject=["refusals"])
    assert {number: reason for number, (reason, _) in found.items()} == dict.fromkeys(
        range(len(REFUSALS)), "refusal"
    )


PHRASES = ["I'm sorry", ", but ", "as an ai ", "language model ", "I can't ", "help ", "with that", ". "]
PHRASES += ["a ", "\n", "my-", "?"]


@settings(max_examples=draws(300))
@given(parts=st.lists(st.sampled_from(PHRASES), max_size=60))
def test_no_text_makes_the_judgment_slow(parts: list[str]) -> None:
    assert is_refusal("".join(parts)) in (True, False)


NO = REFUSALS[0]


ROWS: list[tuple[Row, str | None]] = [
    (said(NO), "messages 2 "),
    (said(NO) | {"label": True}, "messages 2 "),
    (said(NO) | {"label": False}, None),  # a thumb down on a refusal teaches the right thing
    (chat(NO, "Sure: 4."), None),
    (preference(NO, "Sure."), "chosen 1 "),
    (preference("Sure.", NO), None),
    (said(NO, "Fine."), None),  # only the last answer counts
    (untrained(NO), None),
    ({"prompt": NO, "answer": NO}, None),
    (text(NO), None),
]


def test_rows_that_teach_to_refuse_are_rejected(tmp_path: Path) -> None:
    found = judged(tmp_path, [row for row, _ in ROWS], reject=["refusals"])
    assert found.keys() == {number for number, (_, place) in enumerate(ROWS) if place}
    for number, (reason, detail) in found.items():
        assert reason == "refusal" and detail.startswith(ROWS[number][1] or "")


ENGLISH = "Could you tell me how to reset my password without losing all of my data?"
OTHERS = {
    "de": "Kannst du mir bitte sagen, wie ich mein Passwort zurücksetzen kann, ohne Daten zu verlieren?",
    "fr": "Pourriez-vous me dire comment réinitialiser mon mot de passe sans perdre mes données ?",
    "ru": "Подскажите, пожалуйста, как сбросить пароль, не потеряв мои данные?",
    "zh": "请告诉我如何在不丢失数据的情况下重置我的密码？谢谢你的帮助，我等待你的回复。今天天气很好，我们决定沿着河边散步。",  # noqa: E501
    "ar": "هل يمكنك أن تخبرني كيف أعيد تعيين كلمة المرور دون فقدان بياناتي؟",
}


@pytest.mark.parametrize("code", OTHERS)
def test_an_answer_in_another_language_is_rejected(code: str, tmp_path: Path) -> None:
    rows = [chat(ENGLISH, OTHERS[code]), said(ENGLISH), *map(said, OTHERS.values())]
    found = judged(tmp_path, [*rows, preference(OTHERS["fr"], OTHERS["de"])], languages=["en", code])
    wanted = {number + 2: other for number, other in enumerate(OTHERS) if other != code}
    wanted |= {} if code == "fr" else {len(rows): "fr"}
    assert found.keys() == wanted.keys()
    for number, other in wanted.items():
        reason, detail = found[number]
        assert reason == "language" and re.match(rf"(messages 2|chosen 1) is in {other}, ", detail)


SPOKEN = [
    chat(OTHERS["de"], ENGLISH),  # what the user speaks is not what is learned
    said("Guten Tag!"),  # too short to tell
    said(f"```\n{OTHERS['de']}\n```"),
    said(
        "find . -type f -name '*.gz' -print0 | xargs -0 -I{} sh -c 'gzip -dc {} | wc -l' | sort -n | "
        "tail -n 5"
    ),
    untrained(OTHERS["de"]),
    preference(ENGLISH, OTHERS["de"]),
    {"prompt": OTHERS["de"], "answer": "4"},
    text(ENGLISH, OTHERS["de"]),
]


def test_what_is_not_surely_another_language_passes(tmp_path: Path) -> None:
    assert judged(tmp_path, SPOKEN, languages=["en"]) == {}


def test_without_the_library_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("py3langid"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ToolError, match="Q-CURATE-010"):
        judged(tmp_path, SPOKEN, languages=["en"])


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
)


@pytest.mark.parametrize(("bad", "why"), GARBAGE)
def test_garbage_is_found_and_the_figure_said(bad: str, why: str, tmp_path: Path) -> None:
    rows = [said(bad), chat(bad, "Yes."), preference("Yes.", bad), text(bad)]
    found = judged(tmp_path, rows, reject=["garbage"])
    form = rf"(messages|rejected|segments) [12]: [\d.]+% of its? .*{why}.*, the (most|least) is [\d.]+%"
    assert len(found) == len(rows) and {reason for reason, _ in found.values()} == {"garbage"}
    assert all(re.fullmatch(form, detail) for _, detail in found.values())


def test_prose_tables_and_songs_are_no_garbage(tmp_path: Path) -> None:
    """Nor is what a tool or the system says judged."""
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    called = said("Yes.", "Done.") | {"tools": [call]}
    called["messages"][1]["tool_calls"] = [call]
    called["messages"][2] = {"role": "tool", "content": "0 " * 300}
    called["messages"][:0] = [{"role": "system", "content": "a" * 300}]
    assert judged(tmp_path, [*map(said, PROSE), called], reject=["garbage"]) == {}


def test_our_own_code_and_documents_are_no_garbage(tmp_path: Path) -> None:
    documents = *PROJECT.glob("*.md"), *(PROJECT / "docs").glob("*.md")
    contents = [
        path.read_text(encoding="utf-8") for path in (*(PROJECT / "pipeline").rglob("*.py"), *documents)
    ]
    rows = [{"text": content} for content in contents if content and "MOJIBAKE" not in content]
    assert judged(tmp_path, rows, reject=["garbage"]) == {} and len(rows) > 40


@settings(max_examples=draws(5))
@given(contents=st.lists(st.text(max_size=120) | st.text("aé😀 \n", max_size=200), min_size=9, max_size=20))
def test_whatever_is_said_is_kept_or_rejected(
    contents: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = [
        row for each in contents for row in (chat(each, each), preference(each, each + "!"), text(each, "x"))
    ]
    rules = {"reject": ["garbage", "refusals"], "languages": ["en"]}
    judged(tmp_path_factory.mktemp("rows"), rows, **rules)  # which counts them
