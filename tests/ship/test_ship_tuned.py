"""`quench ship tuned` and `quench ship --check` of what it made: one GGUF leaves, and its records fit."""

from pathlib import Path

import pytest
import tiny
import tuned_inputs
from shipping import change, trained_again

from pipeline.commands import ship as command
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.hashing import file_hash
from pipeline.gguf.base_files import SCALES_FILE
from pipeline.gguf.provenance import BASE_FILE, provenance
from pipeline.ship.bundle import CARD, SCRIPT
from pipeline.ship.card import claimed
from pipeline.ship.verification import bundle_faults

FILE = tuned_inputs.FILE


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tuned_inputs.write_project(tmp_path / "project")


def ship(root: Path) -> int:
    return command.main(tuned_inputs.params(), root, "Tuned", None, None)


def test_the_bundle_holds_one_file_and_verifies(project: Path) -> None:
    assert ship(project) == 0
    bundle = project / "models/bundle/demo-tuned"
    assert bundle_faults(bundle) == []
    assert [path.name for path in bundle.glob("*.gguf")] == [FILE]
    assert file_hash(bundle / FILE) == file_hash(project / "models/gguf" / FILE)
    modelfile = (bundle / "Modelfile").read_text()
    assert "FROM ./demo-tuned.gguf" in modelfile and "ADAPTER" not in modelfile
    assert FILE in (bundle / SCRIPT).read_text() and "--lora" not in (bundle / SCRIPT).read_text()
    card = (bundle / CARD).read_text(encoding="utf-8")
    assert claimed(card) == provenance(bundle / FILE)
    assert claimed(card)[BASE_FILE] == file_hash(project / "models/base/model.gguf")
    assert "llama-server --model demo-tuned.gguf --jinja" in card
    assert "The tuned file in llama.cpp is 0.0023 nats" in card
    assert "LoRA" not in card and "None" not in card


def test_what_the_base_says_of_itself_is_no_fault_of_the_tuned_file(tmp_path: Path) -> None:
    """A base may be a file that Quench made of another one."""
    assert ship(tuned_inputs.write_project(tmp_path, quench__merge__sha256="5e" * 32)) == 0


def test_a_file_of_other_scales_or_another_base_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "models/adapter" / SCALES_FILE).write_bytes(b"others")
    trained_again(project)
    assert ship(project) == 5
    assert "quench.adapter.sha256" in capsys.readouterr().err
    tiny.tiny_gguf(project / "models/base/model.gguf", general__name="another")
    assert ship(project) == 5
    found = capsys.readouterr().err
    assert "demo-tuned.gguf was made for another file than model.gguf" in found
    assert "--force tuned" in found


def test_a_report_of_another_file_is_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(project / "reports/eval/tuned.json", sha256="0a" * 32)
    change(project / "reports/parity.json", files={})
    assert ship(project) == 5
    found = capsys.readouterr().err
    assert "eval/tuned.json is about another file than demo-tuned.gguf" in found
    assert "parity.json is about another file than demo-tuned.gguf" in found


def test_nothing_else_can_be_shipped_and_scales_that_are_gone_are_named(project: Path) -> None:
    for name in ("adapter", "base", "Q4_0"):
        with pytest.raises(ConfigError, match=r"Q-SHIP-011: .*there is tuned"):
            command.main(tuned_inputs.params(), project, name, None, None)
    (project / "models/adapter" / SCALES_FILE).unlink()
    with pytest.raises(DataError, match=rf"Q-SHIP-004: .*{SCALES_FILE}"):
        ship(project)


def test_without_the_base_here_its_record_says_whether_the_file_is_of_it(tmp_path: Path) -> None:
    root = tuned_inputs.write_project(tmp_path)
    (root / "models/base/model.gguf").unlink()
    params = tuned_inputs.params(("tuned",))
    judged = command.prepare(params, root, "tuned", root / "models/gguf" / FILE)[1]
    assert not [reason for reason in judged if "model.gguf" in reason]
    change(root / "models/base.json", files={"model.gguf": "0b" * 32})
    judged = command.prepare(params, root, "tuned", root / "models/gguf" / FILE)[1]
    assert "demo-tuned.gguf was made for another file than model.gguf" in " ".join(judged)
