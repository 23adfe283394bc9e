"""Text that rows share with each other or with a guarded file: found for certain, shown exactly, kept on one
side of the split where that can be, and no template mistaken for it.
"""

import gzip
import io
import json
import random
import re
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from curating import Project, Row, chat, given, of_rows, with_system

from pipeline.core.errors import DataError
from pipeline.stages.curate.stage import curate, loud_sentences

N = 13
# 20 words
LEAKED = "The quick brown fox, having jumped over the lazy dog, sat down to rest in the shade of a tree."
Spans = list[tuple[str, str]]  # place and text


def words(seed: int, count: int = 30) -> str:
    """Words that no other seed has."""
    dice = random.Random(seed)  # noqa: S311
    return " ".join(f"w{seed}x{dice.randrange(10**9)}" for _ in range(count))


def leaks(project: Project, **changes: Any) -> dict[int, Row]:
    """The rows that were left out, by line."""
    project.run(**changes)
    found = project.rejects()
    assert {reject["reason"] for reject in found} <= {"contaminated"}
    return {reject["line"]: reject for reject in found}


def guarded(root: Path, rows: list[Row], text: str = LEAKED, **changes: Any) -> dict[int, Spans]:
    """Return what training rows share with a named file of that text, by line."""
    project = of_rows(root, rows, guard={"exam.txt": text})
    found = leaks(project, decontaminate=["exam.txt"], **changes)
    return {line: [(span["place"], span["text"]) for span in one["spans"]] for line, one in found.items()}


SHARED = [
    (f"Well. {LEAKED} Indeed.", LEAKED[:-1]),
    (f"Well. {LEAKED.upper()} Indeed.", LEAKED.upper()[:-1]),
    (f"Well. {LEAKED.replace(',', '')} Indeed.", LEAKED.replace(",", "")[:-1]),
    (LEAKED[21:], LEAKED[21:-1]),
    (" ".join(LEAKED.split()[:13]) + " elsewhere", " ".join(LEAKED.split()[:13])),
    (" ".join(LEAKED.split()[:12]) + " elsewhere", None),
    (" ".join([*LEAKED.split()[:12], "very", *LEAKED.split()[12:]]), None),
    (" ".join(reversed(LEAKED.split())), None),
]


def test_a_leak_is_found_and_shown(tmp_path: Path) -> None:
    rows = [chat(words(number), output) for number, (output, _) in enumerate(SHARED)]
    project = of_rows(tmp_path, rows, guard={"exam.txt": LEAKED})
    found = leaks(project, decontaminate=["exam.txt"], drop_duplicates="none")
    assert [*found] == [number for number, (_, shared) in enumerate(SHARED, start=1) if shared]
    for number, reject in found.items():
        output, shared = SHARED[number - 1]
        [span] = reject["spans"]
        assert (span["place"], span["text"]) == ("messages 2", shared)
        assert output[span["start"] : span["end"]] == shared
    counted = json.loads(project.outputs()["reports/data.json"])["contamination"]
    assert all(span["rows"] == 1 for span in counted.pop("spans"))
    assert counted == {
        "rows": 5,
        "sources": {"exam.txt": 5},
        "guarded_texts": {"exam.txt": 1},
    }


def test_where_a_leak_counts(tmp_path: Path) -> None:
    """In one text that is learned or asked, whatever part of the row it is; a system turn is none."""
    half, long = LEAKED.split(), f"{LEAKED} {words(1, 40)}"
    call = {"type": "function", "function": {"name": "say_it", "arguments": {"text": long}}}
    other = [with_system(LEAKED, chat(words(n), words(n + 50))) for n in (601, 602, 603)]
    rows = [
        chat(" ".join(half[:10]), " ".join(half[10:])),
        with_system(LEAKED, chat(words(2), words(3))),
        with_system(LEAKED, chat(words(4) + LEAKED, words(5))),
        {
            "messages": [
                *chat(words(6))["messages"][:1],
                {"role": "assistant", "content": "x", "reasoning_content": long},
            ]
        },
        {
            "messages": [
                *chat(words(7))["messages"][:1],
                {"role": "assistant", "content": "", "tool_calls": [call]},
            ]
        },
        {"prompt": words(8), "answer": LEAKED},
        {"prompt": words(9), "chosen": "yes", "rejected": LEAKED},
        {"text": LEAKED},
        *other,
    ]
    project = of_rows(tmp_path, rows, guard={"exam.txt": long})
    found = leaks(project, decontaminate=["exam.txt"], drop_duplicates="none")
    assert {line: reject["spans"][0]["place"] for line, reject in found.items()} == {
        3: "messages 2",
        4: "messages 2 reasoning_content",
        5: "messages 2 tool_calls",
        6: "answer",
        7: "rejected 1",
        8: "segments 1",
    }
    for line in (4, 5):  # what is shown has an end
        [span] = found[line]["spans"]
        assert span["text"].startswith(LEAKED)
        assert span["end"] - span["start"] > len(span["text"]) - 1 == 300


def runs(row: Row, length: int) -> set[tuple[str, ...]]:
    """Every run of so many words of a row's turns but the system's."""
    found = set()
    for turn in row["messages"]:
        said = re.findall(r"\w+", turn["content"].lower()) if turn["role"] != "system" else []
        found |= {tuple(said[i : i + length]) for i in range(len(said) - length + 1)}
    return found


def grams(run: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The shorter runs in one, of which all are boilerplate if it is."""
    return [run[i : i + len(run) - 4] for i in range(5)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_leaks_are_those_of_a_comparison_of_all_rows(seed: int, tmp_path: Path) -> None:
    """Rows that share runs of 5 words less than `N` to 5 more with one, three or thirty others: of the
    last the shorter runs are boilerplate, and count for nothing. Chains of few rows are not divided.
    """
    dice = random.Random(seed)  # noqa: S311
    rows = [[words(n, 40), words(n + 1000, 60)] for n in range(200)]
    for phrase in range(100):
        is_rare = phrase > 2
        text = words(phrase + 5000, dice.randint(N - 5, N + 5) if is_rare else N + 5)
        for number in dice.sample(range(200), dice.choice([2, 4]) if is_rare else 30):
            own = rows[number][side := dice.randrange(2)].split()
            place = dice.randrange(len(own))
            rows[number][side] = " ".join([*own[:place], dice.choice([text, text.upper()]), *own[place:]])
    chats = [chat(*texts) for texts in rows]
    every = [runs(row, N) for row in chats]
    often = Counter(gram for own in every for gram in {gram for run in own for gram in grams(run)})
    common = {gram for gram, count in often.items() if count >= 20}
    project = of_rows(tmp_path, chats)
    found = leaks(project, test_fraction=0.4, seed=seed)
    tested = set().union(*(every[line - 1] for line in project.lines("test")))
    counted = {run for run in tested if not common.issuperset(grams(run))}
    trained = set(range(1, 201)) - set(project.lines("test"))
    assert set(found) == {line for line in trained if every[line - 1] & counted}
    chains = {line: {line} for line in range(1, 201)}
    for a, b in combinations(range(1, 201), 2):
        shared = {run for run in every[a - 1] & every[b - 1] if not common.issuperset(grams(run))}
        if shared:
            chains[a] |= chains[b]
            for line in chains[a]:
                chains[line] = chains[a]
    assert not {line for line in found if len(chains[line]) <= 20}
    assert found and common and set(project.lines("train")) == trained - set(found)
    assert not {line for line in found if len(chains[line]) <= 20}
    for reject in found.values():
        source = int(reject["detail"].rpartition(":")[2])
        assert source in project.lines("test") and every[source - 1] & every[reject["line"] - 1]


@pytest.mark.slow
def test_what_many_rows_say_is_a_leak_of_a_named_file_only(tmp_path: Path) -> None:
    """A run counts against the test split unless it is a phrase: five rows say it. Four of ten rows are too
    many to stay together.
    """
    for saying, others, counts in ((4, 6, True), (25, 575, False), (25, 5, False)):
        rows = [chat(words(i), f"{words(i + 5000)} {LEAKED}") for i in range(saying)]
        rows += [chat(words(i), words(i + 5000)) for i in range(saying, saying + others)]
        project = of_rows(tmp_path / str(others), rows, guard={"exam.txt": LEAKED, "other.txt": words(9999)})
        for files in ([], ["other.txt"]):
            found = leaks(project, decontaminate=files, test_fraction=0.4, seed=1)
            tested = [line for line in project.lines("test") if line <= saying]
            assert tested
            assert set(found) == (set(range(1, saying + 1)) - set(tested) if counts else set())
        found = leaks(project, decontaminate=["exam.txt"], test_fraction=0.4, seed=1)
        assert set(found) == set(range(1, saying + 1)) - set(tested)


MACROS = [words(9000 + number, 20) for number in range(12)]
CLOSINGS = [f"{words(9100 + number, 9)} Kind regards" for number in range(3)]
AGENTS = ["Lena from the support team", "S. Wolff", "Tom", "Aylin K. from customer care"]
FOOTERS = [words(9200 + number, 15) for number in range(2)]


def reply(dice: random.Random, answer: str) -> str:
    """An answer of a support desk: its own words between a greeting, macros, a sign-off and a footer."""
    macros = dice.sample(MACROS, 2)
    end = f"{dice.choice(CLOSINGS)} {dice.choice(AGENTS)} {dice.choice(FOOTERS)}"
    return "\n".join(["Hello,", macros[0], answer, macros[1], end])


def test_a_support_desk_loses_no_row_and_copied_answers_stay_together(tmp_path: Path) -> None:
    dice = random.Random(5)  # noqa: S311
    rows = [chat(words(n, 15), reply(dice, words(n + 1000))) for n in range(300)]
    for copied in range(20):  # The same answer but for a word, to another question, between other phrases.
        answer = words(copied + 1000).split()
        answer[3] = "other"
        rows.append(chat(words(copied + 2000, 15), reply(dice, " ".join(answer))))
    project = of_rows(tmp_path, rows)
    assert leaks(project, test_fraction=0.3, seed=2) == {}
    tested = set(project.lines("test"))
    pairs = [{number, number + 300} for number in range(1, 21)]
    assert {len(pair & tested) for pair in pairs} == {0, 2}


def test_a_chain_of_more_than_a_tenth_of_the_rows_is_divided(tmp_path: Path) -> None:
    """A group of so many rows would leave the split little to choose from."""
    spans = [words(number + 500, N) for number in range(20)]
    chained = [chat(words(n), f"{spans[n]} {words(n + 100)} {spans[(n + 1) % 20]}") for n in range(20)]
    others = [chat(words(n), words(n + 500)) for n in range(20, 60)]
    project = of_rows(tmp_path, chained + others)
    found = leaks(project, test_fraction=0.3)
    tested = set(project.lines("test"))
    neighbors = {line: {line % 20 + 1, (line - 2) % 20 + 1} for line in range(1, 21)}
    trained = neighbors.keys() - tested
    assert found and set(found) == {line for line in trained if neighbors[line] & tested}


def test_a_reason_that_takes_more_than_a_fifth_of_the_rows_is_said(tmp_path: Path) -> None:
    rows = [chat(words(n), f"{words(n + 500)} {LEAKED if n < 4 else ''}") for n in range(10)]
    project = of_rows(tmp_path, rows, guard={"exam.txt": LEAKED})
    said = loud_sentences(curate(project.root, given(decontaminate=["exam.txt"]), 1))
    assert "4 rows" in said[0] and "contaminated, 40%" in said[0]
    assert "quench doctor explain contaminated" in said[0] and "4 rows share" in said[1]
    assert loud_sentences(curate(project.root, given(), 1)) == []


def test_a_phrase_is_no_boilerplate_for_being_repeated_in_one_row(tmp_path: Path) -> None:
    rows = [chat(words(1), f"{words(2)} {LEAKED} " * 25), chat(words(3), f"{words(4)} {LEAKED}")]
    rows += [chat(words(n), words(n + 500)) for n in range(10, 70)]
    sides = set()
    for seed in range(8):
        project = of_rows(tmp_path / str(seed), rows)
        assert leaks(project, test_fraction=0.5, seed=seed) == {}
        sides.add(len({1, 2} & set(project.lines("test"))))
    assert sides == {0, 2}


def test_a_common_phrase_is_no_leak_beside_a_short_run(tmp_path: Path) -> None:
    """Pairs of rows share a common phrase of 20 words and, elsewhere, 12 words that no other row has."""
    rows = []
    for pair in range(40):
        short = words(800 + pair, 12)
        rows += [
            chat(
                f"{words(pair + side)} {LEAKED}",
                f"{words(pair + side + 2000)} {short} {words(pair + side + 3000)}",
            )
            for side in (0, 100)
        ]
    project = of_rows(tmp_path, rows)
    assert leaks(project, test_fraction=0.4) == {}


def of_container(name: str, text: str) -> bytes:
    """A file of that name with the text in its second row."""
    rows = [
        {"q": "what?", "a": "that"},
        {"q": "what?", "choices": ["a", {"b": text.replace(" sat", "\nsat")}]},
    ]
    if name.lower().endswith(".parquet"):
        table = io.BytesIO()
        pq.write_table(pa.Table.from_pylist([{"q": "what?", "a": one} for one in ("that", text)]), table)
        return table.getvalue()
    packed = "\n".join(map(json.dumps, rows)) + "\n\n"
    if ".json" in name and ".jsonl" not in name:
        packed = json.dumps(rows)
    if ".csv" in name:
        packed = f'q,a\nwhat?,that\nwhat?,"{text}"\n'
    if name.lower().endswith((".txt", ".md")):
        packed = f"{words(300)}\n\nfirst line\r\n{text[:20]}\n{text[21:]}\n\n\n{words(301)}"
    return gzip.compress(packed.encode()) if name.endswith(".gz") else packed.encode()


GUARDED = {
    "x.jsonl": 2,
    "X.JSONL": 2,
    "x.jsonl.gz": 2,
    "x.ndjson": 2,
    "x.json": 2,
    "x.json.gz": 2,
    "x.csv": 3,
    "x.parquet": 2,
    "X.Parquet": 2,
    "notes.TXT": 3,
    "notes.md": 3,
}


def test_guarded_files_of_every_container(tmp_path: Path) -> None:
    """Each has a sentence of its own, and a row that says it; what is named is the line where it begins."""
    said = {name: re.sub(r"\w+", lambda word, n=n: f"{word[0]}{n}", LEAKED) for n, name in enumerate(GUARDED)}
    project = of_rows(
        tmp_path,
        [chat(words(n), f"{words(n + 50)} {text}") for n, text in enumerate(said.values())] + [chat("a")],
        guard={name: of_container(name, text) for name, text in said.items()},
    )
    found = leaks(project, decontaminate=[*GUARDED])
    where = {n: re.search(r"with (\S+) line (\d+)", reject["detail"]) for n, reject in found.items()}
    places = [(one[1], int(one[2])) for one in where.values() if one]
    lines = dict(places)
    assert [*lines] == [*GUARDED]
    assert {name: line for name, line in lines.items() if name != "x.csv"} == {
        name: line for name, line in GUARDED.items() if name != "x.csv"
    }
    report = json.loads(project.outputs()["reports/data.json"])
    texts = {name: 3 if name.startswith("notes") else 1 for name in GUARDED}
    assert report["contamination"]["guarded_texts"] == texts  # those of 13 words or more


@pytest.mark.parametrize(
    ("name", "content", "id", "line"),
    [
        ("bench.jsonl", None, "Q-CURATE-006", ""),
        ("bench.jsonl", b'{"a": 1}\n{"a": \n', "Q-CURATE-007", "line 2"),
        ("bench.jsonl", b'\xff\xfe{"a"}', "Q-CURATE-007", "line 1"),
        ("bench.jsonl", b'{"a": "b"}\n["a", "b"]\n', "Q-CURATE-007", "line 2"),
        ("bench.txt", b"one\n\n" + LEAKED.encode("utf-16"), "Q-CURATE-007", "line 3"),
        *((name, b"text", "Q-CURATE-006", "") for name in ("exam", "exam.npy", "exam.jsonl.xz")),
        *((name, b"text", "Q-CURATE-006", "") for name in ("exam.txt.bz2", "exam.parquet.gz")),
    ],
)
def test_a_guarded_file_that_can_not_be_read(
    name: str, content: bytes | None, id: str, line: str, tmp_path: Path
) -> None:
    project = of_rows(tmp_path, [chat("a")], guard={} if content is None else {name: content})
    with pytest.raises(DataError, match=f"{id}: .*{name}.*{line}") as caught:
        project.run(decontaminate=[name])
    assert "curate.decontaminate" in str(caught.value)
    assert project.outputs() == {}
