"""Every line of data/raw ends in a split or in the rejects, with the right reason, and its text unchanged."""

import hashlib
import json
import random
import re
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline.curate
from pipeline.curate import SPLITS, count_lines, curate, main, row_id, split_of
from pipeline.errors import DataError
from pipeline.formats import FORMATS, BadRow, to_messages
from pipeline.jsonl import MAX_LINE_BYTES, parse_line, read_rows
from pipeline.params import load_params

REPO = Path(__file__).parents[1]
DOCS = REPO / "docs/data-formats.md"
TOKENS = ["<|im_start|>", "<|im_end|>", "  "]  # some tokenizers add runs of spaces: harmless in text

SYSTEM = {"role": "system", "content": "Be brief."}
ASK = {"role": "user", "content": "2 + 2?"}
ANSWER = {"role": "assistant", "content": "4"}


class Project:
    """A folder with data/raw and models/base.json on which the stage runs."""

    def __init__(self, root: Path, files: dict[str, bytes], tokens: Sequence[str] = TOKENS) -> None:
        self.root = root
        self.raw = root / "data/raw"
        self.raw.mkdir(parents=True)
        for name, content in files.items():
            (self.raw / name).parent.mkdir(parents=True, exist_ok=True)
            (self.raw / name).write_bytes(content)
        (root / "models").mkdir()
        (root / "models/base.json").write_text(json.dumps({"added_tokens": tokens}))

    def run(self, **changes: Any) -> dict[str, Any]:
        settings = {"format": "auto", "val_fraction": 0.0, "test_fraction": 0.0, "seed": 42} | changes
        return curate(
            raw=self.raw, base=self.root / "models/base.json", final=self.root / "data/final",
            rejects=self.root / "data/rejects.jsonl", report=self.root / "reports/data.json", **settings,
        )  # fmt: skip

    def rows(self, split: str = "train") -> list[dict[str, Any]]:
        return list(read_rows(self.root / f"data/final/{split}.jsonl"))

    def rejects(self) -> list[dict[str, Any]]:
        return list(read_rows(self.root / "data/rejects.jsonl"))

    def outputs(self) -> dict[str, bytes]:
        found = [*(self.root / "data/final").glob("*"), self.root / "data/rejects.jsonl", self.root / "reports/data.json"]
        return {path.name: path.read_bytes() for path in found if path.exists()}


def lines(*rows: Any) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def chat(question: str, answer: str = "4") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


GOOD = chat("a good row")


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({"messages": [ASK, ANSWER]}, [ASK, ANSWER]),
        ({"messages": [SYSTEM, ASK, ANSWER, ASK, ANSWER], "id": 7}, [SYSTEM, ASK, ANSWER, ASK, ANSWER]),
        ({"messages": [ASK | {"name": "Ann"}, ANSWER | {"weight": 1, "tool_calls": None}], "tools": []}, [ASK, ANSWER]),
        ({"messages": [ASK, ANSWER], "prompt": "x", "completion": "y"}, [ASK, ANSWER]),
        ({"conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]}, [ASK, ANSWER]),
        ({"conversations": [{"from": "system", "value": "Be brief."}, {"from": "user", "value": "2 + 2?"}, {"from": "assistant", "value": "4"}]},
         [SYSTEM, ASK, ANSWER]),
        ({"system": "Be brief.", "conversations": [ASK, ANSWER]}, [SYSTEM, ASK, ANSWER]),
        ({"instruction": "2 + 2?", "output": "4"}, [ASK, ANSWER]),
        ({"instruction": "2 + 2?", "input": "", "output": "4", "system": "", "history": None}, [ASK, ANSWER]),
        ({"instruction": "", "input": "2 + 2?", "output": "4"}, [ASK, ANSWER]),
        ({"instruction": "Add", "input": "2, 2", "output": "4"}, [{"role": "user", "content": "Add\n\n2, 2"}, ANSWER]),
        ({"instruction": "2 + 2?", "output": "4", "system": "Be brief.", "history": [["2 + 2?", "4"]]}, [SYSTEM, ASK, ANSWER, ASK, ANSWER]),
        ({"prompt": "2 + 2?", "completion": "4"}, [ASK, ANSWER]),
        ({"prompt": [SYSTEM, ASK], "completion": [ANSWER]}, [SYSTEM, ASK, ANSWER]),
        ({"prompt": [SYSTEM, ASK], "completion": "4"}, [SYSTEM, ASK, ANSWER]),
    ],
)  # fmt: skip
def test_each_format_gives_the_same_form(row: dict[str, Any], messages: list[dict[str, str]]) -> None:
    assert to_messages(row) == messages


# a line of data, the settings that matter, its reason
REJECTED: list[tuple[bytes, dict[str, Any], str]] = [
    (b"", {}, "blank"),
    (b" \t\r", {}, "blank"),
    (b'{"messages": "' + b"x" * MAX_LINE_BYTES + b'"}', {}, "too_long"),
    (b"\xff\xfe{", {}, "not_utf8"),
    (b"not json", {}, "not_json"),
    (b'["a"]', {}, "not_object"),
    (b'{"prompt": "a", "completion": "b", "score": NaN}', {}, "not_finite"),
    (b'{"prompt": "a", "prompt": "b", "completion": "c"}', {}, "duplicate_key"),
    (b'{"prompt": "\\ud83d", "completion": "b"}', {}, "lone_surrogate"),
    (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", {}, "too_deep"),
    (lines({"question": "a", "answer": "b"}), {}, "unknown_format"),
    (lines({"instruction": "a"}), {}, "unknown_format"),
    (lines({"prompt": "a", "completion": "b"}), {"format": "messages"}, "wrong_format"),
    (lines({"text": "a"}), {"format": "messages"}, "wrong_format"),
    (lines({"messages": {"role": "user"}}), {}, "bad_shape"),
    (lines({"messages": [ASK, "4"]}), {}, "bad_shape"),
    (lines({"instruction": "a", "output": "b", "history": "c"}), {}, "bad_shape"),
    (lines({"instruction": "a", "output": "b", "history": [["c"]]}), {}, "bad_shape"),
    (lines({"messages": [ASK, ANSWER | {"role": "tool"}]}), {}, "bad_role"),
    (lines({"messages": [ASK, ANSWER | {"role": "gpt"}]}), {}, "bad_role"),
    (lines({"messages": [ASK, ANSWER | {"role": ["assistant"]}]}), {}, "bad_role"),
    (lines({"messages": [{"content": "a"}, ANSWER]}), {}, "bad_role"),
    (lines({"messages": [ASK, {"role": "assistant"}]}), {}, "content_not_text"),
    (lines({"messages": [ASK, ANSWER | {"content": [{"type": "text", "text": "4"}]}]}), {}, "content_not_text"),
    (lines({"instruction": "a", "output": 4}), {}, "content_not_text"),
    (lines({"instruction": ["a"], "output": "4"}), {}, "content_not_text"),
    (lines({"prompt": "a", "completion": None}), {}, "content_not_text"),
    (lines({"conversations": [ASK, ANSWER], "system": {"a": 1}}), {}, "content_not_text"),
    (lines({"messages": [ASK, ANSWER], "tools": [{"type": "function"}]}), {}, "unsupported_field"),
    (lines({"messages": [ASK, ANSWER | {"tool_calls": [{"id": "1"}]}]}), {}, "unsupported_field"),
    (lines({"messages": [ASK, ANSWER | {"weight": 0}, ASK, ANSWER]}), {}, "unsupported_field"),
    (lines({"messages": []}), {}, "bad_order"),
    (lines({"messages": [SYSTEM]}), {}, "bad_order"),
    (lines({"messages": [ASK]}), {}, "bad_order"),
    (lines({"messages": [ANSWER]}), {}, "bad_order"),
    (lines({"messages": [ASK, ASK, ANSWER]}), {}, "bad_order"),
    (lines({"messages": [ASK, SYSTEM, ANSWER]}), {}, "bad_order"),
    (lines({"messages": [SYSTEM, SYSTEM, ASK, ANSWER]}), {}, "bad_order"),
    (lines({"messages": [ASK, ANSWER | {"content": " \n"}]}), {}, "empty_turn"),
    (lines({"instruction": "", "output": "b"}), {}, "empty_turn"),
    (lines(chat("say <|im_end|> now")), {}, "control_token"),
    (lines(chat("a", "x<|im_start|>")), {}, "control_token"),
    (lines(GOOD), {}, "duplicate"),
    (lines({"prompt": "a good row", "completion": "4"}), {}, "duplicate"),
]


@pytest.mark.parametrize(("line", "settings", "reason"), REJECTED)
def test_a_bad_line_is_rejected_with_its_reason_and_the_run_goes_on(tmp_path: Path, line: bytes, settings: dict[str, Any], reason: str) -> None:
    bad = line.removesuffix(b"\n") + b"\n"
    project = Project(tmp_path, {"b.jsonl": lines(GOOD) + bad + lines(chat("after"))})
    report = project.run(**settings)
    assert [row["source"] for row in project.rows()] == ["b.jsonl:1", "b.jsonl:3"]
    (reject,) = project.rejects()
    assert reject["reason"] == reason
    assert (reject["file"], reject["line"], reject["offset"]) == ("b.jsonl", 2, len(lines(GOOD)))
    assert reject["detail"]
    assert report["rejected"] == {reason: 1}
    assert (report["rows_read"], report["rows_kept"], report["rows_rejected"]) == (3, 2, 1)


def test_the_docs_list_exactly_the_reasons_there_are() -> None:
    documented = re.findall(r"^\| `(\w+)` \|", DOCS.read_text(), flags=re.MULTILINE)
    assert sorted(documented) == sorted({reason for _, _, reason in REJECTED} | {"not_jsonl", "json_array"})
    code = "".join((REPO / f"pipeline/{module}.py").read_text() for module in ("curate", "formats", "jsonl"))
    assert set(documented) == set(re.findall(r"Bad(?:Row|Line)\(\s*\"(\w+)\"", code))


def test_the_docs_examples_are_read() -> None:
    examples = [parse_line(line.encode()) for line in re.findall(r"```json\n(.*)\n```", DOCS.read_text())]
    formats, (canonical, _) = examples[:4], examples[4:]
    for row, name in zip(formats, FORMATS, strict=True):
        assert to_messages(row, name)[-1] == ANSWER
    assert canonical["id"] == row_id(to_messages(canonical))


def test_details_never_quote_the_text(tmp_path: Path) -> None:
    secret = "hunter2"  # noqa: S105
    rows = [
        {"messages": [ASK, {"role": secret, "content": secret}]}, {"messages": secret}, {secret: secret}, {"messages": [secret, secret]},
        {"messages": [{"role": "user", "content": secret}] * 2}, {"instruction": secret, "output": {secret: secret}},
        {"messages": [ASK, ANSWER | {"weight": secret}]}, chat(f"<|im_end|>{secret}"), chat(secret), chat(secret),
    ]  # fmt: skip
    broken = f'{{"{secret}": {secret}\n{{"{secret}": 1, "{secret}": 2}}\n{{"a": "\\{secret}"}}\n["{secret}"]\n"{secret}"\n'.encode()
    project = Project(tmp_path, {"a.jsonl": lines(*rows) + broken})
    report = project.run()
    assert report["rows_rejected"] == len(rows) - 1 + 5
    assert secret.encode() not in project.outputs()["rejects.jsonl"] + project.outputs()["data.json"]


def test_a_duplicate_says_where_the_first_is(tmp_path: Path) -> None:
    project = Project(tmp_path, {"b.jsonl": lines(GOOD), "a/z.jsonl": lines(chat("other"), GOOD)})
    project.run()
    assert [row["source"] for row in project.rows()] == ["a/z.jsonl:1", "a/z.jsonl:2"]
    assert [(reject["file"], reject["line"], reject["detail"]) for reject in project.rejects()] == [
        ("b.jsonl", 1, "the same conversation as a/z.jsonl:2")
    ]


@pytest.mark.parametrize(
    "text", ["x\u2028y\u2029z\x85\x0b\x0c\x1c", "a\r\nb", " spaced  out ", "\0\x7f", "👩‍💻 ½ e\u0301 é", '"\\"', "\ufeff", "<|im_ end|>"]
)
def test_text_stays_as_it_is(tmp_path: Path, text: str) -> None:
    for ensure_ascii in (True, False):
        line = json.dumps(chat(text + "?", text + "!"), ensure_ascii=ensure_ascii).encode()
        project = Project(tmp_path / str(ensure_ascii), {"a.jsonl": line})
        project.run()
        assert [row["messages"] for row in project.rows()] == [chat(text + "?", text + "!")["messages"]]


def test_byte_order_mark_and_crlf_are_read(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbf" + (lines(GOOD, chat("second")).replace(b"\n", b"\r\n"))
    project = Project(tmp_path, {"a.jsonl": data})
    assert project.run()["rows_kept"] == 2
    assert project.rejects() == []


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: text.strip() and "<|im_" not in text)
CHAT = st.builds(lambda pairs: {"messages": [turn for pair in pairs for turn in pair]}, st.lists(
    st.tuples(st.builds(lambda text: {"role": "user", "content": text}, TEXT), st.builds(lambda text: {"role": "assistant", "content": text}, TEXT)),
    min_size=1, max_size=3))  # fmt: skip
ODD = st.dictionaries(
    st.sampled_from(["messages", "conversations", "instruction", "input", "output", "history", "system", "prompt", "completion", "tools", "x"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "from", "value", "weight"]), inner, max_size=3)
        ),
        max_leaves=6,
    ),
)
LINES = st.lists(
    st.one_of(CHAT.map(lines), ODD.map(lambda row: json.dumps(row).encode() + b"\n"), st.binary(max_size=30).map(lambda junk: junk + b"\n"))
)


@settings(max_examples=60, deadline=None)
@given(pieces=LINES, last=st.binary(max_size=10))
def test_whatever_the_bytes_the_account_balances(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], last: bytes) -> None:
    data = lines(GOOD) + b"".join(pieces) + last
    project = Project(tmp_path_factory.mktemp("curate"), {"a.jsonl": data})
    report = project.run()
    expected = data.count(b"\n") + (not data.endswith(b"\n"))
    assert report["rows_read"] == report["rows_kept"] + report["rows_rejected"] == expected
    kept, rejected = project.rows(), project.rejects()
    assert sorted([int(row["source"].split(":")[1]) for row in kept] + [reject["line"] for reject in rejected]) == list(range(1, expected + 1))
    raw = data.split(b"\n")
    for row in kept:  # what is kept is what stood there, to the byte
        assert to_messages(json.loads(raw[int(row["source"].split(":")[1]) - 1])) == row["messages"]
    for reject in rejected:
        assert data[reject["offset"] :].split(b"\n")[0] == raw[reject["line"] - 1]


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(CHAT, min_size=1, max_size=8, unique_by=lambda row: json.dumps(row)))
def test_valid_rows_are_all_kept_unchanged_and_in_order(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]) -> None:
    project = Project(tmp_path_factory.mktemp("curate"), {"a.jsonl": lines(*rows)})
    project.run()
    assert [row["messages"] for row in project.rows()] == [row["messages"] for row in rows]
    assert [row["id"] for row in project.rows()] == [
        hashlib.sha256(json.dumps(row["messages"], ensure_ascii=False, separators=(",", ":")).encode()).hexdigest()[:16] for row in rows
    ]


@given(row=ODD)
def test_any_object_is_a_conversation_or_a_bad_row(row: dict[str, Any]) -> None:
    for name in ("auto", *FORMATS):
        try:
            messages = to_messages(row, name)
        except BadRow:
            continue
        assert messages[-1]["role"] == "assistant"
        assert {type(turn["content"]) for turn in messages} == {str}


def splits_of(project: Project) -> dict[str, str]:
    return {row["id"]: split for split in SPLITS for row in project.rows(split)}


def test_a_row_keeps_its_split_when_rows_are_added(tmp_path: Path) -> None:
    rows = [chat(f"question {number}") for number in range(400)]
    fractions = {"val_fraction": 0.1, "test_fraction": 0.2}
    few, many = Project(tmp_path / "few", {"a.jsonl": lines(*rows[:200])}), Project(tmp_path / "many", {"0.jsonl": lines(*reversed(rows))})
    few.run(**fractions)
    counts = many.run(**fractions)["splits"]
    assert splits_of(few).items() <= splits_of(many).items()
    assert (40 < counts["test"] < 120) and (15 < counts["val"] < 70)
    assert counts == {split: len(many.rows(split)) for split in SPLITS}
    test_rows = {identity for identity, split in splits_of(many).items() if split == "test"}
    val_rows = {row["id"] for row in many.rows("val")}
    many.run(val_fraction=0.1, test_fraction=0.3)
    assert val_rows == {row["id"] for row in many.rows("val")}
    many.run(val_fraction=0.3, test_fraction=0.2)
    assert test_rows == {identity for identity, split in splits_of(many).items() if split == "test"}
    many.run(val_fraction=0.3, test_fraction=0.2, seed=43)
    assert test_rows != {identity for identity, split in splits_of(many).items() if split == "test"}


def test_the_split_has_the_shares_asked_for() -> None:
    random_ids = [f"{random.Random(number).getrandbits(64):016x}" for number in range(20_000)]  # noqa: S311
    found = [split_of(identity, seed=42, val_fraction=0.03, test_fraction=0.12) for identity in random_ids]
    # 5 standard deviations
    assert abs(found.count("test") / 20_000 - 0.12) < 5 * (0.12 * 0.88 / 20_000) ** 0.5
    assert abs(found.count("val") / 20_000 - 0.03) < 5 * (0.03 * 0.97 / 20_000) ** 0.5
    assert {split_of(identity, seed=1, val_fraction=0.5, test_fraction=0.5) for identity in random_ids} == {"val", "test"}


def test_two_runs_give_the_same_bytes_wherever_they_run(tmp_path: Path) -> None:
    files = {"b.jsonl": lines(GOOD, chat("1")) + b"bad\n", "a/c.JSON": lines(chat("2"), GOOD), "notes.txt": b"hello"}
    outputs = []
    for name in ("one", "two"):
        project = Project(tmp_path / name, dict(reversed(files.items())) if name == "two" else files)
        for _ in range(2):
            project.run(val_fraction=0.2)
            outputs.append(project.outputs())
    assert len(outputs[0]) == 5
    assert all(output == outputs[0] for output in outputs)
    assert b"\r" not in b"".join(outputs[0].values())


def test_the_report_counts_per_file(tmp_path: Path) -> None:
    files = {"b.jsonl": lines(GOOD) + b"bad\n\n", "a.json": lines(chat("2"), GOOD), "empty.jsonl": b""}
    report = Project(tmp_path, files).run()
    expected = {"a.json": (2, 2, 0), "b.jsonl": (3, 0, 3), "empty.jsonl": (0, 0, 0)}
    assert {name: (file["rows"], file["kept"], file["rejected"]) for name, file in report["files"].items()} == expected
    assert {name: file["sha256"] for name, file in report["files"].items()} == {name: hashlib.sha256(files[name]).hexdigest() for name in files}
    assert report["rejected"] == {"blank": 1, "duplicate": 1, "not_json": 1}
    assert report == json.loads((tmp_path / "reports/data.json").read_text())


def test_progress_is_told_every_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    files = {"a.jsonl": b"\xef\xbb\xbf" + lines(GOOD) + b"\n\nbad", "b.jsonl": b"", "c.jsonl": lines(chat("x")), "d.txt": b"not counted"}
    total = sum(len(content) for name, content in files.items() if name != "d.txt")
    monkeypatch.setattr(pipeline.curate, "progress", lambda label, wanted: nullcontext(told.append) if wanted == total else None)
    Project(tmp_path, files).run()
    assert sum(told) == total


def test_whole_files_that_are_not_read_are_rejected_too(tmp_path: Path) -> None:
    project = Project(
        tmp_path, {"a.jsonl": lines(GOOD), "b.csv": b"x,y", "c.json": b'\xef\xbb\xbf\n [{"prompt": "a"}]', ".gitkeep": b"", ".git/x.jsonl": b"x"}
    )
    (project.raw / "d.jsonl").symlink_to("nowhere")
    (project.raw / "e").symlink_to(tmp_path)
    report = project.run()
    assert {reject["file"]: reject["reason"] for reject in project.rejects()} == {
        "b.csv": "not_jsonl", "c.json": "json_array", "d.jsonl": "not_jsonl", "e": "not_jsonl",
    }  # fmt: skip
    assert all(reject["line"] is None and reject["offset"] is None for reject in project.rejects())
    assert report["files_rejected"] == {"not_jsonl": 3, "json_array": 1}
    assert (report["rows_read"], report["rows_kept"], report["rows_rejected"]) == (1, 1, 0)


def test_a_file_name_that_is_not_utf8_can_be_reported(tmp_path: Path) -> None:
    project = Project(tmp_path, {})
    (project.raw / "\udcff.jsonl").write_bytes(lines(GOOD))
    project.run()
    assert project.rows()[0]["source"] == "\\udcff.jsonl:1"


@pytest.mark.parametrize(
    ("files", "settings", "sentence"),
    [
        ({}, {}, r"no data in .*/raw: put JSONL there \(or `make demo` writes an example\)"),
        ({".gitkeep": b""}, {}, r"no data in .*/raw: "),
        ({"a.csv": b"x"}, {}, r"no data in .*/raw \(none of its 1 files is \*\.jsonl\)"),
        ({"a.jsonl": b""}, {}, r"none of the 0 rows .*no line in it"),
        ({"a.json": b"[]"}, {}, r"none of the 0 rows .*\(1 json_array; first a\.json: one JSON array"),
        ({"a.jsonl": b"\nx\ny\n"}, {}, r"none of the 3 rows in .* can be used \(2 not_json, 1 blank; first a\.jsonl line 2: "),
        ({"a.jsonl": lines(GOOD)}, {"test_fraction": 1e-9}, r"1 rows in .* leave no test row at .*\(0 were rejected\): add rows"),
        ({"a.jsonl": lines(GOOD)}, {"val_fraction": 0.5, "test_fraction": 0.5}, r"1 rows in .* leave no train row"),
    ],
)  # fmt: skip
def test_nothing_to_train_or_measure_on_is_one_sentence(tmp_path: Path, files: dict[str, bytes], settings: dict[str, Any], sentence: str) -> None:
    project = Project(tmp_path, files)
    with pytest.raises(DataError, match=sentence) as caught:
        project.run(**settings)
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)
    assert project.outputs() == {}


def test_a_failed_run_leaves_the_last_one(tmp_path: Path) -> None:
    project = Project(tmp_path, {"a.jsonl": lines(GOOD)})
    project.run()
    before = project.outputs()
    (project.raw / "a.jsonl").write_bytes(b"broken")
    with pytest.raises(DataError):
        project.run()
    assert project.outputs() == before
    assert {path.name for path in (tmp_path / "data").iterdir()} == {"raw", "final", "rejects.jsonl"}


@pytest.mark.parametrize("base", [None, "{", "{}", "[]", '{"added_tokens": null}', '{"added_tokens": [1]}'])
def test_a_missing_or_odd_base_record_is_one_sentence(tmp_path: Path, base: str | None) -> None:
    project = Project(tmp_path, {"a.jsonl": lines(GOOD)})
    (tmp_path / "models/base.json").unlink()
    if base is not None:
        (tmp_path / "models/base.json").write_text(base)
    with pytest.raises(DataError, match=r"base\.json is missing or has no list added_tokens: run `python -m pipeline base` first"):
        project.run()


def test_the_stage_runs_on_the_projects_own_params(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = Project(tmp_path, {"a.jsonl": lines(*(chat(str(number)) for number in range(100)), {"x": 1})}, tokens=[])
    main(load_params(REPO / "recipes/demo.yaml"), tmp_path)
    assert sum(count_lines(tmp_path / f"data/final/{split}.jsonl") for split in SPLITS) == 100
    said = capsys.readouterr().out
    assert "101 rows read, 100 kept (train " in said
    assert "1 rejected" in said
    assert len(project.rejects()) == 1
