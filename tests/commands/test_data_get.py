"""`quench data get`: a data set of the hub, a web server's or a store's file in data/raw, whole and with its
record.
"""

import gzip
import hashlib
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from curating import Project, chat, lines
from fake_hub import COMMIT, REPO, FakeHub, fake_hub, hub_here
from make import ended
from s3_server import KEY, S3, without_s3fs

from pipeline.commands.data.get import command
from pipeline.commands.data.get.command import Options, main
from pipeline.core.errors import QuenchError
from pipeline.core.hashing import json_hash
from pipeline.core.locks import take
from pipeline.stages.base import pinned_file

NAME = REPO.partition("/")[2]
ROWS = lines(*(chat(f"hi {number}", f"yes {number}") for number in range(9)))
CARD = """---
license: cc-by-4.0
dataset_info:
- config_name: en
  features:
  - {name: messages, list: [{name: role, dtype: string}]}
configs:
- config_name: en
  default: true
  data_files:
  - {split: train, path: en/train-*}
  - {split: test, path: [en/test.jsonl]}
- config_name: de
  data_files: de/*.jsonl
- config_name: tabs
  data_dir: tabs
  sep: "\\t"
---
# A data set
"""

Repository = Callable[..., FakeHub]


def table(count: int) -> bytes:
    """Parquet of more than a kilobyte, which packs badly."""
    rows = [chat(f"q {number}", hashlib.sha512(b"%d" % number).hexdigest() * 3) for number in range(count)]
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink)
    return sink.getvalue()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    """A hub whose one data set has these files."""
    with ExitStack() as running:

        def make(files: dict[str, bytes | str]) -> FakeHub:
            folder = tmp_path / "repository"
            for name, data in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)
            return running.enter_context(hub_here(folder, monkeypatch, "datasets"))

        yield make


@pytest.fixture
def hub(repository: Repository) -> FakeHub:
    return repository(
        {
            "README.md": CARD,
            "en/train-00000-of-00002.parquet": table(5),
            "en/train-00001-of-00002.parquet": table(4),
            "en/test.jsonl": ROWS,
            "de/a.jsonl": ROWS,
            "de/b.jsonl": ROWS,
            "tabs/train.tsv": b"question\tanswer\na\tb\n",
            "logo.png": b"\x89PNG",
        }
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def record(root: Path, name: str = NAME) -> dict[str, Any]:
    return dict(json.loads((root / f"data/raw/{name}.source.json").read_text()))


def arrived(root: Path) -> dict[str, bytes]:
    """The files in data/raw but the records."""
    raw = root / "data/raw"
    files = [path for path in raw.rglob("*") if path.is_file() and not path.name.endswith(".source.json")]
    return {path.relative_to(raw).as_posix(): path.read_bytes() for path in sorted(files)}


def refusal(root: Path, address: str = REPO, **options: str) -> QuenchError:
    """The one sentence that a request ends in, with nothing in data/raw."""
    before = arrived(root) if (root / "data/raw").exists() else {}
    with pytest.raises(QuenchError) as raised:
        main(root, address, Options(**options))
    assert "\n" not in raised.value.sentence
    assert (arrived(root) if (root / "data/raw").exists() else {}) == before
    return raised.value


def test_the_cards_default_config_and_its_training_split_come_pinned(
    hub: FakeHub, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(root, f"{REPO}@{COMMIT}", Options())
    names = [f"en/train-0000{number}-of-00002.parquet" for number in range(2)]
    assert arrived(root) == {f"{NAME}/{name}": hub.files[name] for name in names}
    facts = record(root)
    assert facts["files"] == {
        name: {"sha256": hashlib.sha256(hub.files[name]).hexdigest(), "bytes": len(hub.files[name])}
        for name in names
    }
    wanted = {"address": REPO, "revision": COMMIT, "config": "en", "split": "train", "license": "cc-by-4.0"}
    assert {key: facts[key] for key in wanted} == wanted
    assert facts["columns"] == ["messages"] and facts["left_out"] == 6 and facts["fetched"].endswith("+00:00")
    assert {name for name, _ in hub.served} == {"README.md", *names}
    assert not (root / "data/.getting").exists() or not [*(root / "data/.getting").iterdir()]
    said = capsys.readouterr().out
    assert "2 files" in said and "6 other files" in said and "cc-by-4.0" in said


@pytest.mark.parametrize("revision", [None, "main"])
def test_a_branch_or_no_commit_is_resolved_said_and_recorded(
    hub: FakeHub, root: Path, capsys: pytest.CaptureFixture[str], revision: str | None
) -> None:
    main(root, f"{REPO}@{revision}" if revision else REPO, Options())
    assert record(root)["revision"] == COMMIT
    assert COMMIT in capsys.readouterr().out.splitlines()[0]


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("options", "name", "files"),
    [
        ({"config": "de"}, f"{NAME}-de", ["de/a.jsonl", "de/b.jsonl"]),
        ({"split": "test"}, f"{NAME}-test", ["en/test.jsonl"]),
        ({"config": "tabs", "to": "mine/tabs"}, "mine/tabs", ["tabs/train.tsv"]),
    ],
)
def test_a_config_and_a_split_are_chosen(root: Path, options: Any, name: str, files: list[str]) -> None:
    main(root, REPO, Options(**options))
    assert [*arrived(root)] == [f"{name}/{file}" for file in files]
    assert [*record(root, name)["files"]] == files


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("options", "id", "there"),
    [
        ({"split": "validation"}, "Q-GET-006", "test"),
        ({"config": "fr"}, "Q-GET-004", "en, de, tabs"),
        ({"to": "../up"}, "Q-GET-002", "--to"),
        ({"to": ".hidden"}, "Q-GET-002", "--to"),
    ],
)
def test_what_does_not_exist_is_refused_with_what_does(root: Path, options: Any, id: str, there: str) -> None:
    error = refusal(root, **options)
    assert error.id == id and there in error.sentence


LAYOUTS: dict[str, tuple[dict[str, bytes | str], dict[str, str], list[str] | str]] = {
    "shards": (
        {
            "data/train-00000-of-00001.parquet": b"1",
            "data/test-00000-of-00001.parquet": b"2",
            "x.jsonl": b"3",
        },
        {},
        ["data/train-00000-of-00001.parquet"],
    ),
    "names": ({"my_train.jsonl": b"1", "my-dev.jsonl": b"2"}, {}, ["my_train.jsonl"]),
    "folders": ({"train/a.csv": b"1", "test/a.csv": b"2"}, {"split": "test"}, ["test/a.csv"]),
    "no split": ({"a.jsonl": b"1", "b/c.jsonl": b"2", "LICENSE": b"3"}, {}, ["a.jsonl", "b/c.jsonl"]),
    "every split": (
        {"train.jsonl": b"1", "test.jsonl": b"2"},
        {"split": "all"},
        ["test.jsonl", "train.jsonl"],
    ),
    "the same rows twice": (
        {"a.json": b"1", "a.parquet": b"2", "b.parquet": b"3"},
        {},
        ["a.parquet", "b.parquet"],
    ),
    "texts about the rows": ({"a.jsonl": b"1", "b.md": b"2", "c.md": b"3"}, {}, ["a.jsonl"]),
    "packed": ({"train.jsonl.zst": b"1", "logs.tar.gz": b"2"}, {}, ["train.jsonl.zst"]),
    "save_to_disk": (
        {"data-00000-of-00001.arrow": b"1", "state.json": b"{}", "dataset_info.json": b"{}"},
        {},
        ["data-00000-of-00001.arrow"],
    ),
    "no split of that name": ({"train.jsonl": b"1"}, {"split": "test"}, "Q-GET-006"),
    "a folder as config": ({"en/a.jsonl": b"1", "de/a.jsonl": b"2"}, {"config": "de"}, ["de/a.jsonl"]),
    "no such folder": ({"en/a.jsonl": b"1"}, {"config": "de"}, "Q-GET-004"),
    "the hub's own Parquet": (
        {"en/train/0000.parquet": b"1", "de/train/0000.parquet": b"2"},
        {"config": "en"},
        ["en/train/0000.parquet"],
    ),
    "its configs": ({"en/train/0000.parquet": b"1", "de/train/0000.parquet": b"2"}, {}, "Q-GET-004"),
    "several configs": (
        {"README.md": CARD.replace("  default: true\n", ""), "de/a.jsonl": b"1"},
        {},
        "Q-GET-004",
    ),
    "a script": ({f"{NAME}.py": "raise SystemExit", "a.jsonl": b"1"}, {}, "Q-GET-003"),
    "a script, and a card": (
        {f"{NAME}.py": "", "README.md": CARD, "de/a.jsonl": b"1"},
        {"config": "de"},
        ["de/a.jsonl"],
    ),
    "pictures": ({"a.png": b"1", "b.bin": b"2"}, {}, "Q-GET-005"),
    "nothing": ({".gitattributes": b"1"}, {}, "Q-GET-005"),
    "a card without end": ({"README.md": "---\nconfigs: [\n---\n", "a.jsonl": b"1"}, {}, "Q-GET-007"),
    "a card of another kind": ({"README.md": "---\nconfigs: 7\n---\n", "a.jsonl": b"1"}, {}, "Q-GET-007"),
    "an old card": (
        {"README.md": "---\nlicense: [mit, other]\nconfigs: [plain]\n---\n", "a.jsonl": b"1"},
        {},
        ["a.jsonl"],
    ),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_the_files_are_those_that_the_hub_would_show(repository: Repository, root: Path, case: str) -> None:
    files, options, expected = LAYOUTS[case]
    repository(files)
    if isinstance(expected, str):
        assert refusal(root, **options).id == expected
        return
    main(root, REPO, Options(to="it", **options))
    assert [*arrived(root)] == [f"it/{name}" for name in expected]


def test_a_broken_download_goes_on_where_it_stopped(hub: FakeHub, root: Path) -> None:
    name = "en/train-00000-of-00002.parquet"
    hub.broken[name] = 1024
    error = refusal(root)
    assert (error.id, error.exit_code) == ("Q-GET-013", 6)
    hub.broken.clear()
    hub.served.clear()
    main(root, REPO, Options())
    assert (name, 1024) in hub.served and ("README.md", 0) not in hub.served
    assert arrived(root)[f"{NAME}/{name}"] == hub.files[name]


@pytest.mark.parametrize("name", ["en/train-00000-of-00002.parquet", "README.md"])
def test_a_file_that_differs_from_the_listing_is_thrown_away(hub: FakeHub, root: Path, name: str) -> None:
    good = hub.files[name]
    hub.files[name] = good[:-1] + bytes([good[-1] ^ 1])
    assert refusal(root).id == "Q-GET-009"
    hub.files[name] = good
    main(root, REPO, Options())


@pytest.mark.parametrize(
    ("answer", "id", "code"),
    [
        ((404, "RepoNotFound"), "Q-GET-011", 3),
        ((401, "RepoNotFound"), "Q-GET-011", 3),
        ((403, "GatedRepo"), "Q-GET-010", 3),
        ((403, ""), "Q-GET-010", 3),
        ((404, "RevisionNotFound"), "Q-GET-008", 3),
        ((429, ""), "Q-GET-012", 6),
        ((500, ""), "Q-GET-013", 6),
    ],
)
def test_a_refusing_hub_is_one_sentence(hub: FakeHub, root: Path, answer: Any, id: str, code: int) -> None:
    hub.refusal = answer
    error = refusal(root)
    assert (error.id, error.exit_code) == (id, code) and REPO in error.sentence


def test_a_wrong_commit_is_named(hub: FakeHub, root: Path) -> None:
    error = refusal(root, f"{REPO}@{'f' * 40}")
    assert error.id == "Q-GET-008" and "f" * 40 in error.sentence


def test_no_network_is_one_sentence(hub: FakeHub, root: Path) -> None:
    hub.shutdown()
    hub.server_close()
    assert refusal(root).id == "Q-GET-013"


def test_the_hubs_own_variable_opens_a_gated_set_and_is_never_shown(
    hub: FakeHub, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.token = "hf_secretsecretsecret"  # noqa: S105 (no token of anybody)
    monkeypatch.setenv("HF_TOKEN", "hf_wrongwrongwrong")
    error = refusal(root)
    assert error.id == "Q-GET-010" and "HF_TOKEN" in error.sentence and "wrongwrong" not in error.sentence
    monkeypatch.setenv("HF_TOKEN", hub.token)
    main(root, REPO, Options())
    everything = capsys.readouterr().out + json.dumps(record(root))
    assert "secretsecret" not in everything and "wrongwrong" not in everything


def test_what_is_there_is_not_fetched_again_and_nothing_is_overwritten(hub: FakeHub, root: Path) -> None:
    main(root, REPO, Options())
    hub.served.clear()
    main(root, f"{REPO}@{COMMIT}", Options())
    assert hub.served == []
    assert refusal(root, config="de", to=NAME).id == "Q-GET-016"
    (root / f"data/raw/{NAME}/en/train-00000-of-00002.parquet").write_bytes(b"changed")
    assert refusal(root).id == "Q-GET-016"
    (root / "data/raw/mine").mkdir()
    assert refusal(root, to="mine").id == "Q-GET-016"


def test_data_that_is_gone_comes_again_with_the_same_record(hub: FakeHub, root: Path) -> None:
    main(root, REPO, Options())
    before = record(root)
    shutil.rmtree(root / "data/raw" / NAME)
    main(root, REPO, Options())
    assert record(root) == before


def test_two_at_once_do_not_write_into_one_file(web: str, root: Path) -> None:
    main(root, web, Options(to="first.jsonl"))
    scratch = root / command.SCRATCH
    assert [*scratch.iterdir()] == []
    request = json_hash([web.partition("?")[0], None, None, None])[:16]
    with take(scratch / f"{request}.lock"):
        assert refusal(root, web).id == "Q-GET-018"
    main(root, web, Options())


def test_a_disk_without_room_is_told_before_anything_is_fetched(
    hub: FakeHub, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "pipeline.core.publish.shutil.disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 0)
    )
    assert refusal(root).id == "Q-CORE-004"
    assert {name for name, _ in hub.served} <= {"README.md"}


@pytest.mark.parametrize(
    ("address", "id"),
    [
        ("squad", "Q-GET-001"),
        ("a/b/c", "Q-GET-001"),
        ("ftp://a/b.jsonl", "Q-GET-001"),
        ("https://example.test/page", "Q-GET-002"),
        ("https://example.test/", "Q-GET-002"),
        ("s3://bucket/.hidden.jsonl", "Q-GET-002"),
        (str(Path(__file__)), "Q-GET-001"),
    ],
)
def test_an_address_that_names_no_data_is_refused_unasked(root: Path, address: str, id: str) -> None:
    error = refusal(root, address)
    assert (error.id, error.exit_code) == (id, 2)
    assert refusal(root, "https://example.test/a.jsonl", split="train").id == "Q-GET-001"


def test_a_page_of_the_hub_is_its_data_set(hub: FakeHub, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main(root, f"https://huggingface.co/datasets/{REPO}/tree/main", Options())
    assert (record(root)["address"], record(root)["revision"]) == (REPO, COMMIT)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    main(root, f"{hub.url}/datasets/{REPO}/blob/{COMMIT}/en/test.jsonl", Options())
    assert arrived(root)["test.jsonl"] == ROWS


@pytest.fixture
def web(hub: FakeHub) -> str:
    """The address of a file, which the fake hub gives as any server does."""
    return f"{hub.url}/datasets/{REPO}/resolve/{COMMIT}/de/a.jsonl?signature=secret"


def test_a_file_comes_from_a_web_server(web: str, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(root, web, Options())
    assert arrived(root) == {"a.jsonl": ROWS}
    facts = record(root, "a.jsonl")
    assert facts["address"] == web.partition("?")[0] and facts["revision"] is None
    assert facts["files"] == {"a.jsonl": {"sha256": hashlib.sha256(ROWS).hexdigest(), "bytes": len(ROWS)}}
    said = capsys.readouterr().out
    assert "secret" not in said and f"{len(ROWS)} bytes to fetch" in said
    main(root, web, Options())
    assert "there already" in capsys.readouterr().out


@pytest.mark.parametrize("is_changed", [False, True])
def test_the_rest_of_a_file_is_fetched_if_it_is_still_the_same(
    web: str, hub: FakeHub, root: Path, monkeypatch: pytest.MonkeyPatch, is_changed: bool
) -> None:
    monkeypatch.setattr(pinned_file, "PIECE", 64)
    hub.broken["de/a.jsonl"] = 512
    assert refusal(root, web).id == "Q-GET-013"
    hub.broken.clear()
    hub.served.clear()
    if is_changed:
        hub.files["de/a.jsonl"] = ROWS[::-1]
    main(root, web, Options())
    assert arrived(root) == {"a.jsonl": hub.files["de/a.jsonl"]}
    ((_, start),) = hub.served
    assert (start == 0) is is_changed


def test_other_bytes_than_the_record_has_are_refused(web: str, hub: FakeHub, root: Path) -> None:
    main(root, web, Options())
    (root / "data/raw/a.jsonl").unlink()
    hub.files["de/a.jsonl"] = ROWS + ROWS
    assert refusal(root, web).id == "Q-GET-017"


@pytest.mark.parametrize(
    ("status", "id"),
    [(401, "Q-GET-010"), (403, "Q-GET-010"), (404, "Q-GET-011"), (429, "Q-GET-012"), (503, "Q-GET-013")],
)
def test_a_refusing_server_is_one_sentence_without_secrets(
    web: str, hub: FakeHub, root: Path, status: int, id: str
) -> None:
    hub.refusal = (status, "")
    error = refusal(root, web.replace("//", "//me:secret@"))
    assert error.id == id and "secret" not in error.sentence


def test_a_web_page_is_no_data(root: Path, hub: FakeHub, web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.type = "text/html; charset=utf-8"
    assert refusal(root, web).id == "Q-GET-014"


def test_a_file_that_arrives_packed_needs_a_name_that_says_so(root: Path, hub: FakeHub, web: str) -> None:
    hub.files["de/a.jsonl"] = gzip.compress(ROWS, mtime=0)
    hub.encoding = "gzip"
    error = refusal(root, web)
    assert error.id == "Q-GET-002" and ".gz" in error.sentence
    main(root, web, Options(to="a.jsonl.gz"))
    assert arrived(root) == {"a.jsonl.gz": gzip.compress(ROWS, mtime=0)}


def test_a_file_comes_from_a_store(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEY.items():
        monkeypatch.setenv(name, value)
    with S3() as s3:
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
        s3.make_bucket("rows")
        s3.put("rows", "logs/may.jsonl", ROWS)
        main(root, "s3://rows/logs/may.jsonl", Options(to="chats/may.jsonl"))
        assert arrived(root) == {"chats/may.jsonl": ROWS}
        assert record(root, "chats/may.jsonl")["address"] == "s3://rows/logs/may.jsonl"
        assert refusal(root, "s3://rows/logs/june.jsonl").id == "Q-GET-011"


def test_without_the_package_for_s3_its_name_is_said(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_s3fs(monkeypatch)
    error = refusal(root, "s3://rows/a.jsonl")
    assert (error.id, error.exit_code) == ("Q-GET-015", 4) and "pip install" in error.sentence


def test_records_are_no_rows_and_the_report_has_them(hub: FakeHub, tmp_path: Path) -> None:
    project = Project(tmp_path / "here", {"own.source.json": lines(chat("a", "b"))})
    main(project.root, REPO, Options())
    report = project.run()
    assert report["rows_read"] == 10 and report["files_unread"] == {}
    assert report["files"][f"{NAME}.source.json"]["rows"] == 0
    assert report["files"]["own.source.json"]["rows"] == 1  # a user's own file of such a name
    source = report["sources"][NAME]
    assert (source["address"], source["revision"], source["license"]) == (REPO, COMMIT, "cc-by-4.0")


def test_the_command_line_asks_the_hub_of_hf_endpoint(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "train.jsonl").write_bytes(ROWS)
    with fake_hub(folder, "datasets") as server:
        env = {**os.environ, "HF_ENDPOINT": server.url, "HF_HUB_OFFLINE": "0"}
        words = ["data", "get", f"{REPO}@{COMMIT}", "--root", str(root)]
        done = ended([sys.executable, "-m", "pipeline.cli", *words], env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert arrived(root) == {f"{NAME}/train.jsonl": ROWS}
    assert command.SCRATCH.startswith("data/.")
