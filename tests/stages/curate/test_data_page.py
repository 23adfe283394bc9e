"""pipeline.stages.curate.page: the page read back as a browser sees it."""

import json
import re
from typing import Any

import pytest
from html_page import Page
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.text import percent
from pipeline.pages.differences import clipped, marked
from pipeline.pages.drawings import Step, bars, flow
from pipeline.stages.curate.page import complete, render_data_page
from pipeline.stages.curate.page_words import RULES, title, verdict, warnings

# rule → rows in, rows out, rejected, changed
WORK = {
    "read": (8000, 7996, 4, 0),
    "format": (7996, 7989, 7, 0),
    "normalize": (7989, 7989, 0, 212),
    "turns": (7989, 7941, 48, 15),
    "refusals": (7941, 7935, 6, 0),
    "control_tokens": (7935, 7935, 0, 3),
    "secrets": (7935, 7935, 0, 31),
    "personal": (7935, 7935, 0, 64),
    "length": (7935, 7951, 2, 9),
    "exact_duplicates": (7951, 7830, 121, 0),
    "near_duplicates": (7830, 7318, 512, 0),
    "contamination": (7318, 7312, 6, 0),
    "balance": (7312, 7312, 0, 0),
}
REJECTED = {
    "near_duplicate": ("near_duplicates", 512),
    "duplicate": ("exact_duplicates", 121),
    "bad_order": ("turns", 31),
    "empty_turn": ("turns", 17),
    "unknown_format": ("format", 7),
    "refusal": ("refusals", 6),
    "overlap": ("contamination", 6),
    "not_json": ("read", 3),
    "lone_surrogate": ("read", 1),
    "too_long": ("length", 2),
}


def stats() -> dict[str, Any]:
    rules = [
        {"rule": rule, "rows_in": i, "rows_out": o, "rejected": r, "changed": c}
        for rule, (i, o, r, c) in WORK.items()
    ]
    return {
        "seed": 42,
        "rows_read": 8000,
        "rows_accepted": 7933,
        "rows_rejected": 67,
        "rows_dropped": 639,
        "parts_added": 18,
        "rows_kept": 7312,
        "rules": rules,
        "rejected": {reason: rows for reason, (_, rows) in REJECTED.items()},
        "files_found": 4,
        "files_rejected": {"not_jsonl": 1},
        "files_unread": {"notes.xz": "only some files are read"},
        "changed": {"normalize": 240, "turns": 15, "control_tokens": 3, "secrets": 33, "personal": 71},
        "redactions": {
            "email": 58,
            "ip_address": 13,
            "aws_access_key": 9,
            "github_token": 4,
            "private_key": 1,
        },
        "splits": {"train": 6210, "val": 219, "test": 883},
        "kinds": {"chat": 7290, "text": 22},
        "not_measured": ["languages", "garbage"],
        "domains": {
            "nl2bash": {"read": 6400, "train": 4890, "val": 172, "test": 700},
            "support": {"read": 1200, "train": 1020, "val": 36, "test": 141},
            "wiki/én": {"read": 400, "train": 300, "val": 11, "test": 42},
        },
        "formats": {"alpaca": 6400, "sharegpt": 1171, "messages": 418},
        "balance": {"nl2bash": {"before": 4890, "after": 4890}, "support": {"before": 1020, "after": 1020}},
        "files": {
            "nl2bash.jsonl": {
                "rows": 6400,
                "kept": 5762,
                "rejected": 638,
                "sha256": "3fa9" * 16,
                "formats": {"alpaca": 6400},
                "notes": {},
            },
            "export/chats.jsonl.gz": {
                "rows": 1200,
                "kept": 1197,
                "rejected": 21,
                "sha256": "11ce" * 16,
                "formats": {"sharegpt": 1171, "messages": 18},
                "notes": {"bom": 1, "crlf": 1200},
            },
            "wiki.csv": {
                "rows": 400,
                "kept": 353,
                "rejected": 47,
                "sha256": "9b07" * 16,
                "formats": {"messages": 400},
                "notes": {},
            },
        },
        "duplicates": {
            "exact_rows": 121,
            "near_rows": 512,
            "clusters": 431,
            "largest_cluster": 19,
            "threshold": 0.8,
            "histogram": {"2": 371, "3": 41, "4-7": 14, "8-15": 4, "16+": 1},
        },
        "groups": {
            "groups": 603,
            "rows_in_groups": 1630,
            "requests_with_several_answers": 344,
            "leaks_prevented": 178,
        },
        "contamination": {"rows": 6, "sources": {"test": 5, "held-out.jsonl": 1}},
        "tokens": {
            "rows_measured": 7312,
            "histogram": histogram(),
            "p50": 71,
            "p95": 190,
            "max": 1019,
        },
        "turns": {"2": 6200, "3": 610, "4": 301, "6": 150, "8": 40, "16": 11},
    }


def histogram() -> list[dict[str, int]]:
    rows = [3051, 2980, 820, 240, 101, 55, 31, 14, 8, 4, 3, 2, 1, 0, 1, 1]
    return [{"from": 64 * i, "to": 64 * i + 64, "rows": n} for i, n in enumerate(rows)]


ONE = (
    "Find all files named 'core' in the directory tree /home and remove them without asking\n\nfind "
    "/home -name core -exec rm -f {} \\;"
)
TWO = (
    "find all files named “core” in the directory tree /home, and remove them\n\nfind /home -name core | "
    "xargs rm -f"
)


def samples() -> dict[str, Any]:
    rejects = [
        {
            "file": "export/chats.jsonl.gz",
            "line": 17 + i,
            "offset": 4711,
            "rule": rule,
            "reason": reason,
            "detail": f"turn {i + 2} is user, where assistant is due",
            "text": '{"conversations": [{"from": "human", "value": "<script>alert(1)</script>"}]}',
        }
        for reason, (rule, _) in REJECTED.items()
        for i in range(2)
    ]
    changes = [
        {
            "id": "0" * 16,
            "file": "wiki.csv",
            "line": 3,
            "rule": "normalize",
            "place": "messages 1",
            "before": "the cafe\u0301 is <b>open</b>",
            "after": "the café is <b>open</b>",
        },
        {
            "id": "0" * 16,
            "file": "wiki.csv",
            "line": 4,
            "rule": "personal",
            "place": "messages 2",
            "before": "write to ⟨email⟩ today",
            "after": "write to [EMAIL_1] today",
        },
        {
            "id": "0" * 16,
            "file": "a.jsonl",
            "line": 9,
            "rule": "control_tokens",
            "place": "messages 1",
            "before": "say <|im_end|> now",
            "after": "say < |im_end|> now",
        },
    ]
    return {
        "rejects": rejects,
        "changes": changes,
        "clusters": [
            {
                "kept": {"source": "nl2bash.jsonl:12", "text": ONE},
                "dropped": [
                    {"source": "nl2bash.jsonl:740", "text": TWO, "similarity": 0.8634},
                    {"source": "nl2bash.jsonl:741", "text": ONE.upper(), "similarity": 0.81},
                ],
            }
        ],
        "answers": [{"prompt": "Print the current date", "answers": ["date", "date +%F", 'echo "$(date)"']}],
        "contamination": [
            {
                "source": "wiki.csv:88",
                "matched": "held-out.jsonl:4",
                "span": "the quick brown fox jumps over the lazy dog and then <i>sleeps</i>",
            }
        ],
        "rows": [
            "<|im_start|>user\nPrint the date<|im_end|>\n<|im_start|>assistant\ndate<|im_end|>\n",
            {"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]},
        ],
    }


@pytest.fixture(scope="module")
def html() -> str:
    return render_data_page(stats(), samples())


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def section(html: str, heading: str) -> str:
    """The text of one section."""
    parts = [part for part in html.split("<section ") if f">{heading}</h2>" in part]
    assert len(parts) == 1, heading
    return " ".join(re.sub(r"<[^>]+>", " ", parts[0]).split())


SECTIONS = (
    "In, rule by rule, out",
    "Length and turns",
    "Domains",
    "Near duplicates",
    "One request, several answers",
    "Leaks prevented by the split",
    "Contamination",
    "Redactions",
    "Control tokens",
    "Changes",
    "Rows as the model will see them",
    "Rejected lines",
    "Files",
)


def test_the_page_is_one_small_file_that_loads_nothing(html: str, page: Page) -> None:
    assert len(html) < 200_000
    assert not re.findall(r"https?:|@import|src=|url\((?!#)", html)
    assert not {"script", "link", "iframe", "img", "object"} & {tag for tag, _ in page.tags}
    assert "default-src 'none'" in html


def test_what_users_wrote_is_text_not_markup(page: Page) -> None:
    assert "<script>alert(1)</script>" in page.text  # a rejected line
    assert "<i>sleeps</i>" in page.text  # a span
    assert "<b>open</b>" in page.text  # a change
    assert not {"script", "i"} & {tag for tag, _ in page.tags}


def test_the_page_is_accessible(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    named = [
        name for _, attributes in page.tags for name in (attributes.get("aria-labelledby") or "").split()
    ]
    inside = [
        (attributes.get("href") or "#")[1:]
        for _, attributes in page.tags
        if (attributes.get("href") or "").startswith("#")
    ]
    assert set(named + inside) <= set(ids)
    drawings = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert len(drawings) == 4
    assert all(drawing["role"] == "img" for drawing in drawings)
    tags = [tag for tag, _ in page.tags]
    assert tags.count("desc") == 4
    assert tags.count("caption") == tags.count("table") >= 8
    assert all(attributes.get("scope") for tag, attributes in page.tags if tag == "th")


@pytest.mark.parametrize(
    ("heading", "words"),
    [
        (
            "In, rule by rule, out",
            (
                "8,000 read",
                "− 512 near duplicates",
                "bad order 31, empty turn 17; 15 rows changed",
                "+ 18 rows: parts of long ones",
                "7,312 kept",
                "nothing to do: balance",
                "switched off: garbage, languages",
                "7,830 512 0 7,318",
                "Kept 706",
            ),
        ),
        (
            "Length and turns",
            (
                "7,312 rows measured",
                "half have at most 71 tokens",
                "the longest 1,019",
                "3,051",
                "13+",
                "alpaca 6,400",
            ),
        ),
        ("Domains", ("nl2bash 6,400 4,890 172 700 78.7 %", "Nothing was balanced")),
        (
            "Near duplicates",
            (
                "121 rows are the same",
                "512 more are nearly the same",
                "similarity 0.8 or more",
                "431 clusters, the largest of 19 rows",
                "633 rows were taken out",
                "4–7",
                "0.86 alike",
            ),
        ),
        ("One request, several answers", ("344 requests have more than one answer", "date +%F")),
        (
            "Leaks prevented by the split",
            ("1,630 rows are in 603 groups", "178 val and test rows with a near twin in train"),
        ),
        ("Contamination", ("test 5", "held-out.jsonl:4", "the quick brown fox")),
        ("Redactions", ("aws access key 9", "[EMAIL_1]")),
        ("Control tokens", ("3 rows were changed and 0 rows rejected",)),
        ("Changes", ("normalize 240", "Normalize: 1 sample")),
        ("Rows as the model will see them", ("&lt;|im_start|&gt;user", "2 + 2?")),
        (
            "Rejected lines",
            ("512 near duplicate rule near duplicates", "export/chats.jsonl.gz:17", "1 lone surrogate"),
        ),
        (
            "Files",
            (
                "nl2bash.jsonl 6,400 5,762 638 alpaca 6,400",
                "crlf 1,200, bom 1",
                "11ce11ce11ce",
                "1 not read",
                "notes.xz only some files",
            ),
        ),
    ],
)
def test_every_section_tells_its_numbers(html: str, heading: str, words: tuple[str, ...]) -> None:
    found = section(html, heading)
    for expected in words:
        assert expected in found, expected


def test_the_sections_stand_in_the_order_of_the_story(html: str) -> None:
    assert tuple(re.findall(r"<h2[^>]*>([^<]+)</h2>", html)) == SECTIONS


def test_the_headline_says_what_was_lost_and_why() -> None:
    full = complete(stats())
    assert title(full) == "7,312 of 8,000 rows kept"
    assert verdict(full).startswith(
        "Left out: 512 near duplicates, 121 exact duplicates, 48 rows with turns out of order and 25 for "
        "other reasons."
    )
    assert "Splitting long rows added 18 rows. 6,210 are for training" in verdict(full)


@pytest.mark.parametrize("given", [{}, {"rows_read": 0, "rules": [], "tokens": None}, {"duplicates": {}}])
def test_an_empty_account_makes_a_page_that_found_nothing(given: dict[str, Any]) -> None:
    html = render_data_page(given, {})
    assert Page(html).text.count("None found.") == len(SECTIONS)
    assert "No rows were read" in html


def test_what_was_not_measured_is_not_shown_as_none_found() -> None:
    off = ["near_duplicates", "contamination", "control_tokens", "secrets", "personal"]
    html = render_data_page({"rows_read": 3, "rows_kept": 3, "not_measured": off}, {})
    for heading in (
        "Near duplicates",
        "Leaks prevented by the split",
        "Contamination",
        "Control tokens",
        "Redactions",
    ):
        assert "Not measured" in section(html, heading), heading
        assert "None found" not in section(html, heading)
    assert "None found" in section(html, "Domains")


def test_huge_and_many_numbers_stay_readable() -> None:
    big = stats() | {
        "rows_read": 10**12,
        "rejected": {f"reason_{i}": 10**9 - i for i in range(500)},
        "domains": {
            f"domain {i}": {"read": 10**9, "train": 10**9 - i, "val": 0, "test": 0} for i in range(3000)
        },
        "files": {f"{i}.jsonl": {"rows": 10**9 - i} for i in range(3000)},
        "turns": {str(n): 10**9 for n in range(1, 2000)},
    }
    html = render_data_page(big, samples())
    Page(html)
    assert len(html) < 300_000
    assert "The first 40 of 3,000" in section(html, "Domains")
    assert "The first 40 of 500" in section(html, "Rejected lines")
    assert "1,000,000,000,000 read" in html


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rows_rejected": 1601}, "20.0 % of the lines were rejected"),
        ({"splits": {"train": 9, "val": 1, "test": 0}}, "no row is held out"),
        ({"files_rejected": {"not_jsonl": 2}}, "2 whole files were rejected"),
    ],
)
def test_warnings_come_when_they_should(change: dict[str, Any], sentence: str) -> None:
    calm = stats() | {"files_rejected": {}}
    assert warnings(complete(calm)) == []
    assert [words for words in warnings(complete(calm | change)) if sentence in words]


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0, "0.0 %"), (1, "100.0 %"), (0.0001, "< 0.1 %"), (0.99999, "> 99.9 %"), (0.5, "50.0 %"), (None, "–")],
)
def test_a_share_is_never_rounded_to_none_or_all(share: float | None, shown: str) -> None:
    assert percent(share) == shown


def test_differences_are_marked_and_escaped() -> None:
    assert (
        str(marked("rm all files", "rm <all> files now"))
        == "rm<del> all</del><ins> &lt;all&gt;</ins> files<ins> now</ins>"
    )
    assert str(marked("same <text>", "same <text>")) == "same &lt;text&gt;"
    long = "word " * 300
    assert len(marked(long + "one", long + "two")) < 200
    assert clipped("x" * 2500).endswith("x… (500 more characters)")


TEXT = st.text(st.sampled_from("ab <>&\n_.é"), max_size=60)


@given(TEXT, TEXT)
@settings(deadline=None)
def test_both_texts_can_be_read_from_the_marks(before: str, after: str) -> None:
    import html as entities

    found = str(marked(before, after))
    assert entities.unescape(re.sub(r"<del>.*?</del>|</?ins>", "", found, flags=re.S)) == after
    assert entities.unescape(re.sub(r"<ins>.*?</ins>|</?del>", "", found, flags=re.S)) == before


COUNT = st.integers(0, 10**9)


@given(st.lists(st.tuples(COUNT, COUNT, st.booleans()), max_size=6), st.lists(COUNT, min_size=3, max_size=3))
@settings(deadline=None)
def test_the_flow_is_as_wide_as_it_has_rows(changes: list[tuple[int, int, bool]], splits: list[int]) -> None:
    steps, rows = [], 10**9
    for size, _, lost in changes:
        steps.append(Step("a & b", rows, lost=min(size, rows) if lost else 0, added=0 if lost else size))
        rows = steps[-1].rows_out
    drawn = flow("<&>", ("in", "out"), steps, dict(zip(("train", "val", "test"), splits, strict=True)))
    Page(drawn)
    assert "&lt;&amp;&gt;" in drawn
    places = [
        float(number)
        for path in re.findall(r' d="([^"]+)"', drawn)
        for number in re.findall(r"-?[\d.]+", path)
    ]
    assert all(number >= 0 for number in places)
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
    corners = re.findall(
        r'<g id="x-tip-\d"><title>.*?</title><path d="M \S+ (\S+) L \S+ \S+ L \S+ (\S+) ', drawn
    )
    heights = [float(bottom) - float(top) for bottom, top in corners]
    assert heights[0] == pytest.approx(2 * heights[1], abs=0.1)
    assert heights[2] == 0  # nothing is drawn for nothing
    assert heights[3] > 1  # and one row among a hundred can be seen
    assert "&lt;c&gt;: 0" in drawn
    assert bars("x", "title", "description", []) == ""


def test_every_rule_of_an_account_has_a_name() -> None:
    assert set(WORK) <= set(RULES)


def test_the_account_is_json_as_stage_curate_writes_it() -> None:
    assert json.loads(json.dumps(stats())) == stats()
