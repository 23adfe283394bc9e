"""Text that training rows share with the test split or a guarded file: found for certain, shown exactly, and
no template mistaken for it.
"""

import gzip
import io
import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from draws import draws
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import DataError
from pipeline.core.jsonl import dump_line
from pipeline.stages.curate.comparing.contamination import (
    DOCUMENT,
    DOCUMENTS,
    WINDOW,
    Documents,
    Leak,
    Overlaps,
    describe,
    fingerprints,
    of_boilerplate,
)
from pipeline.stages.curate.comparing.features import Boilerplate, boilerplate, features
from pipeline.stages.curate.comparing.shingles import tokenize, word_ngrams
from pipeline.stages.curate.comparing.spill import Spill, Stored
from pipeline.stages.curate.reading.guarded import read_texts
from pipeline.stages.curate.spool import Rows, Spool

N = 13
NOTHING = np.zeros(0, np.uint64)
PLAIN = Boilerplate(NOTHING, NOTHING, NOTHING, NOTHING)
WORD = st.sampled_from("a b c d e f".split())  # few, so that n-grams repeat  # noqa: SIM905
# 20 words
LEAKED = "The quick brown fox, having jumped over the lazy dog, sat down to rest in the shade of a tree."


def words(seed: int, count: int = 30) -> str:
    """Words that no other seed has."""
    dice = random.Random(seed)  # noqa: S311
    return " ".join(f"w{seed}x{dice.randrange(10**9)}" for _ in range(count))


def chat(asked: str, output: str, **more: Any) -> dict[str, Any]:
    """A row of one exchange."""
    turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": output}]
    return {"id": "0" * 16, "source": "a.jsonl:1", "kind": "chat", "domain": "a", "messages": turns, **more}


def leaks(
    rows: list[dict[str, Any]], test: set[int], *files: Path, ngram: int = N, look: bool = False
) -> list[Leak]:
    """The product's answer; all rows that aren't test rows are trained on."""
    with TemporaryDirectory() as name:
        common = boilerplate(rows, Path(name), ngram=ngram) if look else PLAIN
        prints, documents = Spill(Path(name)), Documents(Path(name))
        for at in range(0, len(rows), 16):
            keys, own = features(rows[at : at + 16], common, threshold=0.8, ngram=ngram).fingerprints
            prints.add(keys, own + np.uint32(at))
        prints.finish()
        for file in files:
            documents.add_file(file, file.name, ngram, common.grams)
        documents.finish()
        spills = [prints, Stored(Path(name), DOCUMENTS)]
        tested = np.array([i in test for i in range(len(rows))])
        return list(
            Overlaps(spills, Path(name), ngram, common.grams).leaks(~tested, tested, rows.__getitem__)
        )


def with_leak(row: int, output: str) -> list[dict[str, Any]]:
    """Twenty rows; the last has the leaked text, and `row` answers with `output`."""
    rows = [chat(words(i), words(i + 100)) for i in range(20)]
    rows[19] = chat(f"Tell me: {LEAKED}", words(1000))
    rows[row] = chat(words(row), output)
    return rows


@pytest.mark.parametrize(
    ("output", "shared"),
    [
        (f"Well. {LEAKED} Indeed.", LEAKED[:-1]),
        (f"Well. {LEAKED.upper()} Indeed.", LEAKED.upper()[:-1]),
        (f"Well. {LEAKED.replace(',', '')} Indeed.", LEAKED.replace(",", "")[:-1]),
        (LEAKED[21:], LEAKED[21:-1]),
        (" ".join(LEAKED.split()[:13]) + " elsewhere", " ".join(LEAKED.split()[:13])),
        (" ".join(LEAKED.split()[:12]) + " elsewhere", None),
        (" ".join([*LEAKED.split()[:12], "very", *LEAKED.split()[12:]]), None),
        (" ".join(reversed(LEAKED.split())), None),
    ],
)
def test_a_leak_is_found_and_shown(output: str, shared: str | None) -> None:
    found = leaks(with_leak(7, output), {19})
    assert [(leak.row, leak.other, leak.file) for leak in found] == ([(7, 19, None)] if shared else [])
    for leak in found:
        [span] = leak.spans
        assert (span.place, span.text) == ("messages 2", shared)
        assert output[span.start : span.end] == shared


def test_turns_are_not_put_together() -> None:
    half = LEAKED.split()
    rows = with_leak(7, words(7))
    rows[7] = chat(" ".join(half[:10]), " ".join(half[10:]))
    assert leaks(rows, {19}) == []


def test_system_turns_and_the_test_split_itself_do_not_count() -> None:
    rows = with_leak(7, words(7))
    rows[7]["messages"].insert(0, {"role": "system", "content": LEAKED})
    rows[18] = chat(LEAKED, words(18))
    assert leaks(rows, {18, 19}) == []
    rows[7]["messages"][1]["content"] += LEAKED
    assert [[span.place for span in leak.spans] for leak in leaks(rows, {18, 19})] == [["messages 2"]]


def test_reasoning_and_tool_calls_count() -> None:
    rows = with_leak(7, words(7))
    rows[7]["messages"][1]["reasoning_content"] = f"Hm. {LEAKED}"
    rows[8]["messages"][1] |= {
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "say", "arguments": {"text": LEAKED}}}],
    }
    found = leaks(rows, {19})
    assert [(leak.row, [(span.place, span.text) for span in leak.spans]) for leak in found] == [
        (7, [("messages 2 reasoning_content", LEAKED[:-1])]),
        (8, [("messages 2 tool_calls", LEAKED[:-1])]),
    ]


def test_what_the_rejects_say_of_a_leak(tmp_path: Path) -> None:
    call = {
        "type": "function",
        "function": {
            "name": "a_name_longer_than_the_text",
            "arguments": {"text": f"{LEAKED} {words(1, 40)}"},
        },
    }
    row = chat("do", "")
    row["messages"][1]["tool_calls"] = [call]
    row["messages"][1]["content"] = "short"
    [leak] = leaks([row, chat(f"{LEAKED} {words(1, 40)}", "yes")], {1})
    spool = Spool(tmp_path / "rows")
    spool.append([dump_line(row), dump_line(row | {"source": "b.jsonl:2"})])
    spool.finish()
    printed = describe(leak, Rows([tmp_path / "rows"]), N)
    [span] = printed["spans"]
    assert (printed["detail"], span["place"]) == (
        "shares a run of 13 words or more with test row b.jsonl:2",
        "messages 2 tool_calls",
    )
    assert span["text"].startswith(LEAKED)
    assert span["end"] - span["start"] > len(span["text"]) - 1 == 300


@pytest.mark.parametrize("others", [0, 400])
def test_what_many_rows_say_is_a_leak(others: int, tmp_path: Path) -> None:
    """Of a named file's text always, of a test row's unless 5 % of all rows (26, or 426) say it."""
    (tmp_path / "exam.txt").write_text(LEAKED, encoding="utf-8")
    rows = [chat(words(i), f"{words(i + 5000)} {LEAKED}") for i in range(25 + others)]
    for row in rows[25:]:
        row["messages"][1]["content"] = words(3)
    rows.append(chat(LEAKED, words(9999)))
    assert [leak.row for leak in leaks(rows, {len(rows) - 1}, look=False)] == list(range(25))
    assert [leak.row for leak in leaks(rows, {len(rows) - 1}, look=True)] == []
    assert [leak.row for leak in leaks(rows, set(), tmp_path / "exam.txt", look=True)] == [
        *range(25),
        len(rows) - 1,
    ]
    assert [leak.row for leak in leaks(rows, {len(rows) - 1}, tmp_path / "exam.txt", look=True)] == list(
        range(25)
    )


@pytest.mark.parametrize("seed", range(8))
def test_a_common_phrase_is_no_leak_beside_a_short_run(seed: int) -> None:
    """Row 3 and the test row share a common phrase of 20 words and, elsewhere, 12 words that nobody else
    has.
    """
    rows = [chat(f"{words(i)} {LEAKED}", words(i + 500)) for i in range(25)]
    rows[3]["messages"][1]["content"] = rows[-1]["messages"][1]["content"] = ""
    for row, others in ((3, 600), (-1, 700)):
        rows[row]["messages"][1]["content"] = (
            f"{words(others + seed)} {words(800 + seed, 12)} {words(others + 50 + seed)}"
        )
    assert leaks(rows, {len(rows) - 1}, look=True) == []


def test_a_template_is_no_leak() -> None:
    rows = [chat(f"{LEAKED}\n{words(i)}", words(i + 500)) for i in range(60)]
    rows[5] = chat(f"{LEAKED}\n{words(50)}", words(5))  # asks what row 50 asks
    found = leaks(rows, set(range(50, 60)), look=True)
    assert [(leak.row, leak.other) for leak in found] == [(5, 50)]


def test_guarded_files(tmp_path: Path) -> None:
    benchmark, notes = tmp_path / "bench.jsonl", tmp_path / "notes.txt"
    lines = [
        {"question": words(200), "answer": "short"},
        {"question": words(201), "choices": ["a", {"b": f"So: {LEAKED}"}]},
    ]
    benchmark.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n", encoding="utf-8")
    notes.write_text(
        f"{words(300)}\n\nfirst line\r\n{LEAKED[:20]}\n{LEAKED[21:]}\n\n\n{words(301)}", encoding="utf-8"
    )
    rows = with_leak(7, LEAKED)[:19]
    assert [(leak.row, leak.file, leak.line) for leak in leaks(rows, set(), benchmark)] == [
        (7, "bench.jsonl", 2)
    ]
    assert [(leak.row, leak.file, leak.line) for leak in leaks(rows, set(), notes)] == [(7, "notes.txt", 3)]
    assert [line for line, _ in read_texts(notes)] == [1, 3, 8]
    with TemporaryDirectory() as folder:
        documents = Documents(Path(folder))
        assert [documents.add_file(file, "x", N, NOTHING) for file in (benchmark, notes)] == [
            3,
            3,
        ]  # the texts of 13 words or more


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ("Q-CURATE-006",)),
        (b'{"a": 1}\n{"a": \n', ("Q-CURATE-007", "line 2")),
        (b'\xff\xfe{"a"}', ("Q-CURATE-007", "line 1", "UTF-8")),
        (b'{"a": "b"}\n["a", "b"]\n', ("Q-CURATE-007", "line 2")),
    ],
)
def test_a_guarded_file_that_cannot_be_read(
    content: bytes | None, words: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "bench.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        list(read_texts(path))
    for word in ("bench.jsonl", "curate.decontaminate", *words):
        assert word in str(caught.value)


def packed(name: str) -> bytes:
    """A file of that name with the leaked text in its second row."""
    rows = [{"q": "what?", "a": "that"}, {"q": "what?", "a": LEAKED.replace(" sat", "\nsat")}]
    if name.lower().endswith(".parquet"):
        table = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows), table)
        return table.getvalue()
    lines = [json.dumps(row) for row in rows]
    text = (
        "[" + ",\n".join(lines) + "]" if ".json" in name and ".jsonl" not in name else "\n".join(lines)
    ).encode()
    if ".csv" in name:
        text = f'q,a\nwhat?,that\nwhat?,"{rows[1]["a"]}"\n'.encode()
    return gzip.compress(text) if name.endswith(".gz") else text


@pytest.mark.parametrize(
    "name",
    [
        "x.jsonl",
        "X.JSONL",
        "x.jsonl.gz",
        "x.ndjson",
        "x.json",
        "x.json.gz",
        "x.csv",
        "x.parquet",
        "X.Parquet",
    ],
)
def test_guarded_files_of_every_container(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(packed(name))
    assert [(leak.row, leak.file) for leak in leaks(with_leak(7, LEAKED)[:19], set(), tmp_path / name)] == [
        (7, name)
    ]
    assert [text for _, text in read_texts(tmp_path / name)][-1].split() == LEAKED.split()


@pytest.mark.parametrize("name", ["x.TXT", "x.md"])
def test_guarded_plain_text(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(f"one\n\n{LEAKED}", encoding="utf-8")
    assert list(read_texts(tmp_path / name)) == [(1, "one\n"), (3, f"{LEAKED}\n")]


@pytest.mark.parametrize("name", ["exam", "exam.npy", "exam.jsonl.xz", "exam.txt.gz", "exam.parquet.gz"])
def test_a_guarded_file_of_no_known_kind_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(LEAKED, encoding="utf-8")
    with pytest.raises(DataError, match="Q-CURATE-006"):
        list(read_texts(tmp_path / name))


@given(
    st.lists(WORD, max_size=12),
    st.lists(WORD, max_size=12),
    st.lists(WORD, max_size=12),
    st.lists(WORD, max_size=12),
    st.data(),
)
def test_texts_with_a_run_in_common_have_a_fingerprint_in_common(
    a: list[str], b: list[str], c: list[str], d: list[str], data: st.DataObject
) -> None:
    ngram = data.draw(st.integers(8, 16))
    run = data.draw(st.lists(WORD, min_size=ngram, max_size=ngram + 3))
    tokens = tokenize([" ".join([*a, *run, *b]), ", ".join([*c, *run, *d])])
    grams = word_ngrams(tokenize([" ".join(run)]), ngram - WINDOW + 1)[0]
    common = np.unique(grams[data.draw(st.lists(st.integers(0, len(grams) - 1)))])
    keys, rows = fingerprints(tokens, np.arange(3), common, ngram)
    shared = np.intersect1d(keys[rows == 0], keys[rows == 1])
    assert len(shared)
    if not np.isin(grams[:WINDOW], common).all():  # the first run of `ngram` words isn't all boilerplate
        assert not of_boilerplate(shared).all()


@settings(max_examples=draws(40))
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 6), max_size=3), st.sampled_from(["train", "test", "dropped", "document"])
        ),
        max_size=12,
    )
)
def test_candidates_are_those_of_a_plain_join(rows: list[tuple[list[int], str]]) -> None:
    """Each row with its keys; documents come last, as files are read after rows."""
    rows = sorted(rows, key=lambda row: row[1] == "document")
    known = [row for row in rows if row[1] != "document"]
    with TemporaryDirectory() as folder:
        Documents(Path(folder)).finish()
        prints = Spill(Path(folder))
        for i, (keys, role) in enumerate(rows):
            spelled = np.array([key * 0x9E3779B97F4A7C15 % 2**64 for key in keys], np.uint64)
            number = i if role != "document" else DOCUMENT + i - len(known)
            prints.add(spelled, np.full(len(keys), number, np.uint32))
        prints.finish()
        found = Overlaps([prints], Path(folder), N, NOTHING).candidates(
            np.array([role == "train" for _, role in known], np.bool_),
            np.array([role == "test" for _, role in known], np.bool_),
        )
    partners: dict[tuple[int, int], set[int]] = {}
    for i, (keys, role) in enumerate(rows):
        for j, (others, other) in enumerate(rows):
            for key in set(keys) & set(others):
                # an odd key is one of boilerplate
                if role == "train" and (other == "document" or (other == "test" and key % 2 == 0)):
                    partners.setdefault((i, key), set()).add(
                        j if other == "test" else DOCUMENT + j - len(known)
                    )
    expected = {
        (i, other, key * 0x9E3779B97F4A7C15 % 2**64)
        for (i, key), others in partners.items()
        for other in sorted(others)[:4]
    }
    assert {tuple(pair) for pair in found.tolist()} == expected
    assert len(found) == len(expected)
