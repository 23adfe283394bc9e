"""scorers: what each gives points for, what it refuses, and what it says of a mistake in params.yaml."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config.scorers import scorer_problems
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.text import common_start
from pipeline.metrics.own import function
from pipeline.metrics.scorers import parse

REFERENCE = json.dumps({"module": "os", "required": ["path"], "n": 1, "flag": True})


RIGHT, WRONG, UNREADABLE = (1.0, True), (0.0, True), (0.0, False)
MARKED = "6 × 7 = 42\n#### 42"


def score(spelling: str, reference: str, answer: str, root: Path = Path()) -> tuple[float | None, bool]:
    """Points, and whether the answer could be read."""
    found = parse(spelling, root=root).measure(reference, answer, {"id": "r1", "prompt": "?"})
    return found.points, found.valid


LETTER, BACKTRACKS = r"regex:Answer: ([A-D])", r"regex:^(([a-z])+.)+[A-Z]([a-z])+$"


@pytest.mark.parametrize(
    ("scorer", "reference", "answer", "expected"),
    [
        ("json_fields", REFERENCE, REFERENCE, RIGHT),
        ("json_fields", REFERENCE, '{"module": "os", "required": ["path"]}', (0.5, True)),
        (  # 1 is not true
            "json_fields",
            REFERENCE,
            '{"module": "os", "required": ["path"], "n": true, "flag": 1}',
            (0.5, True),
        ),
        ("json_fields", REFERENCE, '{"module": "sys", "extra": 1}', WRONG),
        ("json_fields", REFERENCE, "[1]", UNREADABLE),
        ("json_fields", REFERENCE, "Sure! " + REFERENCE, UNREADABLE),
        ("json_fields", REFERENCE, "", UNREADABLE),
        ("json_fields", REFERENCE, "[" * 100_000, UNREADABLE),
        ("json_fields", "{}", "{}", RIGHT),
        ("json_fields", "{}", '{"a": 1}', WRONG),
        ("exact_match", "42", " 42\n", RIGHT),
        ("exact_match", " 42", "42", RIGHT),
        ("exact_match", "42", "42.0", WRONG),
        ("exact_match", "42", "  ", UNREADABLE),
        (LETTER, "Answer: B", "I think B. Answer: B", RIGHT),
        (LETTER, "Answer: B", "Answer: C", WRONG),
        (LETTER, "Answer: B", "B", UNREADABLE),
        (r"regex:(?i)yes|no", "Yes", "Well, Yes.", RIGHT),  # no group: all of the match
        (r"regex:x:(a)?", "x:a", "x:", UNREADABLE),  # a group that took no part
        (BACKTRACKS, "aaAa", "a" * 5000, (None, False)),  # is stopped
        # the … cat … on … mat: 4 of 6 words on both sides
        ("rouge_l", "the cat sat on the mat", "The cat lay on a mat.", (4 / 6, True)),
        ("rouge_l", "a b c", "c b a", (1 / 3, True)),
        ("rouge_l", "a b", "", UNREADABLE),
        ("rouge_l", "a b", "c", WRONG),
        ("rouge_l", "Кошка сидит", "кошка спит", (0.5, True)),
        ("rouge_l", "今天下雨", "今天晴", (2 * 2 / 7, True)),
        ("rouge_l", "दिन", "दान", WRONG),  # day and donation: the same letters, other vowel signs
        ("rouge_l", "cafe\u0301", "café", RIGHT),
        ("rouge_l", "แมวดำ", "แมวขาว", (2 * 3 / 11, True)),  # Thai has no spaces either
    ],
)
def test_points(scorer: str, reference: str, answer: str, expected: tuple[float | None, bool]) -> None:
    assert score(scorer, reference, answer) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("reference", "answer", "points"),
    [
        ("[1]", "[true]", 0),
        ('{"b": 1}', '{"b": true}', 0),
        ('[{"b": [0]}]', '[{"b": [false]}]', 0),
        ("1", "true", 0),
        ("1", "1.0", 1),  # JSON has one kind of number
        ('{"b": [1, 2.0]}', '{"b": [1.0, 2]}', 1),
        ('{"b": 1, "c": null}', '{"c": null, "b": 1}', 1),
        ("[1, 2]", "[2, 1]", 0),
        ("[]", "{}", 0),
        ('"1"', "1", 0),
        ("0", "null", 0),
    ],
)
def test_values_in_json_are_equal_at_any_depth(reference: str, answer: str, points: float) -> None:
    assert score("json_fields", f'{{"a": {reference}}}', f'{{"a": {answer}}}') == (points, True)
    assert score("json_fields", f'{{"a": {answer}}}', f'{{"a": {reference}}}') == (points, True)


def test_json_of_any_depth_is_scored() -> None:
    for depth in range(1, 1200, 13):
        nested = '{"a":' * depth + "1" + "}" * depth
        try:
            assert score("json_fields", nested, nested) in ((1.0, True), (0.0, False))
        except ValueError:
            break  # deeper than the parser goes


@pytest.mark.parametrize(
    ("answer", "points", "valid"),
    [
        ("So 6 × 7.\n#### 42", 1, True),
        ("####42", 1, True),
        ("#### +42 apples", 1, True),
        ("#### **42**", 1, True),
        ("#### 4.2e1", 1, True),
        ("#### 7\nNo: #### 42", 1, True),  # the last one counts
        ("#### -42", 0, True),
        ("#### 43", 0, True),
        (r"#### $\boxed{42}$.", 1, True),
        (r"#### \(42\)", 1, True),
        (r"#### \$42", 1, True),
        ("#### 4.2×10^1", 1, True),
        ("#### 0.42 x 10^2", 1, True),
        (r"#### 420 \times 10^{-1}", 1, True),
        ("#### 42 000", 0, True),
        ("#### 42 1/2", 0, False),
        ("#### 42-3", 0, False),
        ("#### 42 - 3", 0, False),
        ("#### 42×3", 0, False),
        ("#### 42x10", 0, False),
        ("#### 42:30", 0, False),
        ("#### 42e1000", 0, False),
        ("#### 42,5", 0, False),
        ("#### 42.1.2", 0, False),
        ("#### -$-42", 0, False),
        ("42", 0, False),
    ],
)
def test_number(answer: str, points: float, valid: bool) -> None:
    assert score("number:####", MARKED, answer) == (points, valid)


@pytest.mark.parametrize(
    "text", ["1 234 567.5", "1'234'567.50", "$1,234,567.5.", "1\u202f234\u202f567.5", "1_234_567.5"]
)
def test_numbers_are_equal_however_they_are_written(text: str) -> None:
    assert score("number:Answer", "Answer: 1234567.5", f"Answer: {text}")[0] == 1
    assert score("number:Answer", "Answer: 1234567.5", f"Answer: -{text}")[0] == 0
    assert score("number:Answer", "Answer: −1234567.5", f"Answer: -{text}")[0] == 1


@pytest.mark.parametrize("text", ["-.5", "−.5", "–.5", "-5 × 10^−1"])
def test_the_sign_and_the_digits_may_stand_in_many_ways(text: str) -> None:
    assert score("number:####", "#### -0.5", f"#### {text}") == (1.0, True)


@given(st.integers(-(10**12), 10**12), st.integers(0, 4))
def test_any_number_is_read_with_and_without_thousands(number: int, decimals: int) -> None:
    assert score("number:=>", f"x => {number}", f"y => {number:,.{decimals}f}.") == (1.0, True)
    assert score("number:=>", f"x => {number}", f"y => {number + 1:,.{decimals}f}")[0] == 0.0


@given(st.text())
def test_any_text_after_the_marker_is_a_number_or_none(text: str) -> None:
    assert score("number:####", "#### 42", f"#### {text}")[0] in (0.0, 1.0)


@pytest.mark.parametrize(
    "text",
    [
        " " * 200_000,
        "1" * 200_000 + "/2",
        "$ " * 200_000,
        "1,111" + ",111" * 200_000 + "/2",
        "1" + "/" * 200_000,
        "1." + "1" * 200_000 + "/2",
        "1" + "-" * 200_000,
        "- " * 200_000,
        "\\" * 200_000,
        r"\boxed" * 200_000,
        "*" * 200_000 + "-" * 200_000,
    ],
)
def test_a_long_answer_is_read_at_once(text: str) -> None:
    start = time.monotonic()
    assert score("number:####", "#### 42", f"#### {text}")[0] == 0.0
    assert time.monotonic() - start < 10  # much less than a second; what is quadratic takes minutes


@pytest.mark.parametrize(
    ("scorer", "reference", "words"),
    [
        ("json_fields", "four", "not a JSON object"),
        ("number:####", "four", "no number after '####'"),
        ("regex:[0-9]+", "four", "finds nothing"),
        (BACKTRACKS, "a" * 5000, "make it simpler"),
        ("rouge_l", "…", "no words"),
        ("code", "def f(): pass", "neither its reference nor its question has an assert"),
    ],
)
def test_a_reference_that_cannot_be_scored_is_an_error(scorer: str, reference: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        score(scorer, reference, "x")


@settings(deadline=None)  # the library takes its time to load
@given(st.text(st.characters(max_codepoint=126)), st.text(st.characters(max_codepoint=126)))
def test_rouge_l_of_ascii_is_the_librarys_own(reference: str, answer: str) -> None:
    from rouge_score.rouge_scorer import RougeScorer

    if any(map(str.isalnum, reference)):
        assert (
            score("rouge_l", reference, answer)[0]
            == RougeScorer(["rougeL"]).score(reference, answer)["rougeL"].fmeasure
        )


@settings(deadline=None)
@given(
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=80), st.lists(st.sampled_from("abcd"), max_size=80)
)
def test_rouge_l_of_many_equal_words_is_the_librarys_own(reference: list[str], answer: list[str]) -> None:
    from rouge_score.rouge_scorer import RougeScorer

    texts = " ".join(reference), " ".join(answer)
    assert score("rouge_l", *texts)[0] == RougeScorer(["rougeL"]).score(*texts)["rougeL"].fmeasure


def test_what_two_texts_begin_with() -> None:
    assert [common_start("abcd", other) for other in ("abXd", "", "ab", "abcde", "Xbcd")] == [2, 0, 2, 4, 0]


def test_rouge_l_of_long_texts_is_quick() -> None:
    reference, answer = (" ".join(str(n * step % 997) for n in range(16_000)) for step in (7, 11))
    start = time.monotonic()
    assert 0 < (score("rouge_l", reference, answer)[0] or 0) < 1
    assert score("rouge_l", reference, reference)[0] == 1.0
    assert time.monotonic() - start < 10  # 0.1 s; what is quadratic takes a minute


OWN = """
def half(reference, answer, row):
    return 0.5 if row["id"] == "r1" else 0
def same(reference, answer, row): return reference == answer
def broken(reference, answer, row): return {}[answer]
def words(reference, answer, row): return "good"
def too_much(reference, answer, row): return 7
def nan(reference, answer, row): return float("nan")
def leave(reference, answer, row): sys.exit(0)
def numpys(reference, answer, row): return {"bool": numpy.True_, "float": numpy.float32(0.5), "array": numpy.ones(2)}[answer]
number = 3
import sys, numpy
"""  # noqa: E501


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "data/evaluation/mine"
    folder.mkdir(parents=True)
    (folder / "own.py").write_text(OWN)
    (folder / "bad.py").write_text("import nowhere_to_be_found")
    (folder / "script.py").write_text("def f(reference, answer, row): return 1\nimport sys\nsys.exit(0)")
    return tmp_path


@pytest.mark.parametrize(
    ("function", "answer", "points"),
    [("half", "b", 0.5), ("same", "a", 1.0), ("numpys", "bool", 1.0), ("numpys", "float", 0.5)],
)
def test_a_function_of_the_users_own(root: Path, function: str, answer: str, points: float) -> None:
    assert score(f"python:mine/own.py:{function}", "a", answer, root) == (points, True)
    assert not list(root.rglob("__pycache__"))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("broken", r"mine/own.py:broken, row r1: .*KeyError: 'b'.*own.py"),
        ("words", "gave 'good'"),
        ("too_much", "gave 7"),
        ("nan", "gave nan"),
        ("leave", "SystemExit: 0.*own.py"),
        ("numpys", "KeyError"),
    ],
)
def test_what_is_wrong_with_the_users_function_is_one_sentence(root: Path, function: str, words: str) -> None:
    with pytest.raises(DataError, match=words) as error:
        score(f"python:mine/own.py:{function}", "a", "b", root)
    assert error.value.id == "Q-METRICS-009"


@pytest.mark.parametrize(
    ("spelling", "words"),
    [
        ("python:none.py:f", "Q-CORE-013"),
        ("python:mine/own.py:absent", "Q-CORE-015"),
        ("python:mine/own.py:number", "Q-CORE-015"),
        ("python:mine/bad.py:f", "Q-CORE-014.*ModuleNotFoundError"),
        ("python:mine/script.py:f", "Q-CORE-014.*SystemExit: 0"),
    ],
)
def test_a_function_that_is_not_there_is_one_sentence(root: Path, spelling: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(spelling, root=root)


@pytest.mark.parametrize(
    ("spellings", "words"),
    [
        (["exakt"], "'exakt' is not a scorer: write exact_match, json_fields"),
        ([""], "is not a scorer"),
        (["exact_match:x"], "exact_match takes nothing after it"),
        (["number:"], "names no marker"),
        (["number"], "names no marker"),
        (["regex:("], r"regex:\( can't be read as a regular expression"),
        (["regex:"], "names no pattern"),
        (["python:f"], "write python:FILE.py:FUNCTION"),
        (["python:../f.py:g"], "write python:FILE.py:FUNCTION"),
        (["python:/etc/f.py:g"], "write python:FILE.py:FUNCTION"),
        (["python:a/../../f.py:g"], "write python:FILE.py:FUNCTION"),
        (["judge"], "evaluate.judge is null"),
        (["external"], "evaluate.external is null"),
    ],
)
def test_a_list_that_cannot_be_is_one_sentence(spellings: list[str], words: str) -> None:
    assert re.search(words, next(scorer_problems(spellings, has_judge=False)))


def test_a_list_that_can_be() -> None:
    every = ["exact_match", "json_fields", "rouge_l", "number:####", "regex:a:b", "code", "python:a/b.py:f"]
    assert not list(scorer_problems(every, has_judge=False))
    assert not list(scorer_problems([*every, "judge"], has_judge=True))
    assert not list(scorer_problems([], has_judge=False))
    with pytest.raises(ConfigError, match="Q-METRICS-014:"):
        parse("exakt")


def test_what_runs_code_is_slow() -> None:
    assert [parse(name).slots for name in ("exact_match", "number:####", "regex:a", "code")] == [1, 1, 1, 2]


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys, pipeline.metrics.scorers, pipeline.metrics.statistics; "
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    names = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"scipy", "nltk", "rouge_score", "openai", "torch", "httpx", "regex"} & set(names)


def test_a_scorer_of_ones_own_names_a_file_and_a_function(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Q-METRICS-008"):
        function("mine.py", tmp_path)
