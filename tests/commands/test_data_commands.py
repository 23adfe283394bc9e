"""`quench data …`: end to end on small files, with a real git and DVC repository."""

import json
import os
import re
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import tiny
import yaml
from golden import Golden
from graph_settings import graph_text
from jsonschema import Draft202012Validator
from make import quench

from pipeline.chat.rows import row_id
from pipeline.core.errors import DataError
from pipeline.core.places import PROJECT
from pipeline.llamacpp.tools import Toolchain

SPLITS = ("train", "val", "test")
RECORDED = [f"data/final/{split}.jsonl" for split in SPLITS]
STAGE = {"stages": {"curate": {"cmd": "true", "outs": [*RECORDED, "reports/data.json"]}}}


def chat(source: str, asked: str, answered: str = "yes", **more: Any) -> dict[str, Any]:
    """A canonical row."""
    messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    row = {"source": source, "kind": "chat", "domain": source.partition(".")[0], "messages": messages, **more}
    return {"id": row_id(row), **row}


def write(root: Path, splits: dict[str, list[dict[str, Any]]], rejected: dict[str, int]) -> None:
    (root / "data/final").mkdir(parents=True, exist_ok=True)
    (root / "reports").mkdir(exist_ok=True)
    for split in SPLITS:
        (root / f"data/final/{split}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in splits.get(split, []))
        )
    (root / "reports/data.json").write_text(json.dumps({"rejected": rejected}))


def data(root: Path, *words: str) -> Any:
    return quench("data", *words, "--root", root)


def git(root: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=root, check=True, capture_output=True)


def commit(root: Path, tag: str) -> None:
    from dvc.repo import Repo

    with Repo(str(root)) as repo:
        repo.commit(force=True)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", tag)
    git(root, "tag", tag)


ONE = {
    "train": [chat(f"a.jsonl:{n}", f"question {n}") for n in range(1, 7)]
    + [chat("b.jsonl:1", "old words, all the rest the same")],
    "val": [chat("a.jsonl:7", "question 7")],
    "test": [chat("a.jsonl:8", "question 8")],
}
# question 2 goes, 3 moves to test, 9 and 10 come, b.jsonl:1 gets other words, and every source below 2 moves
# up a line
TWO = {
    "train": [chat(f"a.jsonl:{n - (n > 2)}", f"question {n}") for n in (1, 4, 5, 6, 9)]
    + [chat("b.jsonl:1", "new words, all the rest the same")],
    "val": [chat("a.jsonl:6", "question 7"), chat("c.jsonl:1", "question 10")],
    "test": [chat("a.jsonl:2", "question 3"), chat("a.jsonl:7", "question 8")],
}


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with revisions `empty`, `one`, `two`; workspace at `two`. Read only: copy to change it."""
    from dvc.repo import Repo

    root = tmp_path_factory.mktemp("versions")
    git(root, "init", "--quiet")
    Repo.init(str(root)).close()
    (root / "dvc.yaml").write_text(yaml.safe_dump(STAGE))
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "empty")
    git(root, "tag", "empty")
    write(root, ONE, {"not_json": 3, "bad_order": 2})
    commit(root, "one")
    write(root, TWO, {"not_json": 5, "bad_order": 2})
    commit(root, "two")
    return root


SEVERAL = ("a:1", "a:2~1", "a:2~2#1", "a:2~2#2", "a:2~2#2*2", "a:2~3", "a:2~20", "a:20", "a:3")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--row", "a:2"], "a:2~1 a:2~2#1 a:2~2#2 a:2~2#2*2 a:2~3 a:2~20"),
        (["--row", "a:2~2"], "a:2~2#1 a:2~2#2 a:2~2#2*2"),
        (["--row", "a:2~2#2", "--count", "1"], "a:2~2#2 a:2~2#2*2"),
        (["--row", "a:2~3", "--count", "1"], "a:2~3"),
        (["--row", "a:2~20"], "a:2~20"),
        (["--row", "7"], "a:2~20 a:20 a:3"),
        (["--count", "2"], "a:1 a:2~1"),
    ],
)
def test_show_finds_each_and_all_rows_of_a_line(words: list[str], shown: str, tmp_path: Path) -> None:
    write(tmp_path, {"train": [chat(source, f"question of {source}") for source in SEVERAL]}, {})
    result = data(tmp_path, "show", *words)
    assert result.exit_code == 0, result.output
    sources = re.findall(r"row \d+ of train · \w+ · (\S+) ·", result.stdout)
    assert sources == shown.split()


@pytest.mark.parametrize(
    "words",
    [["one"], ["one", "two"], ["one", "--rows", "1"], ["two", "one"], ["two"]],
    ids=["to-the-workspace", "to-a-revision", "with-examples", "backwards", "with-itself"],
)
def test_diff_counts_rows_splits_domains_and_reasons(versions: Path, words: list[str], snapshot: Any) -> None:
    shown = data(versions, "diff", *words)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout == snapshot(extension_class=Golden)


def test_diff_says_the_summary_before_it_reads_examples(
    versions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(*_: object) -> None:
        raise DataError("Q-CORE-006", "cut: run it again")

    monkeypatch.setattr(import_module("pipeline.commands.data.diff"), "_fetched", unread)
    shown = data(versions, "diff", "one", "--rows", "1")
    assert shown.exit_code == 3
    assert "rows: 2 added" in shown.stdout


def test_diff_counts_all_rows_of_one_source(versions: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(versions, tmp_path / "branches"))
    branches = [chat("export.zip:3", f"branch {number}") for number in range(3)]
    write(root, TWO | {"train": TWO["train"] + branches}, {"not_json": 5, "bad_order": 2})
    assert "rows: 3 added" in data(root, "diff", "two").stdout


def test_diff_counts_rows_that_are_there_twice(versions: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(versions, tmp_path / "twice"))
    write(root, TWO | {"train": TWO["train"] * 2}, {"not_json": 5, "bad_order": 2})
    shown = " ".join(data(root, "diff", "two").stdout.split())
    assert "train 6 12 +6" in shown
    assert "no row differs" in shown


@pytest.mark.parametrize(
    ("words", "code", "id"),
    [
        (["diff", "empty"], 3, "Q-COMMANDS-021: empty "),
        (["diff", "nonsense"], 2, "Q-COMMANDS-020: "),
        (["diff", "one", "--rows", "-1"], 2, "--rows"),
        (["show", "--row", "99"], 3, "Q-COMMANDS-019: "),
        (["show", "--split", "nonsense"], 2, "--split"),
        (["export", "x.jsonl", "--to", "nonsense"], 2, "--to"),
        (["check", "no-such-file"], 3, "Q-COMMANDS-016: no-such-file "),
        (["check", ".", "--params", "no-such.yaml"], 2, "Q-CONFIG-001: no-such.yaml "),
    ],
)
def test_a_mistake_is_one_sentence_and_its_code(versions: Path, words: list[str], code: int, id: str) -> None:
    shown = data(versions, *words)
    assert shown.exit_code == code
    assert id in " ".join(shown.stderr.split())
    assert "Traceback" not in shown.stderr
    assert isinstance(shown.exception, SystemExit)
    assert not shown.stdout


def test_diff_says_how_to_get_data_that_is_not_here(versions: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(versions, tmp_path / "bare"))
    shutil.rmtree(root / ".dvc" / "cache")
    shown = data(root, "diff", "one")
    assert shown.exit_code == 3 and "Q-COMMANDS-022" in shown.stderr


def test_the_graph_records_what_diff_reads() -> None:
    curate = yaml.safe_load(graph_text("merged"))["stages"]["curate"]
    assert {*RECORDED, "reports/data.json"} <= {*curate["outs"], *curate["metrics"]}


def test_diff_outside_of_git_is_one_sentence(tmp_path: Path) -> None:
    shown = data(tmp_path, "diff", "HEAD")
    assert (shown.exit_code, shown.stdout) == (2, "")


def test_diff_without_git_is_one_sentence(versions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    shown = data(versions, "diff", "one")
    assert (shown.exit_code, shown.stdout) == (4, "") and "Q-CORE-016" in shown.stderr


def test_diff_wants_a_lock_that_names_the_data(versions: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(versions, tmp_path / "other"))
    (root / "dvc.lock").write_text("stages:\n  base:\n    outs:\n    - path: models/base.json\n")
    git(root, "commit", "--quiet", "--all", "--message", "no data")
    shown = data(root, "diff", "HEAD")
    assert shown.exit_code == 3 and "Q-COMMANDS-021" in shown.stderr


# ---- check


GOOD = json.dumps(
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
)
KEY = "AKIA" + "Z7Q4M2X9K1P5R8T3"
BAD = {
    2: ("not json", "not_json"),
    3: ('{"x": 1}', "unknown_format"),
    5: (json.dumps({"messages": [{"role": "assistant", "content": f"my key is {KEY}"}]}), "bad_order"),
    6: ("", "blank"),
}


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A project with params.yaml and a folder of one good and one bad file."""
    shutil.copy(PROJECT / "params.yaml", tmp_path)
    folder = tmp_path / "logs"
    (folder / ".hidden").mkdir(parents=True)
    (folder / ".hidden/x.jsonl").write_text("never read")
    (folder / "good.jsonl").write_text(GOOD + "\n")
    (folder / "bad.jsonl").write_text(
        "".join(BAD.get(number, (GOOD, ""))[0] + "\n" for number in range(1, 8))
    )
    return folder


def test_check_names_every_row_that_cannot_be_used(raw: Path, snapshot: Any) -> None:
    shown = data(raw.parent, "check", str(raw))
    assert shown.exit_code == 3, shown.output
    text = (shown.stdout + shown.stderr).replace(str(raw.parent), "ROOT")
    assert text == snapshot(extension_class=Golden)


def test_check_of_clean_files_is_quiet_and_writes_nothing(raw: Path) -> None:
    before = sorted(raw.parent.rglob("*"))
    shown = data(raw.parent, "check", str(raw / "good.jsonl"))
    assert shown.exit_code == 0 and not shown.stdout.count("rejected:")
    assert sorted(raw.parent.rglob("*")) == before


def test_check_names_the_columns_that_texts_are_read_without(raw: Path) -> None:
    rows = [
        {"text": "The harbour is deep.", "title": "Depths", "url": ""},
        {"text": "So is the bay.", "title": "Bays"},
    ]
    (raw / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shown = data(raw.parent, "check", str(raw / "texts.jsonl"))
    assert shown.exit_code == 0
    assert "texts.jsonl: the texts are read without title (2 rows);" in shown.stdout


def test_check_counts_the_verdicts_beside_rows(raw: Path) -> None:
    rows = [
        {"prompt": f"Name pier {number}.", "completion": "One.", "status": "Discarded"} for number in (1, 2)
    ]
    (raw / "judged.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shown = data(raw.parent, "check", str(raw / "judged.jsonl"))
    assert shown.exit_code == 3
    assert "status: discarded (2 rows)" in shown.stdout and "curate.marked_bad" in shown.stdout


def test_check_counts_the_rows_with_a_list_of_answers(raw: Path) -> None:
    rows = [
        {"prompt": f"Which desk {n}?", "completion": desks}
        for n, desks in enumerate((["a", "b"], ["a"], "b"))
    ]
    (raw / "desks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shown = data(raw.parent, "check", str(raw / "desks.jsonl"))
    assert shown.exit_code == 0 and "desks.jsonl: 1 row has a list of answers" in shown.stdout


@pytest.mark.parametrize(
    ("names", "is_said"),
    [
        (("train.jsonl", "test-00000-of-00001.jsonl"), True),
        (("desk.jsonl", "dev/desk.jsonl"), True),
        (("desk.jsonl", "contest.jsonl"), False),
        (("test.jsonl",), False),
    ],
)
def test_check_names_files_that_are_called_held_out(
    tmp_path: Path, names: tuple[str, ...], is_said: bool
) -> None:
    shutil.copy(PROJECT / "params.yaml", tmp_path)
    for name in names:
        file = tmp_path / "logs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(GOOD + "\n")
    shown = data(tmp_path, "check", str(tmp_path / "logs"))
    assert shown.exit_code == 0 and ("curate.decontaminate" in shown.stdout) == is_said


def test_check_as_json_is_for_machines_and_holds_no_secret(raw: Path) -> None:
    shown = data(raw.parent, "check", str(raw), "--json")
    entries = [json.loads(line) for line in shown.stdout.splitlines()]
    assert shown.exit_code == 3
    assert [(entry["line"], entry["reason"]) for entry in entries] == [
        (number, reason) for number, (_, reason) in BAD.items()
    ]
    assert {entry["file"] for entry in entries} == {str(raw / "bad.jsonl")}
    assert "my key is" in entries[2]["text"]
    assert KEY not in shown.stdout + shown.stderr


def test_check_names_the_first_row_of_a_reason_or_all(raw: Path) -> None:
    (raw / "many.jsonl").write_text("{\n" * 70 + '{"nl": "list", "bash": "ls"}\n' * 2)
    for flags, named in (((), 2), (("--all",), 72)):
        shown = data(raw.parent, "check", str(raw / "many.jsonl"), *flags)
        assert shown.stdout.count(f"{raw / 'many.jsonl'}:") == named
        assert ("--all" in shown.stdout) == (named == 2)
        assert shown.stdout.splitlines()[-1].endswith("70 not_json, 2 unknown_format")
        if named == 2:
            first, second, *_ = shown.stdout.splitlines()
            assert first.startswith(f"{raw / 'many.jsonl'}:1: not_json: ") and "69 more rows" in first
            named_keys = "unknown_format: 2 of 72 rows can't be read; they have the keys nl and bash"
            assert second == f"{raw / 'many.jsonl'}:71: {named_keys}"


def test_check_names_fifty_reasons_of_files_or_all(raw: Path) -> None:
    (raw / "many").mkdir()
    for number in range(60):
        (raw / f"many/{number:02}.jsonl").write_text("{\n{\n")
    for flags, named in (((), 50), (("--all",), 120)):
        shown = data(raw.parent, "check", str(raw / "many"), *flags)
        assert len(re.findall(r"\.jsonl:\d", shown.stdout)) == named
        assert ("10 more" in shown.stdout) == (named == 50)
        assert shown.stdout.splitlines()[-1].endswith("120 rejected: 120 not_json")


def test_check_measures_control_tokens_where_the_base_is_known(raw: Path) -> None:
    (raw.parent / "models").mkdir()
    (raw.parent / "models/base.json").write_text('{"added_tokens": ["<|im_end|>"]}')
    params = raw.parent / "strict.yaml"
    params.write_text("curate:\n  repair: []\n")
    (raw / "token.jsonl").write_text(GOOD.replace("hello", "hello<|im_end|>") + "\n")
    shown = data(raw.parent, "check", str(raw / "token.jsonl"), "--params", str(params))
    assert shown.exit_code == 3
    assert shown.stdout.splitlines()[-1].endswith("1 control_token")
    assert "base.json" not in shown.stderr  # they are measured


def test_check_names_words_of_a_status_that_are_no_verdict(raw: Path) -> None:
    (raw / "bad.jsonl").unlink()
    words = ["solved"] * 3 + ["hylätty", "approved", "discarded"]
    rows = [json.loads(GOOD) | {"status": word, "order_status": "late"} for word in words]
    (raw / "good.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shown = " ".join(data(raw.parent, "check", str(raw)).stdout.split())
    assert "rows with status: solved (3 rows) and status: hylätty (1 row) are trained" in shown


def test_check_counts_what_is_taken_out_of_mails(raw: Path) -> None:
    (raw / "bad.jsonl").unlink()
    asked = "Hello,\nwhen does the ferry leave?\n\nKind regards\nKim"
    answered = chat("x", asked, "At noon.\n\nKind regards\nTove")["messages"]
    (raw / "good.jsonl").write_text(json.dumps({"messages": answered}) + "\n")
    assert "2 closings" in data(raw.parent, "check", str(raw)).stdout


def test_check_of_a_whole_file_that_is_not_read(raw: Path) -> None:
    (raw / "letter.doc").write_text("dear all")
    shown = data(raw.parent, "check", str(raw / "letter.doc"))
    assert shown.exit_code == 3
    assert shown.stdout.startswith(f"{raw / 'letter.doc'}: unknown_container: ")


def test_check_names_a_scorer_for_labels_unless_one_is_chosen(raw: Path) -> None:
    (raw / "bad.jsonl").unlink()
    rows = [{"prompt": f"Ticket {number}", "completion": ("lost", "late")[number % 2]} for number in range(9)]
    (raw / "labels.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for scorers, is_named in (("[rouge_l]", True), ("[exact_match]", False)):
        (raw.parent / "params.yaml").write_text(f"evaluate: {{scorers: {scorers}}}\n")
        shown = data(raw.parent, "check", str(raw / "labels.jsonl"))
        assert shown.exit_code == 0, shown.output
        assert ("exact_match" in shown.stdout) == is_named


CHAT = "12/03/2024, 10:15 - Ann: Is it here?\n12/03/2024, 10:16 - Bob: At pier two.\n"


def test_check_and_stage_agree_on_a_file_that_can_not_be_used(raw: Path) -> None:
    """A messenger's chat is left out whole, and rows of which none can be read stop the stage."""
    (raw / "bad.jsonl").unlink()
    (raw / "chat.txt").write_text(CHAT)
    shown = data(raw.parent, "check", str(raw))
    assert shown.exit_code == 3
    assert "1 read, 1 not read" in shown.stdout and "would stop" not in shown.stdout
    (raw / "paper.jsonl").write_text("%PDF-1.7\n")
    shown = data(raw.parent, "check", str(raw))
    assert f"stage curate would stop at {raw / 'paper.jsonl'}, " in shown.stdout


def test_check_reads_links_as_curate_does(raw: Path) -> None:
    """Also those that lead out of the folder; under the name they have in it."""
    outside = raw.parent / "outside.jsonl"
    outside.write_text("not json\n")
    (raw / "good.jsonl").unlink()
    (raw / "bad.jsonl").unlink()
    (raw / "link.jsonl").symlink_to(outside)
    (raw / "gone.jsonl").symlink_to("nowhere")
    for path, reasons in ((raw, ["unknown_container", "not_json"]), (raw / "link.jsonl", ["not_json"])):
        shown = data(raw.parent, "check", str(path))
        assert shown.exit_code == 3, shown.output
        assert [line.split(": ")[1] for line in shown.stdout.splitlines()[: len(reasons)]] == reasons
        assert f"{raw / 'link.jsonl'}:1: not_json" in shown.stdout


def test_check_names_files_below_data_raw_as_curate_does(raw: Path) -> None:
    """By which the globs of curate.formats find them, also through a link to data/raw."""
    folder = raw.parent / "data/raw/logs"
    folder.mkdir(parents=True)
    (raw.parent / "short").symlink_to(folder)
    (folder / "link.jsonl").symlink_to(raw / "good.jsonl")

    def wrong(path: Path, pattern: str) -> bool:
        """Set a wrong format for files that match `pattern`, and return True if `path` is read in it."""
        (raw.parent / "params.yaml").write_text(f"curate:\n  formats: {{{pattern}: sharegpt}}\n")
        shown = data(raw.parent, "check", str(path))
        assert shown.exit_code in (0, 3), shown.output
        return shown.stdout.endswith("1 wrong_format\n")

    for path in (
        raw.parent / "data/raw",
        folder,
        folder / "link.jsonl",
        raw.parent / "short/link.jsonl",
        folder / "../logs/link.jsonl",
    ):
        assert wrong(path, "logs/link.jsonl")
    assert wrong(raw / "good.jsonl", "good.jsonl") and not wrong(raw / "good.jsonl", "logs/good.jsonl")


def test_check_reads_a_hidden_file_that_is_named(raw: Path) -> None:
    for path in (raw / ".hidden/x.jsonl", raw / ".hidden"):
        shown = data(raw.parent, "check", str(path))
        assert shown.exit_code == 3, shown.output
        assert f"{raw / '.hidden/x.jsonl'}:1: not_json" in shown.stdout


def test_check_outside_of_a_project_uses_the_demos_settings(raw: Path) -> None:
    (raw.parent / "params.yaml").unlink()
    shown = data(raw.parent, "check", str(raw))
    assert shown.exit_code == 3, shown.output
    assert shown.stdout.splitlines()[-1].count("1 ") == len(BAD)
    assert str(PROJECT / "recipes/demo.yaml") in shown.stderr
    missing = data(raw.parent, "check", str(raw), "--params", str(raw.parent / "params.yaml"))
    assert missing.exit_code == 2
    assert "Q-CONFIG-001: " in missing.stderr


def test_check_counts_every_file_and_row_and_what_is_not_trained(raw: Path, snapshot: Any) -> None:
    (raw / "bad.jsonl").unlink()
    (raw / "later.jsonl").write_text(
        '{"prompt": "1 + 1?", "answer": 2}\n{"prompt": "a", "completion": "b", "reward": 1}\nx\n'
    )
    (raw / "empty.jsonl").touch()
    (raw / "no\n\x1b[31m.xz").touch()
    os.mkfifo(raw / "pipe.jsonl")
    (raw / "zero.jsonl").symlink_to("/dev/zero")
    shown = data(raw.parent, "check", str(raw))
    assert shown.exit_code == 3
    assert shown.stdout.replace(str(raw), "RAW") == snapshot(extension_class=Golden)
    for path in ("pipe.jsonl", "zero.jsonl"):
        assert data(raw.parent, "check", str(raw / path)).exit_code == 3
    (raw / "later.jsonl").write_text('{"prompt": "1 + 1?", "answer": 2}\n')
    kept = data(raw.parent, "check", str(raw / "later.jsonl"))
    assert kept.exit_code == 0  # what is kept for later is no mistake


def test_check_can_say_any_files_name(raw: Path) -> None:
    Path(os.fsdecode(os.fsencode(raw) + b"/\xff.jsonl")).write_text("not json\n")
    for flags in ([], ["--json"]):
        shown = data(raw.parent, "check", str(raw), *flags)
        assert isinstance(shown.exception, SystemExit)
        assert "udcff.jsonl" in shown.stdout


def test_check_of_nothing_is_a_mistake(raw: Path) -> None:
    (raw.parent / "empty").mkdir()
    shown = data(raw.parent, "check", str(raw.parent / "empty"))
    assert shown.exit_code == 3
    assert "Q-COMMANDS-016: " in shown.stderr


# ---- export and schema


KINDS = [
    chat("a.jsonl:1", "2 + 2?", "4"),
    chat(
        "a.jsonl:2",
        "think",
        messages=[
            {"role": "user", "content": "think"},
            {"role": "assistant", "content": "ok", "reasoning_content": "hm"},
        ],
    ),
    chat("a.jsonl:3", "", kind="text", messages=[], segments=[{"text": "raw", "train": True}]),
    chat(
        "a.jsonl:4",
        "",
        kind="preference",
        messages=[{"role": "user", "content": "best?"}],
        chosen=[{"role": "assistant", "content": "tea"}],
        rejected=[{"role": "assistant", "content": "mud"}],
    ),
    chat(
        "a.jsonl:5",
        "",
        kind="prompt",
        messages=[
            {"role": "user", "content": "1 + 1?"},
            {"role": "assistant", "content": "2"},  # read, not learned: the model's own answer is
            {"role": "user", "content": "3 + 3?"},
        ],
        answer="6",
    ),
    chat("a.jsonl:6", "like it?", kind="feedback", label=False),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write(tmp_path, {"train": KINDS}, {})
    return tmp_path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_export_counts_and_names_what_it_leaves_out(project: Path, snapshot: Any) -> None:
    target = project / "out.jsonl"
    shown = data(project, "export", str(target), "--to", "alpaca")
    assert shown.exit_code == 3
    assert read(target) == [{"instruction": "2 + 2?", "input": "", "output": "4"}]
    assert shown.stdout.replace(str(project), "ROOT") == snapshot(extension_class=Golden)
    assert data(project, "export", str(target), "--to", "alpaca", "--skip", "--force").exit_code == 0


def test_export_overwrites_nothing_unasked(project: Path) -> None:
    target = project / "out.jsonl"
    target.write_text("mine")
    shown = data(project, "export", str(target), "--to", "sharegpt")
    assert shown.exit_code == 3 and "Q-COMMANDS-018" in shown.stderr
    assert target.read_text() == "mine"


@pytest.mark.parametrize("name", ["thesis", "link", "pipe"])
@pytest.mark.parametrize("flags", [[], ["--force"]])
def test_export_never_replaces_what_is_no_file(project: Path, name: str, flags: list[str]) -> None:
    (project / "thesis").mkdir()
    (project / "thesis/precious.txt").write_text("mine")
    (project / "link").symlink_to("thesis")
    os.mkfifo(project / "pipe")
    before = sorted(project.rglob("*"))
    shown = data(project, "export", str(project / name), "--to", "sharegpt", *flags)
    assert shown.exit_code == 2
    assert f"Q-COMMANDS-017: {project / name} " in shown.stderr
    assert sorted(project.rglob("*")) == before


def test_export_as_messages_can_be_read_again(project: Path) -> None:
    from pipeline.intake.rows.formats import to_row

    target = project / "out.jsonl"
    shown = data(project, "export", str(target), "--to", "messages")
    assert shown.exit_code == 0, shown.output
    again = [
        to_row(value, source=row["source"], domain="other")
        for value, row in zip(read(target), KINDS, strict=True)
    ]
    assert [{"id": row_id(row), **row} for row in again] == KINDS


def test_schema_is_that_of_the_rows() -> None:
    shown = quench("data", "schema")
    assert shown.exit_code == 0
    schema = json.loads(shown.stdout)
    Draft202012Validator.check_schema(schema)
    assert {"Chat", "Preference", "Feedback", "Prompt", "Text"} <= schema["$defs"].keys()
    assert all(Draft202012Validator(schema).is_valid(row) for row in KINDS)
    assert not Draft202012Validator(schema).is_valid(KINDS[0] | {"more": 1})


# ---- show


def test_show_without_a_base_shows_the_messages(project: Path, snapshot: Any) -> None:
    shown = data(project, "show", "--count", "9")
    assert shown.exit_code == 0, shown.output
    assert "models/base" in shown.stderr
    assert shown.stdout == snapshot(extension_class=Golden)


@pytest.mark.parametrize("wanted", ["5", KINDS[4]["id"], "a.jsonl:5"])
def test_show_finds_a_row(project: Path, wanted: str) -> None:
    shown = data(project, "show", "--row", wanted, "--count", "1")
    assert "3 + 3?" in shown.stdout
    assert shown.stdout.count("row ") == 1


def test_show_of_an_empty_split(project: Path) -> None:
    shown = data(project, "show", "--split", "val")
    assert (shown.exit_code, shown.stdout.count("\n")) == (0, 1)


@pytest.fixture(scope="module")
def base(tools: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Qwen2.5's tokenizer and template."""
    folder = tmp_path_factory.mktemp("base") / "base"
    folder.mkdir()
    tiny.write_qwen2_tokenizer(folder, tools)
    return folder


@pytest.fixture
def with_base(project: Path, base: Path) -> Path:
    (project / "models").mkdir()
    (project / "models/base").symlink_to(base)
    return project


CALLED = {
    "messages": [
        {"role": "user", "content": "2 + 2?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2}}}],
        },
        {"role": "tool", "content": "4", "name": "add"},
        {"role": "assistant", "content": "4"},
    ],
    "tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}],
}


def test_check_counts_rows_with_tools_that_the_base_does_not_show(raw: Path, base: Path) -> None:
    (raw / "bad.jsonl").unlink()
    (raw / "calls.jsonl").write_text(f"{json.dumps(CALLED)}\n" * 3)
    assert data(raw.parent, "check", str(raw)).exit_code == 0  # Without a base nobody knows.
    models = raw.parent / "models"
    models.mkdir()
    (models / "base").symlink_to(base)
    assert "tools" not in data(raw.parent, "check", str(raw)).stdout
    (models / "base").unlink()
    shutil.copytree(base, models / "base")
    (models / "base/chat_template.jinja").write_text(tiny.CHATML)
    shown = data(raw.parent, "check", str(raw))
    assert shown.exit_code == 3
    assert "3 rows have tools" in shown.stdout and "demo" in shown.stdout
    assert "every row can be used" not in shown.stdout
    # A recipe was chosen since, and its base is not made yet.
    (models / "base.json").write_text('{"added_tokens": [], "model": "other", "revision": null}')
    shutil.copy(PROJECT / "params.yaml", raw.parent)
    shown = data(raw.parent, "check", str(raw))
    assert (shown.exit_code, "quench run base" in shown.stdout, "demo" in shown.stdout) == (3, True, False)


def test_show_renders_with_the_bases_template_and_marks_what_is_trained(
    with_base: Path, snapshot: Any
) -> None:
    """Qwen2.5's template has no place for reasoning."""
    shown = data(with_base, "show", "--count", "9")
    assert shown.exit_code == 0, shown.output
    assert not shown.stderr
    assert shown.stdout == snapshot(extension_class=Golden)


def test_show_colors_what_is_trained(with_base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    shown = data(with_base, "show", "--count", "1")
    assert "\x1b[1;32m4" in shown.stdout
    assert "⟦" not in shown.stdout
