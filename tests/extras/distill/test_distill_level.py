"""Stage distill: a level comes closer to its 16-bit file by its scales alone, a killed run ends in the same
bytes, and parity sees every other change.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_edit import change_rows
from killed import kill_at
from subproject_stages import first_project, in_this_process, no_stage_runs, run_stages
from tiny import tiny_gguf, tiny_params, write_project

from pipeline.chat.rows import row_id
from pipeline.config.levels import ModelName
from pipeline.config.params import load_params
from pipeline.config.sections.places import LocalFile
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.jsonl import write_rows
from pipeline.extras.distill.stage import main
from pipeline.gguf.provenance import ADAPTER, DISTILL
from pipeline.gguf.tensors import Bytes, gguf_tensors
from pipeline.llamacpp.converters import Quantizing, quantize_gguf
from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.stages.parity.scales_weights import distilled_weights
from pipeline.subprojects.distill import targets
from pipeline.subprojects.distill_rows import OF_A_TURN, OF_RAW, General, curated, write_drawn
from pipeline.workflow.stages import table

Q4_0, QUERY, DOWN = "Q4_0", "blk.0.attn_q.weight", "blk.0.ffn_down.weight"
TYPES = {"ffn_down": "f16"}  # which has no scales and stays as it is
SMALL = {"max_steps": 6}
RATE = 2.0e-2  # so few steps teach nothing at the stage's own


def small_steps(patch: pytest.MonkeyPatch) -> None:
    """Stages run in this process, and learn from a few steps."""
    patch.setattr("pipeline.subprojects.distill.LEARNING_RATE", RATE)
    run_stages(patch)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    small_steps(monkeypatch)


def run_alone(root: Path) -> None:
    """The stage in a process that begins with nothing patched."""
    small_steps(pytest.MonkeyPatch())
    main(load_params(root / "params.yaml"), root, Q4_0)


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory, tools: Toolchain) -> Path:
    """A project with its 16-bit GGUF, its level and its rows. Read only."""
    root = tmp_path_factory.mktemp("distill")
    params = tiny_params(root)
    params["preprocess"] |= {"max_length": 256}
    params["train"] |= {"bnb_4bit_compute_dtype": "float32"}
    params["quantize"] |= {"levels": [Q4_0], "distill": [Q4_0], "tensor_types": TYPES}
    params["evaluate"] |= {"models": ["F16", Q4_0, f"{Q4_0}-distilled"]}
    write_project(root, params | {"distill": SMALL})
    rows = [
        {"id": f"{number}", "kind": "chat", "domain": "sums", "source": "sums:1", **json.loads(line)}
        for number, line in enumerate((root / "data/raw/chats.jsonl").read_text("utf-8").splitlines())
    ]
    final, folder = root / "data/final", root / "models/gguf"
    for path in (final, folder):
        path.mkdir(parents=True)
    for split, some in (("train", rows[:30]), ("val", rows[30:])):
        (final / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in some))
    random = np.random.default_rng(3)
    wide = {f"blk.0.attn_{name}.weight": random.normal(0, 1.0, (32, 32)).astype(np.float16) for name in "qkv"}
    fields = {"quench__adapter__sha256": "ab" * 32, "quench__base__source": "path"}
    source = tiny_gguf(folder / "tiny-F16.gguf", tensors=wide, **fields)
    quantize_gguf(Llama(tools), source, folder / f"tiny-{Q4_0}.gguf", Q4_0, Quantizing(tensor_types=TYPES))
    return root


@pytest.fixture(scope="module")
def done(ready: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with its level distilled. Read only."""
    root = tmp_path_factory.mktemp("distilled") / "project"
    shutil.copytree(ready, root)
    with pytest.MonkeyPatch.context() as patch:
        small_steps(patch)
        main(load_params(root / "params.yaml"), root, Q4_0)
    return root


def level_of(root: Path) -> Path:
    return root / f"models/gguf/tiny-{Q4_0}.gguf"


def distilled_of(root: Path) -> Path:
    return root / f"models/gguf/tiny-{Q4_0}-distilled.gguf"


def weights(root: Path) -> Any:
    name = ModelName(f"{Q4_0}-distilled")
    return distilled_weights(level_of(root), distilled_of(root), root / "reports", name)


def test_the_level_comes_closer_to_its_16_bit_file_by_its_scales_alone(done: Path) -> None:
    report = json.loads((done / f"reports/distill/{Q4_0}.json").read_text())
    assert report["steps"] == 6
    assert report["loss_last"] < report["loss_first"]
    assert report["held_out_loss"] < report["held_out_loss_before"]
    assert weights(done).verdict == "pass", weights(done)
    (old, before), (new, after) = gguf_tensors(level_of(done)), gguf_tensors(distilled_of(done))
    for name, tensor in after.items():
        same = np.array_equal(*(some.stored(0, tensor.rows) for some in (before[name], tensor)))
        assert same != (name.startswith("blk.") and tensor.type == "Q4_0"), name
    assert after[DOWN].type == "F16"
    # what the level says of its adapter stays, and what it was distilled from is added
    assert new.fields[ADAPTER] == "ab" * 32
    assert new.fields[f"{DISTILL}level.sha256"] == report["level_sha256"]
    assert new.fields.items() >= old.fields.items()
    assert not (done / "models/.distill" / Q4_0).exists()


def test_parity_sees_a_byte_a_scale_and_another_level(done: Path, tmp_path: Path) -> None:
    def with_byte(at: int, value: int) -> Any:
        def change(rows: Bytes) -> Bytes:
            rows[1, at] = value if rows[1, at] != value else value + 1
            return rows

        return change

    faults = {
        "code": (distilled_of, with_byte(7, 3), "another byte than a scale's"),
        "scale": (distilled_of, with_byte(0, 5), "names another"),
        "sign": (
            distilled_of,
            lambda rows: rows ^ np.eye(1, rows.shape[1], 1, np.uint8) * 128,
            "has the scale",
        ),
        "level": (level_of, with_byte(7, 3), "another byte"),
    }
    for name, (file, change, words) in faults.items():
        root = Path(shutil.copytree(done, tmp_path / name))
        change_rows(file(root), QUERY, change)
        found = weights(root)
        assert found.verdict == "fail" and words in found.sentence, (name, found)


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_in_the_same_bytes(ready: Path, done: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(ready, tmp_path / "project"))
    kill_at("pipeline.stages.train.loop:Trainer.micro_batch", 4, run_alone, root)
    assert list((root / "models/.distill" / Q4_0 / "models/checkpoints").glob("checkpoint-*"))
    assert not distilled_of(root).exists()
    main(load_params(root / "params.yaml"), root, Q4_0)
    assert distilled_of(root).read_bytes() == distilled_of(done).read_bytes()
    records = [json.loads((one / f"reports/distill/{Q4_0}.json").read_text()) for one in (root, done)]
    assert records[0]["held_out_loss_before"] == records[1]["held_out_loss_before"]


def test_a_level_of_another_build_is_not_refined(ready: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(ready, tmp_path / "project"))
    change_rows(level_of(root), QUERY, lambda rows: rows[::-1])
    with pytest.raises(DataError, match="Q-DISTILL-003"):
        main(load_params(root / "params.yaml"), root, Q4_0)


@pytest.mark.slow
def test_chats_of_data_distill_are_curated_and_learned_from(
    ready: Path, done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(shutil.copytree(ready, tmp_path / "project"))
    final, folder = root / "data/final", root / "data/distill"
    (root / "data/guard").mkdir()
    (root / "data/guard/names.txt").write_text("Zoltan Example\n")
    params = load_params(root / "params.yaml").model_dump(mode="json")
    # a file of that name in data/raw has a format of its own, which isn't meant for this one
    params["curate"] |= {
        "formats": {"chats.jsonl": "messages"},
        "documents": {"src/*.py": "named"},
        "names": "names.txt",
    }
    write_project(root, params)

    def chat(question: str, answer: str) -> dict[str, Any]:
        return {"conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]}

    # a held-out row of many words and one of few may be in there too
    long = "seven wolves and nine owls met at the old mill to talk about grain, weather and the price of salt"
    held_out = {"kind": "chat", "domain": "held", "source": "held:1", "messages": []}
    rows = [
        held_out | {"messages": [{"role": "user", "content": one}, {"role": "assistant", "content": other}]}
        for one, other in (("A tale?", f"Once {long}."), ("Word 7?", "Yes."))
    ]
    segments = [{"text": f"The tale: {long}!", "train": True}, {"text": "", "train": False}]
    text = held_out | {"kind": "text", "segments": segments}
    rows.append(text)
    (final / "test.jsonl").write_text("".join(f"{json.dumps(row | {'id': row_id(row)})}\n" for row in rows))
    chats = [chat(f"Word {number}?", f"Ask Zoltan Example, ann{number}@mailbox.org") for number in range(40)]
    chats += [chat("Word 7?", "Yes."), chat(" word  7?", "No!"), chat("A word?", f"They say {long}.")]
    folder.mkdir()
    (folder / "chats.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in chats))
    learned: list[str] = []

    def keeping(module: str, *words: str, what: str) -> None:
        if words[0] == "preprocess":
            project = Path(words[words.index("--root") + 1])
            learned.extend((project / "data/final/train.jsonl").read_text().splitlines())
        in_this_process(module, *words, what=what)

    with pytest.MonkeyPatch.context() as patch:
        run_stages(patch, keeping)
        main(load_params(root / "params.yaml"), root, Q4_0)
    found = json.loads((root / f"reports/distill/{Q4_0}.json").read_text())["rows"]
    general = [line for line in learned if "Word " in line]
    assert (found["train"], found["general"]) == (len(learned) - len(general), len(general))
    assert 5 < len(general) < len(learned) - 5
    assert not any(
        word in line for line in general for word in ("mailbox", "Zoltan", "Yes.", "No!", "wolves")
    )
    assert found["data_distill"]["rejected"] == {"contaminated": 1}
    assert list(found["data_distill"]["files"]) == ["chats.jsonl"]
    assert distilled_of(root).read_bytes() != distilled_of(done).read_bytes()
    # where nothing can be read the user's own folder is named
    (folder / "chats.jsonl").rename(folder / "notes.pdf")
    apart, base = tmp_path / "apart", root / "models/base"
    capsys.readouterr()
    with pytest.raises(AssertionError):
        curated(apart, base, load_params(root / "params.yaml"), root / "data")
    assert "Q-CURATE-001" in (said := capsys.readouterr().err) and str(folder.resolve()) in said
    # no folder, or one that Git keeps, is none, and no copy of what was there stays
    (folder / "notes.pdf").rename(folder / ".gitkeep")
    for place in (root, tmp_path):
        assert curated(apart, base, load_params(ready / "params.yaml"), place / "data") is None
    assert not (apart / "data").exists()
    # in a clone before `dvc pull`
    (folder / "chats.jsonl.dvc").write_text("outs: []\n")
    with pytest.raises(DataError, match="Q-DISTILL-001"):
        curated(apart, base, load_params(ready / "params.yaml"), root / "data")


def test_what_can_not_be_distilled_is_refused_before_anything_runs(
    ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_stage_runs(monkeypatch)
    root, params = Path(shutil.copytree(ready, tmp_path / "project")), load_params(ready / "params.yaml")
    with pytest.raises(ConfigError, match="Q-DISTILL-004"):
        main(params, root, "Q8_0")
    source = root / "models/gguf/tiny-F16.gguf"
    tiny_gguf(source, general__architecture="falcon")
    with pytest.raises(ConfigError, match="Q-DISTILL-002"):
        main(params, root, Q4_0)
    source.unlink()
    with pytest.raises(DataError):
        main(params, root, Q4_0)


def test_only_linears_with_scales_in_every_layer_train(ready: Path) -> None:
    assert "down_proj" not in targets(level_of(ready)) and "q_proj" in targets(level_of(ready))
    with pytest.raises(ConfigError, match="Q-DISTILL-005"):
        targets(ready / "models/gguf/tiny-F16.gguf")


def lines_of(path: Path, word: str, count: int = 100, kind: str = "chat") -> int:
    """Write rows of one length, ids from the word; the length as `write_drawn` counts it."""
    rows = [{"id": f"{word}{number:03}", "kind": kind} for number in range(count)]
    for row in rows:
        question = {"role": "user", "content": f"ÄÄÄÄÄÄÄ{row['id']}??"}
        row["messages"] = [question, {"role": "assistant", "content": "yes"}]  # type: ignore[assignment]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return 23 + 2 * OF_A_TURN


def test_rows_are_drawn_until_there_are_enough(tmp_path: Path) -> None:
    target, general = tmp_path / "drawn.jsonl", General(tmp_path / "general.jsonl", {"rows_kept": 7})
    size = lines_of(tmp_path / "train.jsonl", "a")
    lines = (tmp_path / "train.jsonl").read_text().splitlines()
    assert write_drawn(tmp_path, None, 0.5, target, 10 * size, 1) == {"train": 10}
    first = target.read_text().splitlines()
    assert len(first) == 10 and set(first) < set(lines) and first == sorted(first)
    write_drawn(tmp_path, None, 0.5, target, 10**9, 1)
    assert target.read_bytes() == (tmp_path / "train.jsonl").read_bytes()

    def drawn(share: float, lines: int) -> tuple[int, int]:
        found = write_drawn(tmp_path, general, share, target, lines * size, 1)
        assert found["data_distill"] == {"rows_kept": 7}
        return found["train"], found["general"]

    # of two files each has its share, and makes up for what the other lacks
    lines_of(general.rows, "b")
    assert drawn(0.75, 20) == (5, 15) and target.read_text().count('"b0') == 15
    assert (drawn(0.0001, 20), drawn(1.0, 20), drawn(0.5, 10**6)) == ((20, 1), (0, 20), (100, 100))
    lines_of(general.rows, "b", 2)
    assert drawn(0.75, 20) == (18, 2)
    segments = {"kind": "text", "messages": [], "segments": [{"text": "x" * (2 * size), "train": True}]}
    general.rows.write_text("".join(f"{json.dumps(segments | {'id': one})}\n" for one in "pqrs"))
    assert drawn(0.4, 20) == (12, 4)
    lines_of(general.rows, "b")
    lines_of(tmp_path / "train.jsonl", "a", 3)
    assert drawn(0.5, 20) == (3, 17)
    # what no training uses, and what is held out, is not drawn
    lines_of(tmp_path / "test.jsonl", "b", 60)
    lines_of(tmp_path / "val.jsonl", "b", 80)
    assert drawn(0.9, 100) == (3, 20)
    lines_of(general.rows, "b", kind="preference")
    with pytest.raises(DataError, match="Q-DISTILL-006"):
        drawn(0.9, 100)
    # parts of long texts end in an empty segment, which is nothing that they share
    end = {"text": "", "train": False}
    for path, word in ((tmp_path / "test.jsonl", "held"), (general.rows, "other")):
        row = {"id": word, "kind": "text", "messages": [], "segments": [{"text": word, "train": True}, end]}
        path.write_text(f"{json.dumps(row)}\n")
    assert drawn(0.5, 100) == (3, 1)


def test_a_project_of_preferences_is_distilled_on_its_chosen_answers(tmp_path: Path) -> None:
    lines_of(tmp_path / "train.jsonl", "a", 3, kind="preference")
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    for row in rows:
        row |= {"chosen": row["messages"][1:], "rejected": row["messages"][:1]}
        row["messages"] = row["messages"][:1]
    final, target = tmp_path / "final", tmp_path / "project/data/final/train.jsonl"
    write_rows(final / "train.jsonl", rows)
    assert write_drawn(final, None, 0.5, target, 10**9, 1) == {"train": 3}
    written = [json.loads(line) for line in target.read_text().splitlines()]
    assert [(row["kind"], len(row["messages"])) for row in written] == [("chat", 2)] * 3
    bad = [row | {"kind": "feedback", "label": False} for row in rows]
    write_rows(final / "train.jsonl", bad)
    with pytest.raises(DataError, match="Q-DISTILL-007"):
        write_drawn(final, None, 0.5, target, 10**9, 1)


def test_the_graph_leaves_out_what_is_said_of_data_raw_alone() -> None:
    for stage in ("distill", "compare_train"):
        (param,) = (one for one in table().stages[stage].params if one.startswith("curate"))
        assert param == " -".join(("curate", *OF_RAW))


def test_the_sub_project_trains_as_section_distill_says(
    ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(shutil.copytree(ready, tmp_path / "project"))
    params = load_params(root / "params.yaml")
    # the project's base is found by its hash, and the file is a link to DVC's copy, which has no ending
    places = [LocalFile(path="other.gguf")]
    base = params.base.model_copy(update={"model": "a.gguf", "sha256": "0" * 64, "places": places})
    source = root / "models/gguf/tiny-F16.gguf"
    source.rename(tmp_path / "0f16")
    source.symlink_to(tmp_path / "0f16")
    changed = params.model_copy(update={"base": base})
    project = first_project(monkeypatch, lambda: main(changed, root, Q4_0))
    made = load_params(project / "params.yaml")
    assert (made.graph, made.train.method, made.train.tuner) == ("tuned", "distill", "scales")
    assert (made.train.max_steps, made.train.learning_rate) == (6, RATE)
    assert made.train.seed == params.train.seed
    assert (made.base.source, made.base.sha256, made.base.places) == ("gguf", None, [])
    assert made.base.level == Q4_0 and made.quantize.tensor_types == TYPES and not made.quantize.distill
