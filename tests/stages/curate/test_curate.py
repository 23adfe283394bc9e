"""The entire stage: every line ends in a split or in the rejects, groups stay together, and the outputs are
the same bytes every time.
"""

import gzip
import hashlib
import json
import re
import unicodedata
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import pytest
from curating import SPLITS, Project, chat, lines, of_rows, sentence, with_system
from draws import draws
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizer_folders import smollm_folder

from pipeline.chat.rows import row_id
from pipeline.core.catalog import reasons
from pipeline.core.errors import ConfigError, DataError, MachineError
from pipeline.core.places import PROJECT
from pipeline.intake.rows.text_calls import ENDS
from pipeline.stages.curate.phases import cleaning, compare

DOCS = PROJECT / "docs/data-formats.md"
ASK, ANSWER = chat("2 + 2?")["messages"]
GOOD = chat("a good row")
# a line, changed settings, the rule and the reason
REJECTED: list[tuple[bytes, dict[str, Any], str, str]] = [
    (b"", {}, "read", "blank"),
    (b'{"messages": "' + b"x" * 2000 + b'"}', {"max_line_bytes": 1024}, "read", "too_long"),
    (b"\xff\xfe{", {}, "read", "not_utf8"),
    (b"not json", {}, "read", "not_json"),
    (b'{"prompt": "\\u0000", "completion": "b"}', {}, "read", "control_character"),
    (lines({"instruction": "a"}), {}, "format", "unknown_format"),
    (lines({"prompt": "a", "completion": "b"}), {"formats": {"b.*": "messages"}}, "format", "wrong_format"),
    (lines({"messages": [ASK]}), {}, "turns", "no_assistant"),
    (lines({"messages": [ASK, ASK, ANSWER]}), {"repair": []}, "turns", "bad_order"),
    (lines(chat("how?", "I'm sorry, but I can't assist with that.")), {}, "refusals", "refusal"),
    (lines(chat("say <|im_end|> now")), {"repair": []}, "control_tokens", "control_token"),
    (lines(chat("my key", "AKIA" + "Z7Q2M4K9X1B3C5D8")), {"secrets": "reject"}, "secrets", "secret"),
    (lines(GOOD), {}, "exact_duplicates", "duplicate"),
    (lines({"prompt": "a  Good row", "completion": "4"}), {}, "exact_duplicates", "duplicate"),
]


@pytest.mark.parametrize(("line", "changed", "rule", "reason"), REJECTED)
def test_a_bad_line_is_rejected_with_its_reason_and_the_run_goes_on(
    tmp_path: Path, line: bytes, changed: dict[str, Any], rule: str, reason: str
) -> None:
    bad = line.removesuffix(b"\n") + b"\n"
    project = Project(tmp_path, {"b.jsonl": lines(GOOD) + bad + lines(chat("after"))})
    report = project.run(**changed)
    assert [row["source"] for row in project.rows()] == ["b.jsonl:1", "b.jsonl:3"]
    (reject,) = project.rejects()
    assert (reject["rule"], reject["reason"]) == (rule, reason)
    assert (reject["file"], reject["line"]) == ("b.jsonl", 2)
    assert reject["offset"] == (None if rule == "exact_duplicates" else len(lines(GOOD)))
    assert reject["detail"]
    assert report["rejected"] == {reason: 1}
    assert (report["rows_read"], report["rows_kept"]) == (3, 2)
    assert report["rows_rejected"] + report["rows_dropped"] == 1
    assert {entry["rule"]: entry["rejected"] for entry in report["rules"] if entry["rejected"]} == {rule: 1}


@pytest.mark.parametrize(
    ("key", "value"), [("formats", "messages"), ("fields", {"system": "Be brief."}), ("source_weights", 0.5)]
)
@pytest.mark.parametrize(
    ("globs", "id"),
    [(["logs/*"], "Q-CURATE-008"), (["b.*", "c.*"], "Q-CURATE-008"), (["*", "b.*"], "Q-CURATE-009")],
)
def test_a_glob_that_decides_for_no_file_is_refused_before_anything_is_written(
    tmp_path: Path, key: str, value: Any, globs: list[str], id: str
) -> None:
    project = Project(tmp_path, {"b.jsonl": lines(GOOD, chat("another"))})
    with pytest.raises(ConfigError, match=rf"{id}: curate\.{key} names {re.escape(repr(globs[-1]))}"):
        project.run(**{key: dict.fromkeys(globs, value)})
    assert not (tmp_path / "data/final").exists()


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_a_glob_matches_a_name_in_either_form_of_unicode(tmp_path: Path, form: Literal["NFC", "NFD"]) -> None:
    name = unicodedata.normalize(form, "h\u00e4fen.jsonl")
    project = Project(tmp_path, {name: lines(chat("a", "b"))})
    report = project.run(formats={"h\u00e4fen.jsonl": "messages"})
    assert report["files"][name]["formats"] == {"messages": 1}


def test_the_docs_list_exactly_the_reasons_there_are() -> None:
    listed = DOCS.read_text().partition("## What is rejected")[2].partition("\n## ")[0]
    documented = re.findall(r"^\| `(\w+)` \|", listed, flags=re.MULTILINE)
    places = ("core/jsonl.py", "core/json_values.py", "intake", "stages/curate")
    files = [file for place in places for file in (PROJECT / "pipeline").glob(f"{place}/**/*.py")]
    files += [PROJECT / "pipeline" / place for place in places if place.endswith(".py")]
    code = "".join(file.read_text() for file in files if file.name != "export.py")
    raised = re.findall(r"Bad(?:Row|Line)\(\s*\"(\w+)\"", code)
    tables = re.findall(r"^    [A-Z_]+: \(\"\w+\", \"(\w+)\"\),$", code, re.MULTILINE)
    assert sorted(documented) == sorted({*raised, *tables})


def test_the_example_of_a_reason_is_rejected_for_it(tmp_path: Path) -> None:
    rows = {name: reason.example for name, reason in reasons().items() if reason.example[0] in "{["}
    assert len(rows) > 20
    project = Project(tmp_path, {"a.jsonl": "\n".join([*rows.values(), json.dumps(GOOD)]).encode()})
    project.run(repair=[], languages=["en"])
    found = {entry["line"]: entry["reason"] for entry in project.rejects()}
    assert found == dict(enumerate(rows, start=1))


def test_no_secret_reaches_an_output(tmp_path: Path) -> None:
    secret = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    rows = [
        chat(f"token {secret}"),
        chat("q") | {"domain": secret},
        chat("r") | {"category": "eve@cafe.fr"},
        {"messages": [ASK | {"content": secret}]},
        {secret: secret},
        chat("x", f"see {secret}"),
        chat("y", f"see {secret}"),
    ]
    broken = f'{{"{secret}": {secret}\n["{secret}"]\n"{secret}"\n{{"a": "{secret}", "a": 1}}\n'.encode()
    project = Project(tmp_path, {"a.jsonl": lines(*rows) + broken + b"\xff" + secret.encode()})
    report = project.run()
    assert report["rows_read"] == len(rows) + 5
    assert report["redactions"]
    assert set(report["domains"]) == {"a"}
    assert not [name for name, content in project.outputs().items() if secret.encode() in content]


def test_what_is_said_of_duplicates_and_which_go(tmp_path: Path) -> None:
    words = sentence(1)
    rows = [chat("ask", words + " and more"), chat("ask", words), chat("Ask", words + "  "), chat("other")]
    project = Project(tmp_path, {"b.jsonl": lines(*rows[:3]), "a/z.jsonl": lines(rows[3])})
    for kept, which, twins in (
        ("a/z.jsonl:1 b.jsonl:1", "near", ["near_duplicate b.jsonl:1"] * 2),
        ("a/z.jsonl:1 b.jsonl:1 b.jsonl:2", "exact", ["duplicate b.jsonl:2"]),
        ("a/z.jsonl:1 b.jsonl:1 b.jsonl:2 b.jsonl:3", "none", []),
    ):
        project.run(drop_duplicates=which)
        assert " ".join(row["source"] for row in project.rows()) == kept
        assert [f"{one['reason']} {one['detail'].split()[-1]}" for one in project.rejects()] == twins


def test_the_same_answer_twice_is_one_answer(tmp_path: Path) -> None:
    rows = [with_system(f"be {i}", chat(f"question {i // 2}", f"answer {i // 4}")) for i in range(8)]
    for several in (0, 1):
        report = of_rows(tmp_path / f"{several}", rows).run(drop_duplicates="none")
        assert report["groups"]["requests_with_several_answers"] == several
        rows[1]["messages"][2]["content"] = "another"


@pytest.mark.parametrize("processes", [1, 2])
def test_a_worker_that_can_not_be_made_says_why(tmp_path: Path, processes: int) -> None:
    project = Project(tmp_path, {"a.jsonl": lines(GOOD)})
    with pytest.raises(ConfigError, match="Q-CURATE-011"):
        project.run(processes, languages=["xx"])
    assert project.outputs() == {}


def test_changes_say_what_was_done(tmp_path: Path) -> None:
    rows = chat("say <|im_end|> to e\u0301ve@cafe.fr", "ok"), {"messages": [ASK, ANSWER, ASK]}
    project = of_rows(tmp_path, rows)
    report = project.run()
    changes = {change["rule"]: change for change in project.changes()}
    assert set(changes) == {"normalize", "control_tokens", "personal", "turns"}
    assert "[EMAIL_1]" in changes["personal"]["after"] and "cafe" not in changes["personal"]["before"]
    assert report["changed"] == dict.fromkeys(changes, 1)
    first = project.rows()[0]
    assert first["messages"][0]["content"] == "say < |im_end| > to [EMAIL_1]"
    assert changes["personal"]["id"] == first["id"]


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).filter(
    lambda text: text.strip() and "<|im_" not in text
)
CHAT = st.lists(st.builds(chat, TEXT, TEXT), min_size=1, max_size=3).map(
    lambda exchanges: {"messages": [turn for one in exchanges for turn in one["messages"]]}
)
KEYS = [
    *("messages", "conversations", "instruction", "input", "output", "history", "system", "prompt"),
    *("completion", "tools", "chosen", "rejected", "label", "segments", "text", "answer", "reward", "x"),
]
ODD = st.dictionaries(
    st.sampled_from(KEYS),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["role", "content", "from", "value", "weight"]), inner, max_size=3
            )
        ),
        max_leaves=6,
    ),
)
LINES = st.lists(
    st.one_of(
        CHAT.map(lines),
        ODD.map(lambda row: json.dumps(row).encode() + b"\n"),
        st.binary(max_size=30).map(lambda junk: junk + b"\n"),
    )
)


@settings(max_examples=draws(50))
@given(pieces=LINES, last=st.binary(max_size=10))
def test_whatever_the_bytes_the_account_balances(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], last: bytes
) -> None:
    data = lines(GOOD) + b"".join(pieces) + last
    project = Project(tmp_path_factory.mktemp("curate"), {"a.jsonl": data})
    report = project.run(val_fraction=0.2)
    expected = data.count(b"\n") + (not data.endswith(b"\n"))
    kept = [row for split in SPLITS for row in project.rows(split)]
    rejected = project.rejects()
    assert report["rows_read"] == expected == len(kept) + len(rejected)
    numbers = [int(row["source"].split(":")[1]) for row in kept] + [reject["line"] for reject in rejected]
    assert sorted(numbers) == list(range(1, expected + 1))
    for row in kept:
        assert row["id"] == row_id(row)


@settings(max_examples=draws(30))
@given(rows=st.lists(CHAT, min_size=1, max_size=8, unique_by=lambda row: json.dumps(row)))
def test_with_every_rule_off_valid_rows_are_all_kept_unchanged_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    off = {"reject": [], "secrets": "keep", "personal": [], "drop_duplicates": "none"}
    rows = json.loads(unicodedata.normalize("NFC", json.dumps(rows, ensure_ascii=False)))
    # Hypothesis draws texts of the code itself; a call in text loses the token that ends it.
    assume(not any(end in json.dumps(rows) for end in ENDS))
    project = Project(tmp_path_factory.mktemp("curate"), {"a.jsonl": lines(*rows)})
    project.run(**off)
    assert [row["messages"] for row in project.rows()] == [row["messages"] for row in rows]
    assert project.changes() == []


def test_requests_with_several_answers_and_leaks_that_the_split_prevents_are_counted(tmp_path: Path) -> None:
    rows = [
        chat(f"question {n // 3} about word{n // 3 * 7919}", f"answer {n} alpha{n * 31}") for n in range(600)
    ]
    report = of_rows(tmp_path, rows).run(val_fraction=0.1, test_fraction=0.2)
    assert report["splits"] == {"train": 420, "val": 60, "test": 120}
    assert report["groups"].pop("leaks_prevented") > 50
    assert report["groups"] == {"groups": 200, "rows_in_groups": 600, "requests_with_several_answers": 200}


def test_two_runs_and_any_number_of_workers_give_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning, "BLOCK_BYTES", 20_000)  # so that each worker gets some
    rows = [
        chat(
            f"question {i % 190} of thing{i % 190 * 31}",
            f"answer {i} mail{i % 50}@firm{i % 50}.com " + "word " * (i % 40),
            **({} if i % 4 else {"reward": i / 800}),
        )
        for i in range(800)
    ]
    files = {"b.jsonl": lines(*rows) + b"bad\n", "a/c.JSON": lines(chat("2"), GOOD), "notes.txt": b"hello"}
    outputs = []
    for name, processes in (("one", 1), ("two", 2), ("three", 3)):
        project = Project(tmp_path / name, dict(reversed(files.items())) if name == "two" else files)
        for _ in range(2 if name == "one" else 1):
            report = project.run(processes, val_fraction=0.1, test_fraction=0.2, pairs="rewards")
            outputs.append(project.outputs())
    assert len(outputs[0]) == 8 and report["pairs"]["made"] > 10
    assert not [name for output in outputs for name in output if output[name] != outputs[0][name]]
    assert b"\r" not in b"".join(outputs[0].values())


def test_a_killed_worker_is_one_sentence_and_leaves_the_last_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psutil

    project = of_rows(tmp_path, [chat(f"question {i} word{i * 17}") for i in range(500)])
    project.run()
    before = project.outputs()
    original = cleaning.raw_lines

    def killing(*arguments: Any, **options: Any) -> Any:
        for number, line in enumerate(original(*arguments, **options)):
            if number == 100:
                for child in psutil.Process().children(recursive=True):
                    child.kill()  # the workers and their fork server
            yield line

    monkeypatch.setattr(cleaning, "raw_lines", killing)
    monkeypatch.setattr(cleaning, "BLOCK_BYTES", 1000)
    with pytest.raises(MachineError, match="Q-CURATE-015"):
        project.run(2)
    assert project.outputs() == before
    assert not (tmp_path / "data/.curating").exists()


def test_the_report_counts_per_file(tmp_path: Path) -> None:
    files = {
        "b.jsonl": lines(GOOD) + b"bad\r\n\n",
        "a.json": b"\xef\xbb\xbf" + lines(chat("2"), GOOD),
        "empty.jsonl": b"",
        "wiki/c.jsonl.gz": gzip.compress(lines(chat("3"))),
    }
    report = Project(tmp_path, files).run()
    expected = {"a.json": [2, 2, 0], "b.jsonl": [3, 1, 2], "empty.jsonl": [0, 0, 0]}
    expected |= {"wiki/c.jsonl.gz": [1, 1, 0]}
    assert report["domains"].keys() == {"a", "b", "wiki"}
    assert report["files"].keys() == files.keys()
    for name, file in report["files"].items():
        assert [file[key] for key in ("rows", "kept", "rejected")] == expected[name]
        assert file["sha256"] == hashlib.sha256(files[name]).hexdigest()
    assert report["files"]["a.json"]["notes"] == {"bom": 1}
    assert report["files"]["b.jsonl"]["notes"] == {"crlf": 1}
    assert report["rejected"] == {"blank": 1, "duplicate": 1, "not_json": 1}
    assert report == json.loads((tmp_path / "reports/data.json").read_text())


def test_progress_counts_every_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: dict[str, list[int]] = {}
    files = {"a.jsonl": lines(GOOD) + b"\n\nbad\n", "b.jsonl": b"", "c.jsonl": lines(chat("x"))}

    def progress(label: str, wanted: int) -> Any:
        return nullcontext(recorded.setdefault(f"{label} {wanted}", []).append)

    for module in (cleaning, compare):
        monkeypatch.setattr(module, "progress", progress)
    Project(tmp_path, files).run()
    counted = {label.split()[1]: sum(amounts) for label, amounts in recorded.items()}
    assert counted == {"reading": sum(map(len, files.values())), "comparing": 2}


def test_whole_files_that_are_not_read_are_rejected_too(tmp_path: Path) -> None:
    files = {"a.jsonl": lines(GOOD), "b.doc": b"x,y", ".gitkeep": b"", ".git/x.jsonl": b"x"}
    project, unread = Project(tmp_path, files), ["b.doc", "chats.jsonl.xz", "e"]
    (project.raw / "chats.jsonl.xz").write_bytes(b"packed")
    (project.raw / "e").symlink_to(tmp_path)
    (project.raw / "folder.jsonl").mkdir()
    report = project.run()
    rejects = {reject["file"]: reject["reason"] for reject in project.rejects()}
    assert rejects == dict.fromkeys(unread, "unknown_container")
    assert all(reject["line"] is None and reject["offset"] is None for reject in project.rejects())
    assert report["files_rejected"] == {"unknown_container": 3}
    assert (report["files_found"], [*report["files"]]) == (4, ["a.jsonl"])
    assert [*report["files_unread"]] == unread
    assert (report["rows_read"], report["rows_kept"], report["rows_rejected"]) == (1, 1, 0)


@pytest.mark.parametrize(
    "encode",
    [lambda text: text.encode("utf-8-sig"), lambda text: unicodedata.normalize("NFD", text).encode()],
)
def test_names_are_found_however_their_file_is_saved(tmp_path: Path, encode: Any) -> None:
    project = of_rows(tmp_path, [chat("who is Zoë Müller?", "Zoë Müller is a friend of Ann Roe.")])
    (tmp_path / "data/guard/names.txt").write_bytes(encode("Zoë Müller\r\n\r\nAnn Roe\r\n"))
    project.run(names="names.txt")
    found = [turn["content"] for turn in project.rows()[0]["messages"]]
    assert found == ["who is [NAME_1]?", "[NAME_1] is a friend of [NAME_2]."]


def test_raw_text_holds_no_control_token_and_markup_may(tmp_path: Path) -> None:
    marked = ["<|im_start|>user\nhi<|im_end|>", "ho<|im_end|>"]
    segments = [{"label": text == marked[1], "text": text} for text in marked]
    project = of_rows(tmp_path, [{"text": "a<|im_end|>b"}, {"segments": segments}])
    project.run()
    found = [[segment["text"] for segment in row["segments"]] for row in project.rows()]
    assert found == [["a< |im_end| >b"], marked]


HALVES = {"val_fraction": 0.5, "test_fraction": 0.5}


@pytest.mark.parametrize(
    ("files", "changed", "problem"),
    [
        ({}, {}, "Q-CURATE-001"),
        ({"a.doc": b"x"}, {}, "Q-CURATE-001: .* 1 file,"),
        ({"a.jsonl": b""}, {}, "Q-CURATE-013"),
        ({"a.json": b"[]"}, {}, "Q-CURATE-013"),
        ({"a.jsonl": b"\n"}, {}, r"Q-CURATE-013: 0 of 1 row .* \(1 blank; "),
        (
            {"a.jsonl": b"\n" + lines({"messages": [ASK]}, {"messages": [ASK]})},
            {},
            r"Q-CURATE-013: .* \(2 no_assistant, 1 blank; first a\.jsonl line 2: ",
        ),
        ({"a.jsonl": b"\nx\ny\n"}, {}, r"Q-CURATE-019: .* \(2 not_json, 1 blank; line 2: "),
        ({"a.jsonl": b"\nx\n"}, {"source_weights": {"a*": 0.0}}, "Q-CURATE-013"),
        ({"a.jsonl": lines(GOOD)}, {"test_fraction": 0.5}, r"Q-CURATE-014: of 1 row .* test "),
        ({"a.jsonl": lines(GOOD, chat("b"))}, HALVES, r"Q-CURATE-014: of 2 rows .* train "),
        ({"a.jsonl": lines(GOOD)}, {"names": "names.txt"}, "Q-CURATE-005:"),
    ],
)
def test_nothing_to_train_or_measure_on_is_one_sentence(
    tmp_path: Path, files: dict[str, bytes], changed: dict[str, Any], problem: str
) -> None:
    project = Project(tmp_path, files)
    with pytest.raises(DataError, match=problem) as caught:
        project.run(**changed)
    assert caught.value.exit_code == 3
    assert "\n" not in caught.value.sentence
    assert project.outputs() == {}


@pytest.mark.parametrize("base", [None, "{", "{}", "[]", '{"added_tokens": null}', '{"added_tokens": [1]}'])
def test_a_missing_or_odd_base_record_is_one_sentence(tmp_path: Path, base: str | None) -> None:
    project = Project(tmp_path, {"a.jsonl": lines(GOOD)})
    (tmp_path / "models/base.json").unlink()
    if base is not None:
        (tmp_path / "models/base.json").write_text(base)
    with pytest.raises(DataError, match="Q-CURATE-003:"):
        project.run()


def test_a_long_text_becomes_parts_that_stay_together(tmp_path: Path) -> None:
    text = "".join(f"Sentence {number} is about thing {number * 7919 % 1000}. " for number in range(200))
    chats = (chat(f"question {n}", f"reply {n * 7919}") for n in range(40))
    project = of_rows(tmp_path, [{"text": text}, *chats])
    smollm_folder(tmp_path / "models/base")
    report = project.run(max_tokens=200, test_fraction=0.3)
    parts = [(split, row) for split in SPLITS for row in project.rows(split) if row["kind"] == "text"]
    assert len(parts) > 5
    assert report["parts_added"] == len(parts) - 1
    assert len({split for split, _ in parts}) == 1
    parts.sort(key=lambda part: int(part[1]["source"].partition("#")[2]))
    assert "".join(segment["text"] for _, row in parts for segment in row["segments"]) == text


@pytest.mark.parametrize(
    ("overlong", "parts", "reasons"),
    [("split", 6, []), ("truncate", 1, []), ("reject", 0, ["over_budget"])],
)
def test_a_chat_beyond_the_budget_is_split_or_rejected_as_the_settings_say(
    tmp_path: Path, overlong: str, parts: int, reasons: list[str]
) -> None:
    turns = [turn for n in range(6) for turn in chat(f"{n} " + "word " * 60, "term " * 60)["messages"]]
    project = Project(tmp_path, {"a.jsonl": lines({"messages": turns}, GOOD)})
    smollm_folder(tmp_path / "models/base")
    project.run(max_tokens=200, overlong=overlong)
    long = [row for row in project.rows() if "word" in row["messages"][0]["content"]]
    assert len(long) == parts and len(project.rows()) == parts + 1
    assert [row["reason"] for row in project.rejects()] == reasons
