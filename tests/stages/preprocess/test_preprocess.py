"""preprocess: nothing cut, nothing lost, packed rows hold the same tokens, the same bytes in every run."""

import json
import shutil
from pathlib import Path
from typing import Any, get_args

import pyarrow.parquet as parquet
import pytest
import tiny
from html_page import Page

from pipeline.chat.rendering import Unrenderable
from pipeline.chat.rows import TRAINED, Kind
from pipeline.chat.tokens import IGNORED, NOT_LEARNED, encode, load_tokenizer
from pipeline.config.params import Params
from pipeline.config.sections import Train
from pipeline.core.errors import DataError
from pipeline.core.hashing import tree_hash
from pipeline.core.jsonl import read_rows, write_rows
from pipeline.stages.preprocess.stage import main, preprocess


def run(root: Path, target: Path, **changes: object) -> dict:
    settings = {"max_length": 160, "packing": True} | changes
    stats, _ = preprocess(
        rows_folder=root / "data/final", base=root / "models/base", tokens_folder=target, **settings
    )
    return stats


def test_packing_keeps_every_token(prepared: Path, tmp_path: Path) -> None:
    packed = run(prepared, tmp_path / "packed")
    plain = run(prepared, tmp_path / "plain", packing=False)
    files = {name: tmp_path / name / "train.parquet" for name in ("packed", "plain")}
    rows = {name: parquet.read_table(file).to_pylist() for name, file in files.items()}
    assert len(rows["packed"]) < len(rows["plain"]) == plain["splits"]["train"]["rows"]
    pieces = []
    for row in rows["packed"]:
        assert len(row["input_ids"]) == len(row["labels"]) == sum(row["seq_lengths"]) <= 160
        start = 0
        for length in row["seq_lengths"]:
            pieces.append((row["input_ids"][start : start + length], row["labels"][start : start + length]))
            start += length
    assert sorted(pieces) == sorted((row["input_ids"], row["labels"]) for row in rows["plain"])
    assert packed["splits"]["train"]["packing_density"] > 0.5


def test_labels_are_the_answers(prepared: Path, tmp_path: Path) -> None:
    stats = run(prepared, tmp_path / "tokens", packing=False)
    rows = parquet.read_table(tmp_path / "tokens/train.parquet").to_pylist()
    trained = sum(label != IGNORED for row in rows for label in row["labels"])
    assert trained == stats["splits"]["train"]["trained_tokens"]
    assert 0 < stats["trained_share"] < 0.5
    asked = run(prepared, tmp_path / "asked", packing=False, train=Train(train_on_prompt=True))
    assert asked["trained_share"] == 1


@pytest.mark.parametrize("packing", [True, False])
def test_rows_stay_as_given(packing: bool, prepared: Path, tmp_path: Path) -> None:
    """The order of the rows' file is the order of the tokens, packed or not."""
    run(prepared, tmp_path / "tokens", packing=packing, train=Train(order="as_given"))
    packed = parquet.read_table(tmp_path / "tokens/train.parquet")["row_ids"].to_pylist()
    taken = [row_id for row in packed for row_id in row]
    given = [row["id"] for row in read_rows(prepared / "data/final/train.jsonl") if row["id"] in taken]
    assert taken == given
    assert (len(packed) < len(taken)) == packing


def test_two_runs_give_the_same_bytes(prepared: Path, tmp_path: Path) -> None:
    run(prepared, tmp_path / "one")
    assert tree_hash(prepared / "data/tokens") == tree_hash(tmp_path / "one")


def test_rows_that_are_too_long_are_counted_and_never_cut(prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Q-PREPROCESS-001: .*too_long: \d+\): raise preprocess.max_length$"):
        run(prepared, tmp_path / "tokens", max_length=16)
    assert not (tmp_path / "tokens").exists()


REASONED = {
    "kind": "chat",
    "messages": [
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "4", "reasoning_content": "Count."},
    ],
}
NO_END = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\n{% endfor %}" + (
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "row", "id", "word"),
    [
        (NO_END, None, "Q-PREPROCESS-015", "writes nothing after an answer"),
        ("{{ raise_exception('not today') }}", None, "Q-PREPROCESS-015", "not today"),
        # a template without reasoning takes plain chats, so neither it nor length is to blame
        (None, REASONED, "Q-PREPROCESS-001", "choose a base whose chat template takes such rows"),
    ],
)
def test_where_all_rows_fall_for_the_base_the_sentence_is_about_it(
    prepared: Path, tmp_path: Path, template: str | None, row: dict[str, Any] | None, id: str, word: str
) -> None:
    base = Path(shutil.copytree(prepared / "models/base", tmp_path / "models/base"))
    if template:
        (base / "chat_template.jinja").write_text(template, encoding="utf-8")
    shutil.copytree(prepared / "data/final", tmp_path / "data/final")
    if row:
        write_rows(tmp_path / "data/final/train.jsonl", [row])
    with pytest.raises(DataError, match=word) as raised:
        run(tmp_path, tmp_path / "data/tokens")
    assert raised.value.id == id
    assert "max_length" not in raised.value.sentence
    assert "fix the rows" not in raised.value.sentence


ASKED, ANSWERED = {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}
CHAT: dict[str, Any] = {"kind": "chat", "messages": [ASKED, ANSWERED]}


def text(first: str, last: str, train: tuple[bool, bool]) -> dict[str, Any]:
    """A row of text in two segments."""
    segments = [{"text": one, "train": each} for one, each in zip((first, last), train, strict=True)]
    return {"kind": "text", "messages": [], "segments": segments}


def whole(
    root: Path, prepared: Path, rows: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> tuple[dict[str, Any], str, str]:
    """The stage on these rows: its account, what it prints, and its page as a browser shows it."""
    for split, some in {"train": rows, "val": [CHAT]}.items():
        write_rows(root / f"data/final/{split}.jsonl", some)
    (root / "models").mkdir()
    (root / "models/base").symlink_to(prepared / "models/base")
    main(Params.model_validate({"preprocess": {"packing": False}}), root)
    page = Page((root / "reports/labels.html").read_text(encoding="utf-8")).text
    return json.loads((root / "reports/labels.json").read_bytes()), capsys.readouterr().out, page


def test_what_rewards_are_worth_is_counted_and_said(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [*(CHAT | {"reward": reward} for reward in (0.0, 1.0, 1.0)), CHAT]
    stats, printed, _ = whole(tmp_path / "few", prepared, rows, capsys)
    found = stats["splits"]["train"]["rewards"]
    assert (found["sequences"], found["without"], found["weightless"]) == (3, 1, 1)
    assert sum(one["rows"] for one in found["weights"]) == 3
    lonely = [*[CHAT | {"reward": 0.0}] * 50, CHAT | {"reward": 1.0}]
    stats, more, _ = whole(tmp_path / "lonely", prepared, lonely, capsys)
    assert stats["splits"]["train"]["rewards"]["largest_weight"] > 20
    assert len(more.splitlines()) == len(printed.splitlines()) + 1  # one row stands for all
    _, none, _ = whole(tmp_path / "none", prepared, [CHAT], capsys)
    assert len(none.splitlines()) == len(printed.splitlines()) - 1


def test_text_is_trained_and_what_is_no_use_is_counted(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = [
        text("two and two", " are four", (False, True)),
        CHAT | {"kind": "feedback", "label": False},
        CHAT | {"reward": -1.0},
        text("one two three.\n\n", "", (True, False)),  # a part of a long text that is not its last one
        {"kind": "prompt", "messages": [ASKED], "answer": "4"},
        {"messages": [ASKED, ANSWERED | {"content": "<|im_end|>4"}]},
        {"messages": [ASKED, ANSWERED | {"reasoning_content": "hm"}]},
    ]
    stats, printed, page = whole(tmp_path, prepared, [CHAT, *others], capsys)
    counted = stats["splits"]["train"]
    assert counted["rejected"] == {"control_token": 1, "not_learned": 2, "template_drops": 1}
    assert counted["rows"] == 4
    assert (counted["untrained"], counted["rewards"]["sequences"]) == ({"feedback": 1, "prompt": 1}, 1)
    for words in ("1 feedback and 1 prompt", "reward -1"):
        assert words in printed and words in page
    for reason, rows in counted["rejected"].items():
        assert f"{rows} {reason}" in printed
    assert counted["rejects"]["control_token"][0]["row"] == "train.jsonl:7"  # for it has no id
    _, learned, _, part = parquet.read_table(tmp_path / "data/tokens/train.parquet").to_pylist()
    assert part["labels"] == part["input_ids"]
    assert part["input_ids"][-1] != tiny.END  # for the text goes on
    assert [label for label in learned["labels"] if label != IGNORED] == learned["input_ids"][-3:]
    assert learned["input_ids"][-1] == tiny.END  # <|im_end|>, for it is learned to its end


ADD = {"name": "add", "description": "Add.", "parameters": {"type": "object"}}
CALLING = CHAT | {"tools": [{"type": "function", "function": ADD}]}


@pytest.fixture
def toolless(prepared: Path, tmp_path: Path) -> Path:
    """A folder with a base whose template shows no tools."""
    base = Path(shutil.copytree(prepared / "models/base", tmp_path / "toolless/models/base"))
    (base / "chat_template.jinja").write_text(tiny.CHATML, encoding="utf-8")
    return tmp_path / "toolless"


def test_most_rows_with_tools_on_a_base_without_stop_the_stage(
    toolless: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [CHAT, *[CALLING] * 3, *[CHAT | {"kind": "feedback", "label": True}] * 9]
    with pytest.raises(DataError, match=r"3 of 4 rows .*tool 1.* recipes demo,") as raised:
        whole(tmp_path / "stops", toolless, rows, capsys)
    assert raised.value.id == "Q-PREPROCESS-017" and raised.value.exit_code == 3
    assert not (tmp_path / "stops/data/tokens").exists()
    allowed = run(tmp_path / "stops", tmp_path / "allowed", max_left_out=1.0)
    assert allowed["splits"]["train"]["rows"] == 1
    half = [CHAT, CHAT, CALLING, CALLING]
    assert whole(tmp_path / "half", toolless, half, capsys)[0]["splits"]["train"]["rows"] == 2


def test_where_every_row_has_tools_recipes_are_named_too(
    toolless: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DataError, match=r"Q-PREPROCESS-001: .* recipes demo,"):
        whole(tmp_path, toolless, [CALLING], capsys)


def test_each_end_of_turn_that_a_text_writes_is_trained(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A chat of two exchanges in its template's own words, as input_output has it, whatever follows."""
    chat = [("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n", False), ("b<|im_end|>", True)] * 2
    rows = [
        CHAT | {"kind": "text", "segments": [{"text": said, "train": train} for said, train in chat + after]}
        for after in ([], [("\n", False)], [("", True)], [("c", True)])
    ]
    assert whole(tmp_path, prepared, rows, capsys)[0]["splits"]["train"]["rows"] == 4
    labels = parquet.read_table(tmp_path / "data/tokens/train.parquet")["labels"].to_pylist()
    assert [row.count(tiny.END) for row in labels] == [2, 2, 2, 3]


def test_the_kinds_that_are_said_to_be_trained_are(prepared: Path) -> None:
    row = CHAT | {"segments": [{"text": "a", "train": True}]}
    rows = [row | {"kind": kind} for kind in get_args(Kind)]
    codes = {
        row["kind"]: isinstance(found, Unrenderable) and found.code
        for row, found in encode(load_tokenizer(prepared / "models/base"), rows)
    }
    assert codes == {kind: False if kind in TRAINED else NOT_LEARNED for kind in get_args(Kind)}
