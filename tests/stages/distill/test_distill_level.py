"""Stage distill: a level comes closer to its 16-bit file by its scales alone, a killed run ends in the same
bytes, and parity sees every other change.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_edit import change_rows
from tiny import tiny_gguf, tiny_params, write_project

from pipeline.__main__ import main as run_here
from pipeline.config.params import Params, load_params
from pipeline.core.errors import ConfigError, DataError
from pipeline.gguf.provenance import ADAPTER, DISTILL
from pipeline.gguf.tensors import Bytes, gguf_tensors
from pipeline.llamacpp.converters import quantize_gguf
from pipeline.llamacpp.tools import Toolchain
from pipeline.stages.distill.stage import main
from pipeline.stages.parity.scales_weights import distilled_weights
from pipeline.subprojects import distill, distill_rows, training
from pipeline.subprojects.distill import targets
from pipeline.subprojects.distill_rows import curated, draw_rows

Q4_0, QUERY, DOWN = "Q4_0", "blk.0.attn_q.weight", "blk.0.ffn_down.weight"
TYPES = {"ffn_down": "f16"}  # which has no scales and stays as it is
SMALL = {"max_steps": 6, "learning_rate": 2.0e-2}


def in_this_process(root: Path, *words: str) -> None:
    """`run_stage` without a process of its own, which would import torch again."""
    assert run_here([*words, "--root", str(root), "--params", str(root / "params.yaml")]) == 0


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.stages.train.stage.use_all_cores", lambda: torch.set_num_threads(1))
    for module in (distill, distill_rows, training):
        monkeypatch.setattr(module, "run_stage", in_this_process)


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory, tools: Toolchain) -> Path:
    """A project with its 16-bit GGUF, its level and its rows. Read only."""
    root = tmp_path_factory.mktemp("distill")
    params = tiny_params(root)
    params["curate"] |= {"max_tokens": 250}
    params["preprocess"] |= {"max_length": 256}
    params["train"] |= {"bnb_4bit_compute_dtype": "float32"}
    params["quantize"] |= {"levels": [Q4_0], "distill": [Q4_0], "tensor_types": TYPES}
    params["merge"] |= {"levels": [Q4_0]}
    params["evaluate"] |= {"models": ["F16", Q4_0, f"{Q4_0}-distilled"], "ctx_size": 256}
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
    quantize_gguf(tools, source, folder / f"tiny-{Q4_0}.gguf", Q4_0, 1, tensor_types=TYPES)
    return root


@pytest.fixture(scope="module")
def done(ready: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with its level distilled. Read only."""
    root = tmp_path_factory.mktemp("distilled") / "project"
    shutil.copytree(ready, root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.stages.train.stage.use_all_cores", lambda: torch.set_num_threads(1))
        for module in (distill, distill_rows, training):
            patch.setattr(module, "run_stage", in_this_process)
        main(load_params(root / "params.yaml"), root, Q4_0)
    return root


def level_of(root: Path) -> Path:
    return root / f"models/gguf/tiny-{Q4_0}.gguf"


def distilled_of(root: Path) -> Path:
    return root / f"models/gguf/tiny-{Q4_0}-distilled.gguf"


def weights(root: Path) -> Any:
    record = root / f"reports/distill/{Q4_0}.json"
    return distilled_weights(level_of(root), distilled_of(root), record, f"{Q4_0}-distilled")


def test_the_level_comes_closer_to_its_16_bit_file_by_its_scales_alone(done: Path) -> None:
    report = json.loads((done / f"reports/distill/{Q4_0}.json").read_text())
    assert report["steps"] == 6
    assert report["loss_last"] < report["loss_first"]
    assert report["held_out_loss"] < report["held_out_loss_before"]
    (old, before), (new, after) = gguf_tensors(level_of(done)), gguf_tensors(distilled_of(done))
    for name, tensor in after.items():
        one, other = (some.stored(0, tensor.rows) for some in (before[name], tensor))
        same = np.array_equal(one, other)
        assert same != (name.startswith("blk.") and tensor.type == "Q4_0"), name
        if not same:
            assert np.array_equal(one.reshape(-1, 18)[:, 2:], other.reshape(-1, 18)[:, 2:])
    assert after[DOWN].type == "F16"
    # what the level says of its adapter stays, and what it was distilled from is added
    assert new.fields[ADAPTER] == "ab" * 32
    assert new.fields[f"{DISTILL}level.sha256"] == report["level_sha256"]
    assert new.fields.items() >= old.fields.items()
    assert not (done / "models/.distill" / Q4_0).exists()


def test_parity_passes_a_sound_file_and_sees_a_byte_a_scale_and_another_level(
    done: Path, tmp_path: Path
) -> None:
    assert weights(done).verdict == "pass", weights(done)

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


def test_a_killed_run_goes_on_and_ends_in_the_same_bytes(
    ready: Path, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.stages.train.trainer import QuenchTrainer

    root = Path(shutil.copytree(ready, tmp_path / "project"))
    real, steps = QuenchTrainer.training_step, iter(range(99))

    def dies(self: Any, *arguments: Any, **more: Any) -> Any:
        if next(steps) == 3:
            raise KeyboardInterrupt
        return real(self, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(QuenchTrainer, "training_step", dies)
        with pytest.raises((KeyboardInterrupt, AssertionError)):
            main(load_params(root / "params.yaml"), root, Q4_0)
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


def test_chats_of_data_distill_are_curated_and_learned_from(
    ready: Path, done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(shutil.copytree(ready, tmp_path / "project"))
    # the same name in data/raw has a format of its own, which isn't meant for this file
    params = load_params(root / "params.yaml").model_dump(mode="json")
    params["curate"] |= {"formats": {"chats.jsonl": "messages"}}
    params["distill"]["general_share"] = 0.5
    write_project(root, params)
    folder = root / "data/distill"
    folder.mkdir()
    chats = [
        {
            "conversations": [
                {"from": "human", "value": f"Word {n}?"},
                {"from": "gpt", "value": f"ann{n}@mailbox.org"},
            ]
        }
        for n in range(40)
    ]
    (folder / "chats.jsonl").write_text("".join(f"{json.dumps(chat)}\n" for chat in chats))
    kept: list[str] = []

    def keeping(project: Path, *words: str) -> None:
        if words == ("preprocess",):
            kept.extend((project / "data/final/train.jsonl").read_text().splitlines())
        in_this_process(project, *words)

    with pytest.MonkeyPatch.context() as patch:
        for module in (distill, distill_rows, training):
            patch.setattr(module, "run_stage", keeping)
        main(load_params(root / "params.yaml"), root, Q4_0)
    report = json.loads((root / f"reports/distill/{Q4_0}.json").read_text())
    general = [line for line in kept if "Word " in line]
    assert report["rows"] == {"train": len(kept) - len(general), "general": len(general)}
    assert 5 < len(general) < len(kept) - 5
    assert not any("@mailbox" in line for line in general)  # what section curate redacts
    assert distilled_of(root).read_bytes() != distilled_of(done).read_bytes()
    # a share of 0 uses none of them, and says so
    params["distill"]["general_share"] = 0.0
    write_project(root, params)
    capsys.readouterr()
    assert curated(tmp_path, load_params(root / "params.yaml"), root / "data") is None
    assert "general_share is 0" in capsys.readouterr().out


def test_what_can_not_be_distilled_is_refused_before_anything_runs(
    ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distill, "run_stage", lambda *_: pytest.fail("a stage was run"))
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


def test_rows_are_drawn_until_there_are_enough(tmp_path: Path) -> None:
    lines = [f'{{"number": {number:04}}}\n' for number in range(100)]
    source, target = tmp_path / "train.jsonl", tmp_path / "drawn.jsonl"
    source.write_text("".join(lines))
    draw_rows(source, None, 0.5, target, 10 * len(lines[0]), 1)
    first = target.read_text().splitlines(keepends=True)
    assert len(first) == 10 and set(first) < set(lines) and first == sorted(first)
    draw_rows(source, None, 0.5, target, 10**9, 1)
    assert target.read_text() == source.read_text()
    # of two files each has its share, and one that is short is made up for
    general, of_line = tmp_path / "general.jsonl", len(lines[0])
    general.write_text("".join(line.replace("number", "gender") for line in lines))
    assert draw_rows(source, general, 0.75, target, 20 * of_line, 1) == {"train": 5, "general": 15}
    assert target.read_text().count("gender") == 15
    general.write_text(lines[0])
    assert draw_rows(source, general, 0.75, target, 20 * of_line, 1) == {"train": 19, "general": 1}


def test_the_sub_project_trains_as_section_distill_says(ready: Path) -> None:
    params = load_params(ready / "params.yaml")
    changes = distill.settings(params, Path("/x/F16.gguf"), Q4_0, 7)
    made = Params.model_validate(
        params.model_dump(mode="json")
        | {section: params.model_dump(mode="json")[section] | keys for section, keys in changes.items()}
    )
    assert (made.graph, made.train.method, made.train.tuner) == ("tuned", "distill", "scales")
    assert (made.train.max_steps, made.train.learning_rate, made.train.seed) == (6, 2.0e-2, 7)
    assert made.base.level == Q4_0 and made.quantize.tensor_types == TYPES and not made.quantize.distill
