"""Installation: pip's configuration passed on to uv, the build of torch, and the lock files themselves."""

import importlib.util
import io
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from make import ended, script

from pipeline.commands import install
from pipeline.commands.install import uv_environment
from pipeline.core.errors import ToolError
from pipeline.core.hardware import Accelerator
from pipeline.core.hashing import file_hash
from pipeline.core.places import PROJECT, lines_of

PROXY = {"ALL_PROXY": "http://p:1"}
STRATEGY = {"UV_INDEX_STRATEGY": "unsafe-best-match"}


@pytest.mark.parametrize(
    ("config", "given", "told"),
    [
        ("", {}, {}),
        ("global.index-url='https://a/simple'", {}, {"UV_DEFAULT_INDEX": "https://a/simple"}),
        (
            "global.index-url='https://a'\ninstall.index-url='https://b'",
            {},
            {"UV_DEFAULT_INDEX": "https://b"},
        ),
        (":env:.index-url='https://c'\nglobal.index-url='https://a'", {}, {"UV_DEFAULT_INDEX": "https://c"}),
        ("global.index-url='https://a'", {"UV_DEFAULT_INDEX": "https://mine"}, {}),
        ("global.extra-index-url='https://a https://b'", {}, {"UV_INDEX": "https://a https://b"}),
        ("global.extra-index-url='\\nhttps://a\\nhttps://b'", {}, {"UV_INDEX": "https://a https://b"}),
        ("global.find-links='/a /b'", {}, {"UV_FIND_LINKS": "/a,/b"}),
        ("global.cert='/ca.pem'\n:env:.proxy='http://p:1'", {}, {"SSL_CERT_FILE": "/ca.pem"} | PROXY),
        ("global.quiet='1'\nfreeze.timeout='10'", {}, {}),
    ],
)
def test_uv_is_told_what_pip_knows(config: str, given: dict[str, str], told: dict[str, str]) -> None:
    assert uv_environment(config, given) == STRATEGY | told


def test_lines_of_one_package() -> None:
    uv = "uv==0.13.8 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
    lock = f"uvloop==1 \\\n    --hash=sha256:00\n{uv}vine==5 \\\n    --hash=sha256:cc\n"
    assert lines_of("uv", lock) == uv
    assert lines_of("pip", lock) == ""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python whose pip and uv warn, and fail on a word in $FAIL; the file of the calls they got."""
    python = script(
        tmp_path / "python",
        f"""echo "$PIP_RETRIES $*" >> {tmp_path}/calls
echo "WARNING: Location 'file:///x' is ignored" >&2
for word in "$@"; do
  case " $FAIL " in *" $word "*) echo "ERROR: No matching distribution found for $word" >&2; exit 1;; esac
done""",
    )
    monkeypatch.setattr(install.sys, "executable", str(python))
    monkeypatch.setattr(install.sys, "prefix", str(tmp_path))
    monkeypatch.delenv("PIP_RETRIES", raising=False)
    return tmp_path / "calls"


CPU, PLAIN = f"torch=={install.TORCH}+cpu", f"torch=={install.TORCH}"


@pytest.mark.parametrize(
    ("fail", "asked", "code"),
    [
        ("", [CPU], 0),
        (CPU, [CPU, f"{install.INDEX}cpu", PLAIN], 0),
        (f"{CPU} {PLAIN}", [CPU, f"{install.INDEX}cpu", PLAIN], 4),
    ],
    ids=["a CPU build", "only the plain one", "none"],
)
def test_torch_is_the_cpu_build_or_else_the_plain_one(
    calls: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    fail: str,
    asked: list[str],
    code: int,
) -> None:
    monkeypatch.setenv("FAIL", fail)
    assert install.main(["--torch", "cpu"]) == code
    ran = calls.read_text().splitlines()
    assert [call.split()[-1] for call in ran] == asked
    # pip's own five retries take minutes without a network
    assert all(int(call.split()[0]) <= 2 for call in ran)
    printed, sentence = capfd.readouterr()
    for word in ("TORCH=", f"{install.CUDA_SIZE} more", "\n"):
        assert printed.count(word) == len(asked) // 2
    assert sentence.count("TORCH=") > 0 if code else sentence == ""
    assert sentence.count("\n") == sentence.count(str(calls.with_name("setup.log"))) == bool(code)
    assert "WARNING" not in printed + sentence
    assert "WARNING" in calls.with_name("setup.log").read_text()


RTX = Accelerator("cuda", "NVIDIA GeForce RTX 4060", 8188 << 20, "580.95", "8.9")


@pytest.mark.parametrize(
    ("card", "build"),
    [
        (None, "cpu"),
        (RTX, "cu130"),
        (replace(RTX, driver="579.1"), "cu126"),
        (replace(RTX, driver="525.60.13"), "cu126"),
        (replace(RTX, driver="470.1"), "cpu"),
        (replace(RTX, driver="[N/A]"), "cpu"),
        (replace(RTX, capability="6.1"), "cu126"),  # Pascal: cu130 has no code for it
        (replace(RTX, capability="12.0"), "cu130"),
        (replace(RTX, capability="12.0", driver="570.1"), "cpu"),  # Blackwell: cu126 has none
        (replace(RTX, capability="3.5"), "cpu"),
        (replace(RTX, capability=None), "cu130"),
        (Accelerator("rocm", "AMD Radeon", capability="gfx1100"), "rocm7.2"),
    ],
)
def test_the_newest_build_of_torch_that_driver_and_card_run(card: Accelerator | None, build: str) -> None:
    found, why = install.torch_for(card)
    assert found == build
    assert card is None or card.name in why
    # what would help is said: another driver
    assert ("update the driver" in why) == (build == "cpu" and card is not None and card.capability != "3.5")


FOR_RTX = f"torch=={install.TORCH}+cu130"
NO_DRIVER = ToolError("Q-PLANNING-003", "nvidia-smi fails (no devices): fix the driver")


@pytest.mark.parametrize(
    ("card", "fail", "asked", "note", "said"),
    [
        (RTX, "", [FOR_RTX], "cu130", [["cu130", "RTX 4060", "580.95"]]),
        (RTX, FOR_RTX, [FOR_RTX, f"{install.INDEX}cu130", CPU], "cpu", [["cu130"], ["TORCH=cu130"]]),
        (None, "", [CPU], "cpu", [["cpu"]]),
        (NO_DRIVER, "", [CPU], "cpu", [["nvidia-smi fails"]]),
    ],
    ids=["a card", "a card whose build can't be had", "none", "a driver that fails"],
)
def test_set_up_takes_the_build_for_the_card_else_the_cpus_says_so_and_notes_it(
    calls: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    card: Accelerator | ToolError | None,
    fail: str,
    asked: list[str],
    note: str,
    said: list[list[str]],
) -> None:
    def accelerator() -> Accelerator | None:
        if isinstance(card, ToolError):
            raise card
        return card

    monkeypatch.setattr(install, "accelerator", accelerator)
    monkeypatch.setenv("FAIL", fail)
    file = calls.with_name("torch")
    assert install.main(["--torch", "auto", str(file)]) == 0
    assert [call.split()[-1] for call in calls.read_text().splitlines()] == asked
    assert file.read_text() == f"{note}\n"
    for line, words in zip(capfd.readouterr().out.splitlines(), said, strict=True):
        assert all(word in line for word in words)


def test_torch_that_the_user_named_is_not_replaced(
    calls: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert install.main(["--torch", "torch==9 --index-url https://mine/whl"]) == 0
    assert calls.read_text().split()[-4:] == ["install", "torch==9", "--index-url", "https://mine/whl"]
    monkeypatch.setenv("FAIL", "torch==9")
    monkeypatch.setenv("PIP_RETRIES", "7")
    assert install.main(["--torch", "torch==9"]) == 4
    # the user's own patience holds
    assert calls.read_text().splitlines()[-1].split() == ["7", "-m", "pip", "install", "torch==9"]
    assert "found for torch==9" in capfd.readouterr().err  # pip's reason
    monkeypatch.setenv("FAIL", FOR_RTX)
    assert install.main(["--torch", "cu130"]) == 4


@pytest.mark.parametrize(("fail", "lines", "code"), [("", 0, 0), ("uv", 1, 0), ("uv install", 2, 4)])
def test_what_uv_and_pip_say_of_a_lock_is_in_the_log(
    calls: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    fail: str,
    lines: int,
    code: int,
) -> None:
    lock = tmp_path / "some.lock"
    lock.write_text("uv==0.2 \\\n    --hash=sha256:aa\n")
    monkeypatch.setenv("FAIL", fail)
    assert install.main([str(lock)]) == code
    printed = "".join(capfd.readouterr())
    assert printed.count("\n") == printed.count(str(tmp_path / "setup.log")) == lines
    assert "WARNING" not in printed
    assert "WARNING" in (tmp_path / "setup.log").read_text()


SECRET = "https://me:pa$s@host/simple"  # noqa: S105


@pytest.mark.parametrize("words", [f"torch==9 --index-url {SECRET}", f"torch==9 --index-url='{SECRET}'"])
def test_a_password_in_an_index_address_is_in_no_log_note_or_sentence(
    calls: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: str
) -> None:
    note = calls.with_name("torch")
    assert install.main(["--torch", words, str(note)]) == 0
    assert SECRET in calls.read_text()  # pip has it
    monkeypatch.setenv("FAIL", f"{SECRET} --index-url={SECRET}")  # pip repeats it
    assert install.main(["--torch", words]) == 4
    written = [note.read_text(), calls.with_name("setup.log").read_text(), "".join(capfd.readouterr())]
    assert not any("me:" in text or "pa$s" in text for text in written)
    assert all("https://****@host/simple" in text for text in written)


@pytest.mark.slow
@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_what_is_no_wheel_is_built_with_what_is_installed(tmp_path: Path, installer: str) -> None:
    """By setuptools of this environment: there is no index that could give another."""
    sdist = tmp_path / "thing-1.0.tar.gz"
    files = {
        "pyproject.toml": '[build-system]\nrequires = ["setuptools"]\n',
        "setup.py": "from setuptools import setup\nsetup(name='thing', version='1.0', py_modules=['thing'])",
        "thing.py": "",
        "PKG-INFO": "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n",
    }
    with tarfile.open(sdist, "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"thing-1.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    (tmp_path / "some.lock").write_text(f"thing==1.0 --hash=sha256:{file_hash(sdist)}\n")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (packages,) = tmp_path.glob("venv/lib/python*/site-packages")
    (packages / "ours.pth").write_text(sysconfig.get_path("purelib"))
    if installer == "pip":
        (packages / "uv.py").write_text("raise SystemExit('no uv')")
    command = [tmp_path / "venv/bin/python", "-m", "pipeline.commands.install", tmp_path / "some.lock"]
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "UV_OFFLINE": "1"}
    done = ended(command, env=os.environ | offline)
    log = (tmp_path / "venv/setup.log").read_text()
    assert (packages / "thing.py").is_file() and done.returncode == 0, log
    assert ("-m pip install" in log) == (installer == "pip")


@pytest.mark.parametrize(
    "name",
    ["requirements.lock", "requirements-dev.lock", "requirements-demo.lock", "requirements-bases.lock"],
)
def test_locks_are_pinned_by_hash_and_name_no_index(name: str) -> None:
    text = (PROJECT / name).read_text(encoding="utf-8")
    requirements = [
        line for line in re.sub(r"\\\n\s*", "", text).splitlines() if line and not line.startswith("#")
    ]
    assert requirements
    assert all(re.match(r"[A-Za-z0-9._-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", line) for line in requirements)
    assert "://" not in text and "index-url" not in text


def test_torch_stands_apart_from_the_lock() -> None:
    lock = (PROJECT / "requirements.lock").read_text(encoding="utf-8")
    assert not re.search(r"^(torch|nvidia-|cuda-)\S*==", lock, re.MULTILINE)
    pinned = re.search(r'"torch==([^"]+)"', (PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    assert pinned and pinned[1] == install.TORCH


def test_what_set_up_installs_is_compiled() -> None:
    """Check that packages are compiled when they are installed: where Python may not write bytecode
    (`PYTHONDONTWRITEBYTECODE`, as in containers), every start would otherwise compile them again.
    """
    for package in ("requests", "snakemake", "dvc", "transformers"):
        (folder,) = importlib.util.find_spec(package).submodule_search_locations  # type: ignore[union-attr]
        assert list(Path(folder).glob(f"__pycache__/__init__.{sys.implementation.cache_tag}.pyc")), package
