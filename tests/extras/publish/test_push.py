"""`quench ship LEVEL --push`: what a repository of the hub holds afterwards, and what a break leaves."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import shipping
import yaml
from fake_hub import REPO, talked_to
from make import ended, ran
from report_inputs import change
from shipping import CARD, SUMS
from upload_hub import UploadHub, without_xet

from pipeline.commands import ship as command
from pipeline.commands.project import Project
from pipeline.commands.ship import Destination
from pipeline.core.errors import ConfigError, DataError, MachineError
from pipeline.core.hashing import file_hash
from pipeline.core.places import PROJECT
from pipeline.extras.publish.hub_card import BEGIN, END
from pipeline.ship.verification import bundle_faults

TOKEN = "hf_plantedPlantedPlantedPlanted1234"  # noqa: S105 (planted, to be looked for)
Q4, Q5 = "demo-Q4_K_M.gguf", "demo-Q5_K_M.gguf"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    without_xet(monkeypatch)
    return shipping.write_project(tmp_path / "project", source="hub", model="Qwen/Q", license="apache-2.0")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UploadHub]:
    server = UploadHub(tmp_path / "nothing")
    server.token = TOKEN
    with talked_to(server, monkeypatch):
        yield server


def push(root: Path, level: str = "Q4_K_M", *, public: bool = False, repository: str = REPO) -> int:
    destination = Destination(repository, public=public)
    return command.main(Project(shipping.params(), root), level, None, None, destination)


def download(hub: UploadHub, folder: Path) -> Path:
    """Write the repository's files as somebody who downloads them has them."""
    for name, data in hub.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def metadata(hub: UploadHub) -> dict[str, Any]:
    _, front, _ = hub.files[CARD].decode().split("---\n", 2)
    return dict(yaml.safe_load(front))


def test_a_push_makes_a_private_repository_with_card_gguf_and_checksums(
    project: Path, hub: UploadHub, tmp_path: Path
) -> None:
    assert push(project) == 0
    assert hub.private
    assert hub.messages == ["Add Q4_K_M, made with Quench"]
    bundle = project / "models/bundle/demo-Q4_K_M"
    assert hub.files[Q4] == (bundle / Q4).read_bytes()
    found = metadata(hub)
    assert (found["license"], found["base_model"]) == ("apache-2.0", "Qwen/Q")
    assert (found["base_model_relation"], found["pipeline_tag"]) == ("quantized", "text-generation")
    assert "gguf" in found["tags"]
    there = download(hub, tmp_path / "there")
    ran(["sha256sum", "--check", "--strict", SUMS], cwd=there)
    # What the card tells a reader to do makes the very bundle.
    (there / Q4).rename(there / "Q4_K_M" / Q4)
    assert bundle_faults(there / "Q4_K_M") == []


def test_a_second_level_is_added_and_the_card_lists_both(
    project: Path, hub: UploadHub, tmp_path: Path
) -> None:
    assert push(project) == 0 and push(project, "Q5_K_M") == 0
    assert {Q4, Q5, "Q4_K_M/README.md", "Q5_K_M/README.md"} <= hub.files.keys()
    card = hub.files[CARD].decode()
    assert card.count(f"[{Q4}]({Q4})") == card.count(f"[{Q5}]({Q5})") == 1
    assert card.count(BEGIN) == card.count(END) == 1
    assert "of another training" not in card
    ran(["sha256sum", "--check", "--strict", SUMS], cwd=download(hub, tmp_path / "there"))


def test_the_same_push_again_sends_nothing(
    project: Path, hub: UploadHub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push(project) == 0
    before = (hub.commit, list(hub.uploads))
    assert push(project) == 0
    assert (hub.commit, hub.uploads) == before
    assert "nothing differed" in capsys.readouterr().out


def test_what_others_wrote_into_the_repository_stays(project: Path, hub: UploadHub) -> None:
    own = b"---\nlicense: mit\nwidget: [1]\ntags: [mine]\n---\n\n# My model\n\nMy words.\n"
    hub.exists = hub.private = True
    hub.step({CARD: own, "notes/evidence.txt": b"mine", "picture.png": b"png"})
    assert push(project) == 0 and push(project, "Q5_K_M") == 0
    assert hub.files["notes/evidence.txt"] == b"mine" and hub.files["picture.png"] == b"png"
    card = hub.files[CARD].decode()
    assert "# My model\n\nMy words." in card and card.count(BEGIN) == 1 and Q4 in card
    found = metadata(hub)
    assert found["license"] == "apache-2.0"  # of the base, which is known
    assert found["widget"] == [1] and found["tags"][:2] == ["mine", "gguf"]


def test_levels_of_two_trainings_are_told_apart(project: Path, hub: UploadHub) -> None:
    assert push(project) == 0
    other = hub.files["Q4_K_M/README.md"].decode()
    line = next(line for line in other.splitlines() if "`quench.adapter.sha256`" in line)
    hub.step(hub.files | {"Q4_K_M/README.md": other.replace(line, line[:-7] + '0000"` |').encode()})
    assert push(project, "Q5_K_M") == 0
    lines = hub.files[CARD].decode().splitlines()
    assert ["of another training" in line for line in lines if line.startswith("| [demo-")] == [True, False]


def test_a_folder_that_is_no_bundle_is_named_and_left(
    project: Path, hub: UploadHub, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.exists = hub.private = True
    broken = {f"Q8_0/{name}": b"{}" for name in (CARD, SUMS, shipping.EVALUATION)}
    hub.step(broken)
    assert push(project) == 0
    assert "Q8_0/ on the hub is no bundle's" in capsys.readouterr().out
    assert broken.items() <= hub.files.items() and "Q8_0" not in hub.files[CARD].decode()


def test_an_older_signature_does_not_stay_beside_newer_files(project: Path, hub: UploadHub) -> None:
    hub.exists = hub.private = True
    hub.step({"Q4_K_M/model.sig": b"old"})
    assert push(project) == 0
    assert "Q4_K_M/model.sig" not in hub.files


def test_a_broken_line_says_so_in_a_sentence_and_the_same_command_goes_on(
    project: Path, hub: UploadHub
) -> None:
    assert push(project) == 0
    before = dict(hub.files)
    hub.cut = 100
    with pytest.raises(
        MachineError, match=r"Q-SHIP-017: .* broke off .* run the same command again"
    ) as broken:
        push(project, "Q5_K_M")
    assert hub.files == before
    assert "signed" not in str(broken.value) and broken.value.__cause__ is None  # no presigned address
    hub.cut = None
    assert push(project, "Q5_K_M") == 0
    assert {Q4, Q5} <= hub.files.keys()


def test_a_file_that_arrived_before_the_break_is_not_sent_again(project: Path, hub: UploadHub) -> None:
    hub.refuses = {"/commit/": 503}
    with pytest.raises(MachineError, match=r"Q-SHIP-017: .*status 503"):
        push(project)
    assert len(hub.uploads) == 1 and not hub.files
    hub.refuses = {}
    assert push(project) == 0
    assert len(hub.uploads) == 1


def test_without_a_network_nothing_is_lost(
    project: Path, hub: UploadHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(MachineError, match=r"Q-SHIP-017: .*ConnectError"):
        push(project)
    assert bundle_faults(project / "models/bundle/demo-Q4_K_M") == []


def test_a_hub_that_stores_other_bytes_is_noticed(project: Path, hub: UploadHub) -> None:
    hub.damaged = True
    with pytest.raises(MachineError, match="Q-SHIP-018: "):
        push(project)


def test_a_commit_of_somebody_else_in_between_is_not_overwritten(project: Path, hub: UploadHub) -> None:
    hub.moves = True
    with pytest.raises(MachineError, match=r"Q-SHIP-017: .*somebody else"):
        push(project)
    assert hub.files == {}


@pytest.mark.parametrize("status", [401, 403])
def test_without_the_right_to_write_one_is_told_how_to_log_in(
    project: Path, hub: UploadHub, status: int
) -> None:
    hub.refuses = {"/api/repos/create": status}
    with pytest.raises(ConfigError, match=r"Q-SHIP-013: .*hf auth login"):
        push(project)


def test_nobody_logged_in_is_noticed_before_anything_is_made(
    project: Path, hub: UploadHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="Q-SHIP-013: "):
        push(project)
    assert not (project / "models/bundle").exists() and not hub.requests


def test_a_forbidden_network_is_noticed_before_anything_is_made(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(MachineError, match=r"Q-SHIP-017: HF_HUB_OFFLINE"):
        push(project)
    assert not (project / "models/bundle").exists()


@pytest.mark.parametrize("name", ["model", "a/b/c", "owner/", "/name", "owner/na me", "../x", "owner/--x"])
def test_what_is_no_repository_is_refused_before_anything_is_made(project: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="Q-SHIP-014: "):
        push(project, repository=name)
    assert not (project / "models/bundle").exists()


def test_a_public_repository_wants_to_be_called_so(project: Path, hub: UploadHub) -> None:
    hub.exists = True
    hub.step({CARD: b"mine"})
    with pytest.raises(ConfigError, match=r"Q-SHIP-015: .*--public"):
        push(project)
    assert hub.files == {CARD: b"mine"} and not hub.uploads
    assert push(project, public=True) == 0 and Q4 in hub.files


def test_public_makes_a_public_repository_and_changes_no_private_one(
    project: Path, hub: UploadHub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push(project, public=True) == 0
    assert not hub.private
    hub.private = True
    assert push(project, "Q5_K_M", public=True) == 0
    assert hub.private and "stays so" in capsys.readouterr().out


def test_without_a_license_a_private_push_warns_and_a_public_one_is_refused(
    project: Path, hub: UploadHub, capsys: pytest.CaptureFixture[str]
) -> None:
    change(project / "models/base.json", license=None)
    assert push(project) == 0
    assert "names no license" in capsys.readouterr().out and metadata(hub)["license"] == "unknown"
    hub.private = False
    with pytest.raises(DataError, match="Q-SHIP-016: "):
        push(project, "Q5_K_M", public=True)
    assert Q5 not in hub.files
    written = hub.files[CARD].replace(b"license: unknown", b"license: mit")
    hub.step(hub.files | {CARD: written})  # what the sentence asks for
    assert push(project, "Q5_K_M", public=True) == 0
    assert metadata(hub)["license"] == "mit" and Q5 in hub.files


def test_metadata_that_the_hub_refuses_is_said(project: Path, hub: UploadHub, tmp_path: Path) -> None:
    project = shipping.write_project(tmp_path / "other", license="nonsense")
    with pytest.raises(DataError, match=r"Q-SHIP-022: .*must be one of a list"):
        push(project)


def test_the_gate_comes_first(project: Path, hub: UploadHub) -> None:
    params = shipping.params(max_kld=0.001)
    assert command.main(Project(params, project), "Q4_K_M", None, None, Destination(REPO)) == 5
    assert not hub.requests


def test_the_command_line_pushes_to_the_hub_that_the_environment_names(project: Path, hub: UploadHub) -> None:
    values = json.loads(shipping.params().model_dump_json(by_alias=True))
    (project / "params.yaml").write_text(yaml.safe_dump(values))
    words = ["ship", "Q4_K_M", "--push", REPO, "--root", str(project)]
    own = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
    own |= {"PYTHONPATH": str(PROJECT)}
    done = ended([sys.executable, "-m", "pipeline.cli", *words], env=os.environ | own)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{hub.url}/{REPO} (private" in done.stdout and Q4 in hub.files
    assert TOKEN not in done.stdout + done.stderr
    hub.refuses = {"/preupload/": 403}
    done = ended([sys.executable, "-m", "pipeline.cli", *words], env=os.environ | own)
    assert done.returncode == 2 and "Q-SHIP-013" in done.stderr and "Traceback" not in done.stderr


def test_the_token_is_nowhere_but_in_the_requests_to_the_hub(
    project: Path, hub: UploadHub, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    assert push(project) == 0
    hub.refuses = {"/commit/": 500}
    with pytest.raises(MachineError) as broken:
        push(project, "Q5_K_M")
    printed = capfd.readouterr()
    assert TOKEN not in printed.out + printed.err + caplog.text + str(broken.value)
    assert not any(TOKEN.encode() in data for data in hub.files.values())
    for folder, _, names in os.walk(project.parent):
        assert not [name for name in names if TOKEN.encode() in Path(folder, name).read_bytes()]
    sent_to = {path.split("?")[0] for _, path, headers in hub.requests if TOKEN in str(headers)}
    assert sent_to and not any(
        path.startswith("/lfs/") for path in sent_to
    )  # the content network has no token
    assert not any(TOKEN in path for _, path, _ in hub.requests)
    assert file_hash(project / "models/bundle/demo-Q4_K_M" / Q4)
