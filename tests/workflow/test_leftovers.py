"""leftovers: what compare made for seeds that nobody asks for goes if DVC's cache has it, else it stays."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.config.params import Params, load_params
from pipeline.core.locks import lock_file, take
from pipeline.core.places import PROJECT
from pipeline.workflow.state import cleanup
from pipeline.workflow.state.cleanup import remove_obsolete

MADE = {
    "models/compare/nf4-1/adapter/adapter_model.safetensors": "first adapter",
    "models/compare/nf4-1/train.json": "{}",
    "models/compare/nf4-2/train.json": '{"seed": 2}',
    "models/compare/lora_level-Q4_K_M-1/train.json": '{"level": "Q4_K_M"}',
    "reports/compare/merged_16-1.json": '{"seed": 1}',
    "reports/compare/merged_16-2.json": '{"seed": 2, "no": 1}',
}
RESULTS = {"nf4-1", "nf4-2", "lora_level-Q4_K_M-1", "merged_16-1.json", "merged_16-2.json"}


def asked(*seeds: int, levels: tuple[str, ...] = ("Q4_K_M",)) -> Params:
    return Params.model_validate({"compare": {"seeds": list(seeds), "levels": list(levels)}})


def results(root: Path) -> set[str]:
    return {path.name for folder in ("models", "reports") for path in (root / folder / "compare").glob("*")}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Results of two seeds, of which DVC's cache has those that a test adds."""
    for name, text in MADE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    dvc(tmp_path, "init", "--no-scm", "--quiet")
    return tmp_path


def dvc(root: Path, *words: str) -> None:
    subprocess.run([sys.executable, "-m", "dvc", *words], cwd=root, check=True)


def test_results_that_nobody_asks_for_go_if_dvcs_cache_has_them(project: Path) -> None:
    kept = ("models/compare/nf4-1", "models/compare/nf4-2", "reports/compare/merged_16-1.json")
    dvc(project, "add", "--quiet", *kept)
    for file in project.rglob("*-[12]*.dvc"):
        file.unlink()
    (project / "models/compare/nf4-1/.snakemake_timestamp").touch()  # Snakemake's mark, which DVC leaves out
    remove_obsolete(project, asked(1, 2))
    assert results(project) == RESULTS
    remove_obsolete(project, asked(2))
    # lora_level-Q4_K_M-1 is in no cache
    assert results(project) == {"nf4-2", "lora_level-Q4_K_M-1", "merged_16-2.json"}
    (project / "models/compare/nf4-2/train.json").unlink()
    (project / "models/compare/nf4-2/train.json").write_text("other bytes than were recorded")
    remove_obsolete(project, asked())
    assert results(project) == {"nf4-2", "lora_level-Q4_K_M-1", "merged_16-2.json"}


def test_the_output_of_a_stage_that_nobody_asks_for_goes_too(project: Path) -> None:
    matrix = project / "models/imatrix"
    matrix.mkdir()
    (matrix / "imatrix.json").write_text("{}")
    dvc(project, "add", "--quiet", "models/imatrix")
    levels = {"quantize": {"levels": ["IQ2_M-imatrix"]}, "evaluate": {"models": ["F16"]}}
    remove_obsolete(project, Params.model_validate(levels))
    assert matrix.exists()
    remove_obsolete(project, asked(1, 2))
    assert not matrix.exists()


def test_without_dvc_no_result_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "models/compare/nf4-1").mkdir(parents=True)
    remove_obsolete(tmp_path, asked())
    assert results(tmp_path) == {"nf4-1"}


def test_an_object_of_the_cache_that_is_damaged_is_no_copy(project: Path) -> None:
    dvc(project, "config", "cache.type", "copy")
    dvc(project, "add", "--quiet", "models/compare/nf4-1")
    for stored in (project / ".dvc/cache/files/md5").glob("*/*[!r]"):
        stored.chmod(0o644)
        stored.write_text("rotten")
    remove_obsolete(project, asked())
    assert "nf4-1" in results(project)


def test_scratch_goes_unless_somebody_may_still_need_it(tmp_path: Path) -> None:
    for name in ("nf4-1", "nf4-4", "merged_nf4-Q4_K_M-1"):
        (tmp_path / "models/.compare" / name / "models").mkdir(parents=True)

    def scratch() -> set[str]:
        remove_obsolete(tmp_path, asked(1))
        return {path.name for path in (tmp_path / "models/.compare").iterdir()}

    with take(lock_file("compare_nf4@3", tmp_path)):  # a job that was started by hand
        assert scratch() == {"nf4-1", "nf4-4", "merged_nf4-Q4_K_M-1"}
    with take(lock_file("train", tmp_path / "models/.compare/nf4-4")):  # a killed job's, which saves its work
        assert scratch() == {"nf4-4"}
    assert scratch() == set()


def test_a_killed_distillation_stays_as_long_as_its_level_is_asked_for(tmp_path: Path) -> None:
    for level in ("Q4_0", "Q5_K_M"):
        (tmp_path / "models/.distill" / level / "models/checkpoints").mkdir(parents=True)
    params = load_params(PROJECT / "recipes/demo-level-distill.yaml")
    remove_obsolete(tmp_path, params)
    assert [path.name for path in (tmp_path / "models/.distill").iterdir()] == ["Q4_0"]


def test_a_job_at_work_keeps_the_results_that_it_reads(project: Path) -> None:
    dvc(project, "add", "--quiet", "models/compare/nf4-1")
    with take(lock_file("compare_measure@merged_nf4-Q4_K_M-1", project)):
        remove_obsolete(project, asked())
    assert "nf4-1" in results(project)


def test_what_can_not_be_removed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models/.compare/nf4-1").mkdir(parents=True)

    def busy(path: Path) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(cleanup, "remove", busy)
    remove_obsolete(tmp_path, asked())
    assert "models/.compare/nf4-1" in capsys.readouterr().err
