"""`quench run`: settings go to Snakemake's --config, everything else as it is."""

import json
from pathlib import Path

import pytest
from make import quench


def test_settings_and_snakemakes_own_words_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda program, command: started.append(command))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").touch()
    words = ["train", "train.r=8", "-c2", "train.preference.beta=0.5", "report.html=no", "--quiet"]
    refused = quench("run", *words)
    assert refused.exit_code == 2 and "Q-CONFIG-005" in refused.stderr and not started
    done = quench("run", "--root", tmp_path, *words[:4], words[-1])
    assert done.exit_code == 0, done.output
    assert started[0][1:-1] == ["-m", "snakemake", "train", "-c2", "--quiet", "--config"]
    name, _, keys = started[0][-1].partition("=")
    assert (name, json.loads(keys)) == ("train", {"r": 8, "preference": {"beta": 0.5}})
