"""Stage augment with a server that answers as a test says, and with a real llama-server."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from chat_server import Answer, chat_server, completion
from tiny import tiny_gguf
from tokenizer_folders import smollm_folder, with_config

from pipeline.chat.rows import row_id
from pipeline.config.params import Params
from pipeline.core.errors import ConfigError, DataError, ToolError
from pipeline.core.jsonl import read_rows, write_rows
from pipeline.core.places import PROJECT
from pipeline.gguf.header import read_header
from pipeline.stages.augment.stage import main
from pipeline.stages.augment.writers import addressed
from pipeline.stages.preprocess.stage import preprocess

Row = dict[str, Any]
THINGS = ("lamp", "book", "hat", "coat", "cup", "spoon", "letter", "ring")
KEY = "sk-test-1234567890"


def chat(question: str, answer: str) -> Row:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    row = {"source": "a.jsonl:1", "kind": "chat", "domain": "home", "messages": turns}
    return {"id": row_id(row), **row}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project after curation."""
    rows = [chat(f"Where is the {thing} of my sister?", f"Below the {thing} table.") for thing in THINGS]
    write_rows(tmp_path / "data/final/train.jsonl", rows[:6])
    write_rows(tmp_path / "data/final/val.jsonl", rows[6:7])
    write_rows(tmp_path / "data/final/test.jsonl", rows[7:])
    smollm_folder(tmp_path / "models/base")
    (tmp_path / "models/base.json").write_text('{"added_tokens": []}')
    return tmp_path


def params(url: str | None = None, **augment: Any) -> Params:
    given = {"kinds": ["questions", "rejected", "answers"], "model": "writer", "url": url, "rows": 6}
    return Params.model_validate(
        {"augment": given | augment, "evaluate": {"scorers": ["exact_match"], "models": ["base-F16", "F16"]}}
    )


def thing_in(request: Row) -> str:
    asked = request["messages"][-1]["content"]
    return next(thing for thing in THINGS if f"{thing} of" in asked)


def in_other_words(number: int, request: Row) -> Answer:
    return completion(f"Do you know in which place her {thing_in(request)} could be?")


def written(root: Path, kind: str, split: str = "train") -> list[Row]:
    return list(read_rows(root / f"data/augmented/{kind}-{split}.jsonl"))


def report(root: Path, kind: str) -> Row:
    return dict(json.loads((root / f"reports/augment/{kind}.json").read_text()))


def test_questions_become_rows_with_where_they_come_from(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WRITERS_KEY", KEY)
    with chat_server(in_other_words) as server:
        main(params(server.url, key_env="WRITERS_KEY"), root, "questions")
    rows = written(root, "questions")
    trained = list(read_rows(root / "data/final/train.jsonl"))
    assert len(rows) == 6
    by_id = {row["id"]: row for row in trained}
    for row in rows:
        ancestor = by_id[row["augmented"]["of"]]
        assert row["messages"][1] == ancestor["messages"][1]
        assert row["messages"][0] != ancestor["messages"][0]
        assert row["domain"] == "home"
        assert row["augmented"].keys() == {"of", "model", "url", "prompt", "temperature", "seed", "time"}
        assert row["augmented"]["seed"] in [request["seed"] for request in server.requests]
    assert report(root, "questions")["tokens"] == 60
    assert set(server.keys) == {f"Bearer {KEY}"}
    files = [path for path in root.rglob("*") if path.is_file()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
    page = (root / "reports/augment/questions.html").read_text()
    assert "Do you know in which place her lamp could be?" in page


def test_every_text_is_a_row_or_dropped_with_its_reason(root: Path) -> None:
    def flawed(number: int, request: Row) -> Answer:
        thing = thing_in(request)
        texts = {"lamp": f"Below the {thing} table.", "book": "", "hat": "My e-mail is a.b@example-mail.com."}
        return completion(texts.get(thing, f"It was sold with the {thing}."))

    with chat_server(flawed) as server:
        main(params(server.url), root, "rejected")
    found = report(root, "rejected")
    rows = written(root, "rejected")
    # the one of val watches training and is in no training row
    assert found["rows"] == {"train": len(rows), "val": 1}
    assert found["texts"] == len(server.requests) == 7
    assert found["dropped"] == {"near_copy": 1, "empty": 1}
    dropped = list(read_rows(root / "reports/augment/rejected.dropped.jsonl"))
    assert len(dropped) + len(rows) + 1 == 7
    texts = {row["rejected"][0]["content"] for row in rows}
    assert "My e-mail is [EMAIL_1]." in texts  # curation's rules
    assert {row["kind"] for row in rows} == {"preference"}
    assert written(root, "rejected", "val")[0]["augmented"]["of"] not in {
        row["augmented"]["of"] for row in rows
    }


def test_nothing_is_written_if_no_text_can_be_used(root: Path) -> None:
    with chat_server(lambda number, request: completion("")) as server, pytest.raises(DataError) as refused:
        main(params(server.url), root, "questions")
    assert refused.value.id == "Q-AUGMENT-010"
    assert not (root / "data/augmented").exists()
    with pytest.raises(DataError) as refused:
        main(params("http://127.0.0.1:1/v1"), root, "answers")
    assert refused.value.id == "Q-AUGMENT-007"


def test_prompts_without_an_answer_are_answered(root: Path) -> None:
    row = {"source": "a", "kind": "prompt", "domain": "a", "answer": ""}
    row["messages"] = [{"role": "user", "content": "What is a spoon for?"}]
    write_rows(root / "data/final/train.jsonl", [{"id": row_id(row), **row}])
    with chat_server(lambda number, request: completion("For soup.")) as server:
        main(params(server.url), root, "answers")
    assert server.requests[0]["messages"] == row["messages"]
    assert written(root, "answers")[0]["messages"][-1] == {"role": "assistant", "content": "For soup."}


def test_what_was_written_is_trained_beside_the_rows_of_curation(root: Path) -> None:
    with chat_server(in_other_words) as server:
        main(params(server.url), root, "questions")
    with_config(root / "models/base")
    made: dict[str, Any] = {"rows_folder": root / "data/final", "base": root / "models/base"}
    made |= {"max_length": 128, "packing": False}
    alone, _ = preprocess(tokens_folder=root / "alone", **made)
    both, _ = preprocess(tokens_folder=root / "data/tokens", augmented=["questions"], **made)
    assert alone["splits"]["train"]["rows"] == 6
    assert both["splits"]["train"]["rows"] == 12
    assert both["splits"]["val"]["rows"] == alone["splits"]["val"]["rows"] == 1
    manifest = json.loads((root / "data/tokens/manifest.json").read_text())
    assert manifest["rows"].keys() == {
        *("train.jsonl", "questions-train.jsonl", "val.jsonl", "questions-val.jsonl")
    }


def asked_once(url: str, **given: Any) -> dict[str, Any]:
    with addressed(params(url, **given).augment) as ask:
        return ask({"messages": [{"role": "user", "content": "?"}]})


def test_a_busy_address_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    busy = [(429, {"Retry-After": "7"}, b"{}"), (503, {}, b"busy"), (429, {"Retry-After": "soon"}, b"")]

    def answer(number: int, _: Row) -> Answer:
        return busy[number - 1] if number <= len(busy) else completion("At last.")

    with chat_server(answer) as server:
        assert asked_once(server.url)["turn"]["content"] == "At last."
    assert [seconds for seconds in waited if seconds >= 1] == [7.0, 4.0, 16.0]


@pytest.mark.parametrize(
    ("answer", "id", "tries"),
    [
        ((500, {}, b"oops"), "Q-AUGMENT-003", 5),
        ((401, {}, f"Incorrect API key {KEY}".encode()), "Q-AUGMENT-004", 1),
        ((302, {"Location": "http://127.0.0.1:1/"}, b""), "Q-AUGMENT-004", 1),
        ((200, {}, b"<html>"), "Q-AUGMENT-004", 1),
        ((200, {}, b"{}"), "Q-AUGMENT-004", 1),
        ((200, {}, b'{"choices": []}'), "Q-AUGMENT-004", 1),
        ((200, {}, b'{"choices": [{"message": {"content": [1]}}]}'), "Q-AUGMENT-004", 1),
        ((200, {}, b'{"choices": [{"message": {"content": "\\ud800"}}]}'), "Q-AUGMENT-004", 1),
        ((200, {}, b"[" * 100_000), "Q-AUGMENT-004", 1),
    ],
)
def test_an_address_that_answers_something_else_is_named(
    answer: Answer, id: str, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.stages.augment.writers.WAITS", (0.0,) * 4)
    monkeypatch.setenv("WRITERS_KEY", KEY)
    with chat_server(lambda number, request: answer) as server, pytest.raises(ToolError) as refused:
        asked_once(server.url, key_env="WRITERS_KEY")
    assert refused.value.id == id
    assert KEY not in str(refused.value)
    assert len(server.requests) == tries


def test_a_silent_address_and_one_that_is_not_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.stages.augment.writers.WAITS", (0.0,))
    monkeypatch.setattr("pipeline.stages.augment.writers.READ_SECONDS", 0.2)

    def slow(number: int, _: Row) -> Answer:
        time.sleep(1)
        return completion("Too late.")

    with chat_server(slow) as server, pytest.raises(ToolError) as refused:
        asked_once(server.url)
    assert refused.value.id == "Q-AUGMENT-003"
    with pytest.raises(ToolError) as refused:
        asked_once("http://127.0.0.1:1/v1")
    assert refused.value.id == "Q-AUGMENT-003"


def test_a_key_that_is_missing_and_a_file_that_is_none_are_refused(root: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        main(params("http://127.0.0.1:1/v1", key_env="NO_SUCH_KEY_HERE"), root, "questions")
    assert refused.value.id == "Q-AUGMENT-002"
    for name, content in (("none.gguf", None), ("bad.gguf", b"GGUF" + bytes(20))):
        if content:
            (root / name).write_bytes(content)
        with pytest.raises(ConfigError) as refused:
            main(params(model=name), root, "questions")
        assert refused.value.id == "Q-AUGMENT-001"
    with pytest.raises(ConfigError) as refused:
        main(params(kinds=["answers"]), root, "questions")
    assert refused.value.id == "Q-AUGMENT-008"


def run(root: Path) -> subprocess.Popen[bytes]:
    words = ["-m", "pipeline", "augment@questions", "--root", str(root)]
    return subprocess.Popen([sys.executable, *words], cwd=PROJECT)


def without_time(rows: list[Row]) -> list[Row]:
    return [row | {"augmented": row["augmented"] | {"time": ""}} for row in rows]


def write_settings(root: Path, settings: Params) -> None:
    (root / "params.yaml").write_text(yaml.safe_dump(settings.model_dump(mode="json")))


@pytest.mark.parametrize("killed_at", [2, 5])
def test_a_killed_run_ends_in_the_same_rows_and_asks_nothing_twice(killed_at: int, root: Path) -> None:
    processes: list[subprocess.Popen[bytes]] = []

    def answer(number: int, request: Row) -> Answer:
        if number == killed_at:
            os.kill(processes[0].pid, signal.SIGKILL)
        return in_other_words(number, request)

    with chat_server(answer) as server:
        write_settings(root, params(server.url))
        processes.append(run(root))
        assert processes[0].wait() == -signal.SIGKILL
        assert not (root / "data/augmented").exists()
        first = len(server.requests)
        assert run(root).wait() == 0
        rows = written(root, "questions")
        # only the text that was being written when the kill came
        assert len(server.requests) == 6 + 1
        assert first == killed_at
        assert run(root).wait() == 0  # all is kept, the times too
        assert written(root, "questions") == rows
        assert len(server.requests) == 6 + 1
        (root / "models/.augment/questions/journal.jsonl").unlink()
        assert run(root).wait() == 0
    assert without_time(written(root, "questions")) == without_time(rows)


@pytest.mark.slow
def test_a_gguf_writes_the_same_rows_in_every_run(root: Path) -> None:
    tokens = read_header(tiny_gguf(root / "bytes.gguf")).fields["tokenizer.ggml.tokens"]
    words = [word if len(word) > 1 or word.isascii() else f"w{n}" for n, word in enumerate(tokens)]
    loud = {"blk.0.ffn_norm.weight": np.full(32, 20, np.float32)}
    tiny_gguf(root / "tiny.gguf", tensors=loud, tokenizer__ggml__tokens=words)
    settings = params(model="tiny.gguf", kinds=["rejected"], max_new_tokens=300, temperature=1.0)
    main(settings, root, "rejected")
    rows = written(root, "rejected")
    assert rows
    assert rows[0]["augmented"]["model"] == "tiny.gguf"
    assert len(rows[0]["augmented"]["sha256"]) == 64
    journal = root / "models/.augment/rejected/journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:2]) + lines[2][:30])  # as a kill leaves it
    main(settings, root, "rejected")
    assert without_time(written(root, "rejected")) == without_time(rows)
