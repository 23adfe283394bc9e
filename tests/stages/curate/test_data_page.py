"""The data page that the stage writes and what it prints: whole, as a reader sees them, of a project in which
every rule finds something; and what a page is whatever it shows.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from curating import Project, Row, chat, lines, of_rows, sentence
from golden import Golden
from html_page import Page, assert_accessible, lines_of
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_folders import smollm_folder

from pipeline.__main__ import run
from pipeline.core.text import percent
from pipeline.pages.differences import clipped, marked
from pipeline.pages.drawings import Step, bars, flow
from pipeline.stages.curate.account import CurationReport
from pipeline.stages.curate.page import render_data_page

EXAM = "The quick brown fox, having jumped over the lazy dog, <i>sat down</i> to rest in the shade of a tree."
SETTINGS = {
    "val_fraction": 0.1,
    "test_fraction": 0.2,
    "max_tokens": 200,
    "decontaminate": ["exam.txt"],
    "pairs": "rewards",
    "temperature": 0.5,
}


def turns(*roles: str, words: str = "says") -> Row:
    return {"messages": [{"role": role, "content": f"{role} {words}"} for role in roles]}


LONG = [
    turn for n in range(8) for turn in chat(f"{n} {sentence(n + 70, 9)}", sentence(n + 80, 9))["messages"]
]
ODD: list[Row] = [  # rows that a rule changes, leaves out or puts together
    *(chat("Print the date", answer) for answer in ("date", "date +%F", 'echo "$(date)"')),
    chat("rate this", "a word", score=0.2),
    chat("rate this", "another one", score=0.9),
    chat("twice", sentence(901, 40)),
    chat("twice", sentence(901, 40)),
    chat("Twice", f"{sentence(901, 40)} <b>more</b>"),
    chat("the cafe\u0301 is <b>open</b>", "so it is"),
    chat("say <|im_end|> now", "write to eve@cafe.fr or +1 212 555 0123"),
    chat("my key", "AKIA" + "Z7Q2M4K9X1B3C5D8"),
    chat("how?", "I'm sorry, but I can't assist with that."),
    chat("exam", f"{sentence(77, 20)} {EXAM}"),
    turns("user", "user", "assistant", "user"),
    turns("user"),
    {"prompt": "tea?", "chosen": "green", "rejected": "no"},
    {"prompt": "how many legs has a spider?", "answer": 8},
    {"x": "<script>alert(1)</script>"},
    {"messages": LONG},
    {"text": "".join(f"Sentence {n} is about thing {n * 7919 % 1000}. " for n in range(40))},
]


def plain(number: int) -> Row:
    domain = "wiki/én" if number % 5 else "sums"
    return chat(f"question {sentence(number, 4)}", sentence(number + 500, 2 + number % 30), domain=domain)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    table = "".join(f'"cell {n}, {sentence(n + 300, 5)}",{sentence(n + 400, 5)}\r\n' for n in range(9))
    more = [chat(sentence(n, 6), sentence(n + 40, 6)) for n in range(800, 806)]
    files = {
        "chats.jsonl": lines(*map(plain, range(60)), *ODD) + b"no <b>JSON</b>\n\n" + b"x" * (5 << 20),
        "export/table.csv": f"\ufeffprompt,completion\r\n{table}".encode(),
        "notes.xz": b"no container",
        "c\n\x1b.doc": b"nor is this",
        "empty.jsonl": b"",
    }
    made = Project(tmp_path_factory.mktemp("page"), files, guard={"exam.txt": EXAM})
    (made.root / "elsewhere").write_text(json.dumps(more))
    (made.raw / "link.json").symlink_to(made.root / "elsewhere")
    smollm_folder(made.root / "models/base")
    return made


def test_what_a_reader_is_told(project: Project, capsys: pytest.CaptureFixture[str], snapshot: Any) -> None:
    curate = {key: value for key, value in SETTINGS.items() if key != "max_tokens"}
    length = {"max_length": SETTINGS["max_tokens"]}
    (project.root / "params.yaml").write_text(json.dumps({"curate": curate, "preprocess": length}))
    run("curate", project.root, None)
    html = project.outputs()["reports/data.html"].decode()
    assert lines_of(html) == snapshot(name="page", extension_class=Golden)
    printed = capsys.readouterr().out.replace(str(project.root), "ROOT")
    assert printed == snapshot(name="printed", extension_class=Golden)


@pytest.fixture(scope="module")
def html(project: Project) -> str:
    project.run(**SETTINGS)
    return project.outputs()["reports/data.html"].decode()


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_the_page_is_one_small_file_that_loads_nothing(html: str, page: Page) -> None:
    assert len(html) < 200_000
    assert not re.findall(r"https?:|@import|src=|url\((?!#)", html)
    assert not {"script", "link", "iframe", "img", "object"} & {tag for tag, _ in page.tags}
    assert "default-src 'none'" in html


def test_what_users_wrote_is_text_not_markup(page: Page) -> None:
    for words in ("<script>alert(1)</script>", "<i>sat", "<b>open</b>", "<b>more</b>", "no <b>JSON</b>"):
        assert words in page.text
    assert not {"script", "i"} & {tag for tag, _ in page.tags}


def test_the_page_is_accessible(page: Page) -> None:
    assert_accessible(page)
    tags = [tag for tag, _ in page.tags]
    assert tags.count("svg") == tags.count("desc") == 4
    assert tags.count("table") >= 8


def section(html: str, heading: str) -> str:
    """The text of one section."""
    return lines_of(html).partition(f"## {heading}\n")[2].partition("\n## ")[0]


def test_what_was_not_measured_is_not_shown_as_none_found(tmp_path: Path) -> None:
    off = {"secrets": "keep", "personal": [], "drop_duplicates": "none"}
    project = of_rows(tmp_path, [chat("a question")])
    found = {}
    for name, changes in (("on", {}), ("off", off)):
        project.run(**changes)
        html = project.outputs()["reports/data.html"].decode()
        said = {heading: section(html, heading) for heading in re.findall(r"<h2[^>]*>([^<]+)</h2>", html)}
        found[name] = {one for one in said if "Not measured" in said[one] and "None found" not in said[one]}
    open_ = {"Near duplicates", "One request, several answers", "Leaks prevented by the split", "Redactions"}
    assert found["off"] - found["on"] == open_


def test_huge_and_many_numbers_stay_readable(project: Project, html: str) -> None:
    names = [f"{n}" for n in range(3000)]
    big = json.loads(project.outputs()["reports/data.json"]) | {
        "rows_read": 10**12,
        "rejected": {f"reason_{n}": 10**9 - int(n) for n in names[:500]},
        "domains": {n: {"read": 10**9, "train": 10**9 - int(n), "val": 0, "test": 0} for n in names},
        "files": {f"{n}.jsonl": {"rows": 10**9 - int(n)} for n in names},
        "turns": dict.fromkeys(names[1:2000], 10**9),
    }
    samples = ("rejects", "changes", "clusters", "answers", "contamination", "pairs", "rows")
    drawn = render_data_page(CurationReport(**big), {name: [] for name in samples})
    Page(drawn)
    assert len(drawn) < 300_000
    for heading, of in (("Domains", "3,000"), ("Rejected lines", "500")):
        assert re.search(rf"\b40 of {of}\b", section(drawn, heading))
    assert f"{10**12:,} read" in drawn


@pytest.mark.parametrize(
    ("bad", "changes", "about"),
    [
        ({"a.jsonl": lines(*map(plain, range(20)))}, {"test_fraction": 0.2}, None),
        ({"a.jsonl": lines(*map(plain, range(20)))}, {}, "curate.test_fraction"),
        ({"a.jsonl": lines(*map(plain, range(20))) + b"x\n" * 6}, {"test_fraction": 0.2}, r"23\.1 %"),
        ({"a.jsonl": lines(*map(plain, range(20))), "x.xz": b""}, {"test_fraction": 0.2}, "1 whole file"),
    ],
)
def test_warnings_come_when_they_should(
    bad: dict[str, bytes], changes: Row, about: str | None, tmp_path: Path
) -> None:
    project = Project(tmp_path, bad)
    project.run(**changes)
    html = project.outputs()["reports/data.html"].decode()
    found = re.findall(r"<li><b>Beware:</b> (.*?)</li>", html)
    assert len(found) == bool(about) and (not about or re.search(about, found[0]))


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0, "0.0 %"), (1, "100.0 %"), (0.0001, "< 0.1 %"), (0.99999, "> 99.9 %"), (0.5, "50.0 %"), (None, "–")],
)
def test_a_share_is_never_rounded_to_none_or_all(share: float | None, shown: str) -> None:
    assert percent(share) == shown


def test_differences_are_marked_and_escaped() -> None:
    assert str(marked("a b c", "a <b> c d")) == "a<del> b</del><ins> &lt;b&gt;</ins> c<ins> d</ins>"
    assert str(marked("same <a>", "same <a>")) == "same &lt;a&gt;"
    long = "word " * 300
    assert len(marked(long + "one", long + "two")) < 200
    assert len(clipped("x" * 2500)) < 2050


TEXT = st.text(st.sampled_from("ab <>&\n_.é"), max_size=60)


@given(TEXT, TEXT)
def test_both_texts_can_be_read_from_the_marks(before: str, after: str) -> None:
    import html as entities

    found = str(marked(before, after))
    assert entities.unescape(re.sub(r"<del>.*?</del>|</?ins>", "", found, flags=re.S)) == after
    assert entities.unescape(re.sub(r"<ins>.*?</ins>|</?del>", "", found, flags=re.S)) == before


COUNT = st.integers(0, 10**9)


@given(st.lists(st.tuples(COUNT, COUNT, st.booleans()), max_size=6), st.lists(COUNT, min_size=3, max_size=3))
def test_the_flow_is_as_wide_as_it_has_rows(changes: list[tuple[int, int, bool]], splits: list[int]) -> None:
    steps, rows = [], 10**9
    for size, _, lost in changes:
        steps.append(Step("a & b", rows, lost=min(size, rows) if lost else 0, added=0 if lost else size))
        rows = steps[-1].rows_out
    drawn = flow("<&>", ("in", "out"), steps, dict(zip(("train", "val", "test"), splits, strict=True)))
    Page(drawn)
    assert "&lt;&amp;&gt;" in drawn
    paths = " ".join(re.findall(r' d="([^"]+)"', drawn))
    assert all(float(number) >= 0 for number in re.findall(r"-?[\d.]+", paths))
    stream = re.search(r'id="flow-stream"><path d="M 132 28 L([^"]+) L 132', drawn)
    assert stream
    widths = [float(point.split()[0]) - 132 for point in stream[1].split(" L")]
    assert all(1.5 <= width <= 170 for width in widths)
    unit = 170 / max(1, sum(splits), *(max(step.rows_in, step.rows_out) for step in steps))
    if steps:
        assert widths[0] == pytest.approx(max(steps[0].rows_in * unit, 1.5), abs=0.06)
        assert widths[-1] == pytest.approx(max(rows * unit, 1.5), abs=0.06)


def test_bars_are_as_high_as_they_count() -> None:
    drawn = bars("x", "title", "description", [("a", 100), ("b", 50), ("<c>", 0), ("d", 1)])
    bar = r'<g id="x-tip-\d"><title>.*?</title><path d="M \S+ (\S+) L \S+ \S+ L \S+ (\S+) '
    heights = [float(bottom) - float(top) for bottom, top in re.findall(bar, drawn)]
    assert heights[0] == pytest.approx(2 * heights[1], abs=0.1)
    assert heights[2] == 0  # nothing is drawn for nothing
    assert heights[3] > 1  # and one row among a hundred can be seen
    assert "<title>&lt;c&gt;: 0</title>" in drawn
    assert bars("x", "title", "description", []) == ""
