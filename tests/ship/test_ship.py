"""`quench ship` and `quench ship --check`: what is refused and why, what the bundle holds, and that a bundle
of somebody else's can do no harm.
"""

import json
import os
import re
import resource
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import needed
import pytest
import shipping
import yaml
from draws import draws
from golden import Golden
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from make import ended, quench, ran
from recording import read
from shipping import (
    BILL,
    CARD,
    EVALUATION,
    PARITY,
    SUMS,
    change,
    edited,
    faults_of,
    flip,
    forged,
    script_environment,
    sum_again,
    summed_again,
    texts_of,
)

from pipeline.commands import ship as command
from pipeline.commands.project import Project
from pipeline.core.errors import ConfigError, DataError, MachineError, ToolError
from pipeline.core.hashing import file_hash
from pipeline.gate.records import Base
from pipeline.gguf.provenance import provenance
from pipeline.llamacpp.server_process import STACK_BYTES, environment
from pipeline.ship.bundle import SCRIPT, UNIT
from pipeline.ship.card import front_matter
from pipeline.ship.verification import bundle_faults

GGUF, GATE = "demo-Q4_K_M.gguf", "evidence/gate.json"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with one bundle. Read only: copy it to change it."""
    root = shipping.write_project(tmp_path_factory.mktemp("ship"))
    assert command.main(Project(shipping.params(), root), "q4_k_m", None, None) == 0
    return root


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return shipping.write_project(tmp_path)


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "models/bundle/demo-Q4_K_M", tmp_path / "bundle"))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A private and a public elliptic key."""
    return key_pair(tmp_path_factory.mktemp("keys"))


def key_pair(folder: Path) -> tuple[Path, Path]:
    from cryptography.hazmat.primitives import serialization as key_as
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    private = (key_as.Encoding.PEM, key_as.PrivateFormat.PKCS8, key_as.NoEncryption())
    public = (key_as.Encoding.PEM, key_as.PublicFormat.SubjectPublicKeyInfo)
    (folder / "private.pem").write_bytes(key.private_bytes(*private))
    (folder / "public.pem").write_bytes(key.public_key().public_bytes(*public))
    return folder / "private.pem", folder / "public.pem"


def refused(folder: Path, key: Path | None = None) -> str:
    faults = bundle_faults(folder, key)
    assert faults
    return " ".join(faults)


def test_the_bundle_is_whole_and_verifies(bundle: Path) -> None:
    names = {path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file()}
    assert names == {GGUF, CARD, BILL, SCRIPT, UNIT, SUMS, "Modelfile", EVALUATION, PARITY, GATE}
    assert bundle_faults(bundle) == []
    done = ended(["sha256sum", "--check", "--strict", SUMS], cwd=bundle)
    assert done.returncode == 0, done.stdout
    gate = json.loads((bundle / GATE).read_text())
    for finding, verdict in zip(gate["findings"], ("warn", "not measured"), strict=False):
        finding["verdict"] = verdict
    change(bundle / GATE, **gate)
    sum_again(bundle)
    assert bundle_faults(bundle) == []  # neither is a refusal
    assert shipping.printed((bundle / CARD).read_text(encoding="utf-8")) == provenance(bundle / GGUF)


@pytest.mark.parametrize(
    ("level", "relation"), [("Q4_K_M", "quantized"), ("F16", "finetune"), ("adapter", "adapter")]
)
def test_front_matter_names_the_base_and_what_the_model_is_of_it(level: str, relation: str) -> None:
    base = Base.model_validate(read("merged", "models/base.json") | {"source": "hub", "model": "Qwen/Q"})
    found = yaml.safe_load(front_matter(base, level, ["en", "de"]))
    assert (found["base_model"], found["base_model_relation"]) == ("Qwen/Q", relation)
    assert found["language"] == ["en", "de"]


def test_a_reader_is_told_the_same(tmp_path: Path, snapshot: Any) -> None:
    """Of a base on the hub without a license, and a check that says hidden text."""
    root = shipping.write_project(tmp_path, source="hub", model="Qwen/Größe", revision="c0ffee", license=None)
    train, parity = (json.loads((root / f"reports/{name}.json").read_text()) for name in ("train", "parity"))
    versions = {"quench": "1", "torch": "2", "peft": None}  # None: not installed
    change(root / "reports/train.json", run=train["run"] | {"versions": versions})
    parity["checks"]["weights_gguf"]["detail"] = "hidden \u202e ä"
    change(root / "reports/parity.json", **parity)
    assert command.main(Project(shipping.params(), root), "Q4_K_M", None, None) == 0
    bundle = root / "models/bundle/demo-Q4_K_M"
    assert bundle_faults(bundle) == []
    assert texts_of(bundle) == snapshot(extension_class=Golden)
    refs = re.findall(r'"bom-ref": "(.*)"', (bundle / BILL).read_text(encoding="utf-8"))
    assert len(refs) == len(set(refs))
    for file in (bundle / "evidence").iterdir():
        text = file.read_text(encoding="utf-8")
        plain = json.dumps(json.loads(text), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        assert text == plain.replace("\u202e", r"\u202e")


def test_a_base_from_a_folder_does_not_tell_where_that_was(tmp_path: Path) -> None:
    project = shipping.write_project(tmp_path, source="path", model="/home/somebody/models/qwen")
    assert command.main(Project(shipping.params(), project), "Q4_K_M", None, None) == 0
    for file in (project / "models/bundle/demo-Q4_K_M").rglob("*"):
        assert file.is_dir() or b"somebody" not in file.read_bytes(), file


def test_the_same_model_has_the_same_bundle(made: Path, bundle: Path, tmp_path: Path) -> None:
    assert command.main(Project(shipping.params(), made), "Q4_K_M", tmp_path / "again", None) == 0
    assert (tmp_path / "again/demo-Q4_K_M" / SUMS).read_bytes() == (bundle / SUMS).read_bytes()


def test_the_gguf_is_a_copy_that_a_write_into_the_project_does_not_reach(project: Path) -> None:
    assert command.main(Project(shipping.params(), project), "Q4_K_M", None, None) == 0
    source, copy = project / "models/gguf" / GGUF, project / "models/bundle/demo-Q4_K_M" / GGUF
    before = copy.read_bytes()
    with source.open("r+b") as file:  # as `cp` writes over a file that is there
        file.write(b"XXXX")
    assert copy.read_bytes() == before


def test_the_serve_script_runs_the_hardened_command_with_a_key_of_mode_0600(
    bundle: Path, tmp_path: Path
) -> None:
    place = bundle.rename(tmp_path / "a place with spaces")
    run = [ran([place / SCRIPT], env=script_environment(tmp_path), cwd="/") for _ in range(2)]
    words = run[0].stdout.splitlines()
    assert words[words.index("--model") + 1] == str(place / GGUF)
    key = Path(words[words.index("--api-key-file") + 1])
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert re.fullmatch(r"[0-9a-f]{64}", key.read_text())
    assert run[1].stdout == run[0].stdout  # the key stays


SHELLS = [
    pytest.param(shutil.which(name), id=name, marks=needed.programs(name))
    for name in ("dash", "bash", "busybox")
]
HOSTILE = {
    "LLAMA_ARG_TOOLS": "all",
    "LLAMA_API_KEY": "known",
    "AIP_MODE": "PREDICTION",
    "HF_TOKEN": "secret",
    "https_proxy": "http://x",
    **dict.fromkeys(("name", "here", "key", "state", "server", "_", "lower_case", "A1"), "x"),
    "IFS": "A_",
    "SHELLOPTS": "braceexpand",
    "LLAMA_ARG_BYTES": "\udcff\udcfe",
    "ENV": "/nowhere",
    "LLAMA_ARG_LINES": "one\nPATH=/nowhere\nLLAMA_ARG_HOST=0.0.0.0\n$(touch hacked)\n*",
}


def cores() -> None:
    """Let the process write as large a core file as it may."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))


@pytest.mark.parametrize("shell", SHELLS)
def test_the_serve_script_gives_the_server_no_more_than_quench_serve_does(
    bundle: Path, tmp_path: Path, shell: str
) -> None:
    served = script_environment(tmp_path, "env -0\nulimit -c\nulimit -S -s\ncat /proc/self/oom_score_adj")
    (tmp_path / "state").mkdir()
    key = tmp_path / "state" / "api-key"
    key.touch(0o644)
    opened_before = key.open()
    kept = {
        "PATH": os.environ["PATH"],
        "HOME": "/nowhere",
        "CUDA_VISIBLE_DEVICES": "1",
        "LC_ALL": "C.UTF-8",
        "GOMP_CPU_AFFINITY": "0\n1",
    }
    given = kept | HOSTILE | served
    words = [shell, *(["sh"] if shell.endswith("busybox") else []), bundle / SCRIPT]
    with opened_before:
        done = ended(words, env=given, errors="surrogateescape", cwd=tmp_path, preexec_fn=cores)
        assert done.returncode == 0 and not opened_before.read()
    *seen, limits = done.stdout.split("\0")
    own = {"PWD", "OLDPWD", "SHLVL", "_", "SHELLOPTS"}  # of the shells themselves
    assert {
        name: value for name, _, value in (entry.partition("=") for entry in seen) if name not in own
    } == environment(kept)
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    assert limits.split() == [
        "0",
        str((STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard)) // 1024),
        "1000",
    ]
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bundle", "llama-server", "state"]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_serve_script_takes_the_stack_that_it_may_have(bundle: Path, tmp_path: Path, shell: str) -> None:
    command = (
        f"ulimit -H -s 16384; exec {shell} {'sh' if shell.endswith('busybox') else ''} {bundle / SCRIPT}"
    )
    (tmp_path / "state").mkdir()
    given = script_environment(tmp_path, "ulimit -S -s")
    assert ran(["/bin/sh", "-c", command], env=given).stdout == "16384\n"


@needed.programs("systemd-analyze")
def test_the_unit_is_valid_and_hardened(bundle: Path, tmp_path: Path) -> None:
    text = (bundle / UNIT).read_text(encoding="utf-8")
    unit = tmp_path / "quench.service"
    unit.write_text(
        text.replace("/opt/demo-Q4_K_M", str(bundle)).replace("/usr/local/bin/llama-server", "/bin/true")
    )
    checked = ended(["systemd-analyze", "verify", unit])
    assert checked.returncode == 0, checked.stderr
    limit = "--threshold=15"  # 1.5 of 10, lower is safer
    assert ended(["systemd-analyze", "security", "--offline=true", limit, unit]).returncode == 0


@pytest.mark.parametrize(
    ("wanted", "came_to", "on_gpu"), [("auto", 0, False), ("auto", 9, True), (9, 0, True), (0, 9, False)]
)
def test_the_unit_lets_a_model_on_a_gpu_to_its_devices(
    project: Path, wanted: str | int, came_to: int, on_gpu: bool
) -> None:
    serving = read("merged", "reports/eval/Q4_K_M.json")["serving"] | {"n_gpu_layers": came_to}
    change(project / "reports/eval/Q4_K_M.json", serving=serving)
    params = shipping.params()
    params = params.model_copy(update={"machine": params.machine.model_copy(update={"n_gpu_layers": wanted})})
    assert command.main(Project(params, project), "Q4_K_M", None, None) == 0
    unit = (project / "models/bundle/demo-Q4_K_M" / UNIT).read_text()
    assert ("PrivateDevices=no" if on_gpu else "PrivateDevices=yes") in unit.splitlines()


@pytest.mark.parametrize("name", ["thesis.txt", SUMS])
def test_what_is_no_bundle_is_never_replaced(project: Path, name: str) -> None:
    (project / "mine/demo-Q4_K_M").mkdir(parents=True)
    (project / "mine/demo-Q4_K_M" / name).write_text("years of work")
    with pytest.raises(DataError, match="Q-SHIP-001: "):
        command.main(Project(shipping.params(), project), "Q4_K_M", project / "mine", None)
    assert (project / "mine/demo-Q4_K_M" / name).exists()


@pytest.mark.parametrize("place", ["nowhere", "bundle"])
def test_a_link_is_never_replaced(project: Path, bundle: Path, tmp_path: Path, place: str) -> None:
    (project / "mine").mkdir()
    (project / "mine/demo-Q4_K_M").symlink_to(tmp_path / place)
    with pytest.raises(DataError, match="Q-SHIP-001: "):
        command.main(Project(shipping.params(), project), "Q4_K_M", project / "mine", None)
    assert (project / "mine/demo-Q4_K_M").is_symlink() and bundle_faults(bundle) == []


@pytest.mark.parametrize("own", ["notes.md", ".git/HEAD", "README.md"])
def test_what_a_user_put_into_a_bundle_is_never_replaced(project: Path, own: str) -> None:
    """The folder invites it: "publish: everything in it", with git."""
    assert command.main(Project(shipping.params(), project), "Q4_K_M", None, None) == 0
    folder = project / "models/bundle/demo-Q4_K_M"
    (folder / CARD).chmod(0o664)
    (folder / GGUF).write_bytes(b"half of it")
    # one with other rights alone is made again, and what nobody writes by hand
    assert command.main(Project(shipping.params(), project), "Q4_K_M", None, None) == 0
    assert bundle_faults(folder) == []
    file = folder / own
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")
    with pytest.raises(DataError, match=re.escape(f"holds what is yours ({own})")):
        command.main(Project(shipping.params(), project), "Q4_K_M", None, None)
    assert file.read_text() == "mine"


def full(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("call", "does", "error"),
    [
        ("shutil.copyfile", full, "Q-CORE-005: "),
        ("shutil.copyfile", lambda source, target: target.write_bytes(b"other"), "Q-SHIP-002: "),
        ("shutil.disk_usage", lambda folder: SimpleNamespace(free=44_320), "Q-CORE-004: "),
        ("pathlib.Path.chmod", lambda file, mode: file.write_bytes(b"other"), "Q-SHIP-002: "),
        ("pathlib.Path.chmod", lambda file, mode: file.with_name("more").touch(), "Q-SHIP-002: "),
    ],
    ids=["full", "another copy", "room for the GGUF alone", "another byte", "another file"],
)
def test_a_bad_disk_leaves_the_older_bundle(
    project: Path, monkeypatch: pytest.MonkeyPatch, call: str, does: Callable[..., object], error: str
) -> None:
    assert command.main(Project(shipping.params(), project), "Q4_K_M", None, None) == 0
    before = file_hash(project / "models/bundle/demo-Q4_K_M" / SUMS)
    monkeypatch.setattr(call, does)
    with pytest.raises(MachineError, match=error):
        command.main(Project(shipping.params(), project), "Q4_K_M", None, None)
    assert file_hash(project / "models/bundle/demo-Q4_K_M" / SUMS) == before
    assert [path.name for path in (project / "models/bundle").iterdir()] == ["demo-Q4_K_M"]


def test_a_signed_bundle_verifies_by_its_key_only(
    project: Path, keys: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    private, public = keys
    for _ in range(2):  # the second in place of the first
        assert command.main(Project(shipping.params(), project), "Q4_K_M", None, private) == 0
    folder = project / "models/bundle/demo-Q4_K_M"
    assert bundle_faults(folder, public) == []
    assert bundle_faults(folder) == []
    with (folder / "model.sig").open("ab") as file:
        file.write(b" " * ((1 << 20) - file.tell()))
        file.flush()
        assert bundle_faults(folder, public) == []  # as large as it may be
        file.write(b" ")
    assert "too large" in refused(folder, public)
    assert command.main(Project(shipping.params(), project), "Q4_K_M", None, private) == 0
    assert bundle_faults(Path(shutil.copytree(folder, project / "elsewhere")), public) == []
    _, other = key_pair(tmp_path_factory.mktemp("other"))
    assert "signature" in refused(folder, other)
    with (folder / "Modelfile").open("a") as file:
        file.write("SYSTEM obey me\n")
    sum_again(folder)
    assert bundle_faults(folder) == []  # checksums alone can be made again …
    assert "Modelfile" in refused(folder, public)  # … a signature can't
    (folder / "model.sig").write_text("{}")
    assert "signature" in refused(folder, public)
    (folder / "model.sig").unlink()
    assert "not signed" in refused(folder, public)


def test_keys_that_are_none_and_a_missing_library_are_sentences(
    project: Path, keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    private, public = keys
    for wrong in (public, tmp_path / "none.pem"):
        with pytest.raises(ConfigError, match="Q-SHIP-008: "):
            command.main(Project(shipping.params(), project), "Q4_K_M", None, wrong)
    assert not (project / "models/bundle/demo-Q4_K_M").exists()
    assert command.main(Project(shipping.params(), project), "Q4_K_M", None, private) == 0
    with pytest.raises(ConfigError, match="Q-SHIP-008: "):
        bundle_faults(project / "models/bundle/demo-Q4_K_M", private)
    pipe, large, huge = tmp_path / "pipe", tmp_path / "large.pem", tmp_path / "huge.pem"
    large.write_bytes(public.read_bytes().ljust(1 << 16))
    assert bundle_faults(project / "models/bundle/demo-Q4_K_M", large) == []
    os.mkfifo(pipe)
    for key in keys:
        huge.write_bytes(key.read_bytes().ljust((1 << 16) + 1))
        for endless in (huge, tmp_path, pipe, Path("/dev/zero")):
            with pytest.raises(ConfigError, match="Q-SHIP-008: "):
                if key == private:
                    command.main(Project(shipping.params(), project), "Q4_K_M", None, endless)
                else:
                    bundle_faults(project / "models/bundle/demo-Q4_K_M", endless)
    shutil.rmtree(project / "models/gguf")  # a key is looked at before files, which may be gigabytes
    with pytest.raises(ConfigError, match="Q-SHIP-008: "):
        command.main(Project(shipping.params(), project), "Q4_K_M", None, public)
    monkeypatch.setitem(__import__("sys").modules, "model_signing", None)
    with pytest.raises(ToolError, match="Q-SHIP-009: "):
        command.main(Project(shipping.params(), project), "Q4_K_M", None, private)


def replaced(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    """Return a function that puts what `make` makes in the place of a file."""

    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        make(folder / name)

    return damage


def crowded(entries: int, make: Callable[[Path], object] = Path.touch) -> Callable[[Path], object]:
    """A bundle without a card, and with this many files and folders."""

    def damage(folder: Path) -> None:
        (folder / CARD).unlink()
        (folder / "many").mkdir()
        for number in range(entries - sum(1 for _ in folder.rglob("*"))):
            make(folder / "many" / str(number))

    return damage


def summed(name: str, hash_of_it: str = "0" * 64) -> Callable[[Path], object]:
    """One more line of checksums."""

    def damage(folder: Path) -> None:
        with (folder / SUMS).open("a") as file:
            file.write(f"{hash_of_it}  {name}\n")

    return damage


def lie(name: str, old: str, new: str) -> Callable[[Path], object]:
    """Another text in a file, with checksums that agree; all of it where `old` is empty."""

    def damage(folder: Path) -> None:
        text = (folder / name).read_text(encoding="utf-8")
        old_text = old.replace("SHA", file_hash(folder / GGUF))
        assert old_text in text
        (folder / name).write_text(text.replace(old_text, new) if old else new, encoding="utf-8")

    return summed_again(damage)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "link": replaced("link", lambda file: file.symlink_to("/etc/passwd")),
    "link to a folder": replaced("evidence/up", lambda file: file.symlink_to("..")),
    "pipe": replaced("pipe", os.mkfifo),  # and it does not wait for a writer
    "GGUF without an end": replaced(GGUF, lambda file: file.symlink_to("/dev/zero")),
    "extra": replaced("extra.bin", lambda file: file.write_bytes(b"")),
    "extra, with its sum": summed_again(replaced("extra.bin", lambda file: file.touch())),
    "sum of what is missing": summed("extra.bin"),
    "no card": lambda folder: (folder / CARD).unlink(),
    "script too large": lambda folder: os.truncate(folder / SCRIPT, 1 << 40),  # its size alone refuses it
    "GGUF of another size": lambda folder: os.truncate(folder / GGUF, 1 << 40),
    "very many files": crowded(1100),
    "very many folders": crowded(1100, os.mkdir),
    "as many as there may be": crowded(1000),
    "one more": crowded(1001),
    "empty folder": replaced("hollow", os.mkdir),
    "deep": lambda folder: (folder / "/".join("abcdefgh")).mkdir(parents=True),
    "as deep as it may be": replaced("a/b/c/d/file", lambda file: file.touch()),
    "socket": replaced("socket", lambda file: os.mknod(file, stat.S_IFSOCK)),
    "name that hides": replaced("extra\x1b[2J", lambda file: file.touch()),
    "sums lead out": summed("../secret"),
    "sums lead to the root": summed("/etc/passwd"),
    "sums lead out and back": summed("evidence/../../secret"),
    "sums of a dot": summed("./" + GGUF),
    "sums of two slashes": summed("a//b"),
    "sum of one file twice": summed(CARD),
    "sum of a long name": summed("../" + "long" * 99),
    "sums of a long line": replaced(SUMS, lambda file: file.write_text("no checksum" * 9)),
    "sums of no text": replaced(SUMS, lambda file: file.write_bytes(b"f\xff")),
    "sums as large as they may be": replaced(SUMS, lambda file: file.write_text("f" * (16 << 20))),
    "a sum without a name": replaced(SUMS, lambda file: file.write_text("0" * 64)),
    "sums of zeros": replaced(SUMS, lambda file: file.write_text("\0" * 9)),
    "sums too large": replaced(SUMS, lambda file: file.write_text("f" * (17 << 20))),
    "no GGUF": summed_again(lambda folder: (folder / GGUF).unlink()),
    "two GGUFs": summed_again(lambda folder: shutil.copy(folder / GGUF, folder / "a.gguf")),
    "cut GGUF": forged(GGUF, lambda file: os.truncate(file, 99)),
    "GGUF of another byte": lambda folder: flip(folder / GGUF, -1),
    "card of another byte": lambda folder: flip(folder / CARD, -1),
    "card of another file": lie(CARD, "| `SHA` |", "| `00` |"),
    "card of no provenance": lie(CARD, "| `quench.", "| `other."),
    "card of more provenance": lie(CARD, "| `quench.adapter.sha256` |", "| `quench.ä'` |"),
    "card lies": lie(CARD, 'quench.adapter.sha256` | `"', 'quench.adapter.sha256` | `"00'),
    "bill of another file": lie(BILL, "SHA", "0" * 64),
    "figures of another file": lie(EVALUATION, "SHA", "0" * 64),
    "figures of an adapter": edited(EVALUATION, lambda found: found.update(lora={"sha256": "00"})),
    "figures are a list": lie(EVALUATION, "", "[]"),
    "gate failed": lie(GATE, "", '{"verdict": "fail", "model": "Q4_K_M"}'),
    "parity failed": lie(PARITY, "", '{"verdict": "fail"}'),
    "gate too deep": lie(GATE, "", "[" * 200_000),
    "bill is a list": lie(BILL, "", "[]"),
    "bill is broken": lie(BILL, "", "{"),
    "bill is no JSON": lie(BILL, "", "\ud7ff"),
    "bill without a subject": lie(BILL, "", '{"metadata": []}'),
}


def test_whatever_does_not_belong_in_a_bundle_is_named(made: Path, tmp_path: Path, snapshot: Any) -> None:
    found = faults_of(made / "models/bundle/demo-Q4_K_M", DAMAGES, tmp_path)
    assert found == snapshot(extension_class=Golden)


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o1644, 0o646, 0o664, 0o600, 0o444, 0o700, 0o777, 0o4644])
def test_rights_that_no_file_of_a_bundle_has_are_refused(bundle: Path, mode: int) -> None:
    (bundle / CARD).chmod(mode)
    printed = refused(bundle)
    assert f"{CARD} has the rights {stat.filemode(stat.S_IFREG | mode)}" in printed
    assert f"`chmod {0o755 if mode & 0o100 else 0o644:o}`" in printed


@pytest.mark.parametrize("umask", [0o077, 0o002, 0])
def test_a_bundle_has_the_same_rights_whatever_the_umask(
    project: Path, keys: tuple[Path, Path], umask: int
) -> None:
    private, public = keys
    folder, before = project / "models/bundle/demo-Q4_K_M", os.umask(umask)
    try:
        assert command.main(Project(shipping.params(), project), "Q4_K_M", None, private) == 0
    finally:
        os.umask(before)
    for path in (folder, *folder.rglob("*")):
        executable = path.is_dir() or path.name == SCRIPT
        assert stat.S_IMODE(path.stat().st_mode) == (0o755 if executable else 0o644), path
    assert bundle_faults(folder, public) == []


NO_TEXT = (None, True, 1, 0.5, [], {}, ["pass"])  # what may stand in the place of a verdict, a name, a hash
ODD: dict[tuple[str, ...], tuple[Any, ...]] = {
    ("gate", "verdict"): (*NO_TEXT, "FAIL", "fail", "Pass", "pass ", "not measured"),
    ("gate", "findings"): (*NO_TEXT[:-1], "pass", [{}]),
    ("gate", "findings", "0", "verdict"): (*NO_TEXT, "FAIL", "fail", "passed"),
    ("gate", "model"): (*NO_TEXT, "Q5_K_M"),
    ("parity", "verdict"): (*NO_TEXT, "FAIL", "fail", "PASS"),
    ("parity", "checks"): (*NO_TEXT[:-1], "pass"),
    ("parity", "checks", "weights_gguf", "verdict"): (*NO_TEXT, "FAIL", "fail"),
    ("parity", "files"): (*NO_TEXT, GGUF),
    ("parity", "files", GGUF): (*NO_TEXT, "0" * 64),
    ("evaluation", "sha256"): (*NO_TEXT, "0" * 64),
    ("evaluation", "bytes"): (None, True, 1, 0.5, "1", -1, 2**70),
    ("evaluation", "model"): (*NO_TEXT, "F16"),
}


def odd_bundles(bundle: Path) -> Iterator[tuple[str, ...]]:
    """Put each value of `ODD` in its place, and records that go deep, with checksums that agree; where."""
    for (name, *place, key), values in ODD.items():
        file = bundle / f"evidence/{name}.json"
        before = file.read_text(encoding="utf-8")
        for value in values:
            record = holder = json.loads(before)
            for step in place:
                holder = holder[int(step)] if isinstance(holder, list) else holder[step]
            holder[key] = value
            file.write_text(json.dumps(record), encoding="utf-8")
            sum_again(bundle)
            yield name, *place, key, repr(value)
        file.write_text(before, encoding="utf-8")
    for depth in range(50, 1000, 50):  # Python's own limit is 1,000 calls
        text = f'{{"verdict": "pass", "findings": {"[" * depth}{"]" * depth}}}'
        (bundle / GATE).write_text(text)
        sum_again(bundle)
        yield "gate", "findings", f"{depth} deep"


def test_no_evidence_is_taken_for_what_it_is_not(bundle: Path) -> None:
    bundles = [(place, bundle_faults(bundle)) for place in odd_bundles(bundle)]
    assert len(bundles) > 90
    assert [place for place, faults in bundles if not faults] == []


OBEYED = ["\x1b[2J", "\x9b31m", *"\b\r\x7f\u202e\u2066\0\u200b\u3164\u2028\ue000\U000e0041"]


@pytest.mark.parametrize("name", [CARD, SCRIPT, UNIT, "Modelfile", BILL, EVALUATION])
def test_texts_that_hide_what_stands_there_are_refused(bundle: Path, name: str) -> None:
    text = (bundle / name).read_text(encoding="utf-8")
    for hidden in OBEYED:
        (bundle / name).write_text(text.replace("e", f"e{hidden}", 1), encoding="utf-8")
        sum_again(bundle)
        line = text[: text.index("e")].count("\n") + 1
        assert f"{name} holds U+{ord(hidden[0]):04X} in line {line}," in refused(bundle)
    (bundle / name).write_text(text.replace("\n", "\n\t", 1) if name == CARD else text, encoding="utf-8")
    sum_again(bundle)
    assert bundle_faults(bundle) == []


def of_values(total: int) -> Callable[[dict[str, Any]], object]:
    """As many values as a validator sees."""

    def edit(bill: dict[str, Any]) -> None:
        bill["nonsense"] = []
        marks = len(re.findall(r"[\[{,]", json.dumps(bill)))
        bill["nonsense"] = [0] * (total - marks + 1)

    return edit


def without(kind: str) -> Callable[[dict[str, Any]], object]:
    """No components of a kind, but llama.cpp."""
    return lambda bill: bill.update(components=[part for part in bill["components"] if part["type"] != kind])


def hashes_of(kind: str, *hashes: dict[str, str]) -> Callable[[dict[str, Any]], object]:
    """Other hashes of the components of a kind, and of their files."""

    def edit(bill: dict[str, Any]) -> None:
        for component in (part for part in bill["components"] if part["type"] == kind):
            for part in component.get("components", [component]):
                part["hashes"] = [*hashes]

    return edit


OTHER_FILE = {"type": "file", "name": GGUF, "hashes": [{"alg": "SHA-256", "content": "0" * 64}]}
MODEL = "machine-learning-model"
NONSENSE: dict[str, Callable[[dict[str, Any]], object]] = {
    "no format": lambda bill: bill.pop("bomFormat"),
    "another format": lambda bill: bill.update(bomFormat="SPDX"),
    "another version": lambda bill: bill.update(specVersion="9.9"),
    "unknown key": lambda bill: bill.update(nonsense=1),
    "components of text": lambda bill: bill.update(components=["a", "b"]),
    "no components": lambda bill: bill.pop("components"),
    "component of no type": lambda bill: bill["components"][0].update(type="lie"),
    "no base": without(MODEL),
    "no rows": without("data"),
    "no properties": lambda bill: bill["metadata"]["component"].pop("properties"),
    "another provenance": lambda bill: bill["metadata"]["component"]["properties"][0].update(value="lie"),
    "another file": lambda bill: bill["metadata"]["component"].update(components=[OTHER_FILE]),
    "only the hash": lambda bill: [bill.pop(key) for key in list(bill) if key != "metadata"],
    "very many values": of_values(200_000),
    "as many values as there may be": of_values(5000),
    "one value more": of_values(5001),
    "very many objects": lambda bill: bill.update(dependencies=[{}] * 4000),
    "very many lists": lambda bill: bill.update(dependencies=[[]] * 4000),
    "base of files without a hash": hashes_of(MODEL),
    "rows without a hash": hashes_of("data"),
    "rows of another kind of hash": hashes_of("data", {"alg": "SHA-512", "content": "0" * 128}),
}


def test_a_bill_of_nonsense_is_refused(made: Path, tmp_path: Path, snapshot: Any) -> None:
    damages = {case: edited(BILL, edit) for case, edit in NONSENSE.items()}
    found = faults_of(made / "models/bundle/demo-Q4_K_M", damages, tmp_path)
    assert found == snapshot(extension_class=Golden)


@settings(max_examples=draws(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_changed_byte_goes_unnoticed(bundle: Path, data: st.DataObject) -> None:
    names = sorted(path for path in bundle.rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(names))
    before = path.read_bytes()
    place, bit = data.draw(st.integers(0, len(before) - 1)), data.draw(st.integers(0, 7))
    flip(path, place, bit)
    try:
        assert bundle_faults(bundle)
    finally:
        path.write_bytes(before)


def test_the_commands_exit_with_5_and_a_line_per_reason(
    made: Path, bundle: Path, keys: tuple[Path, Path]
) -> None:
    good = quench("ship", "--check", bundle)
    assert good.exit_code == 0
    assert "not signed" in good.output
    (bundle / SUMS).write_text(f"{'0' * 64}  \x1b[2J\x1b[Hall verified\n")
    hostile = quench("ship", "--check", bundle)
    assert hostile.exit_code == 5
    assert "\x1b" not in hostile.output
    shutil.copy(made / "models/bundle/demo-Q4_K_M" / SUMS, bundle / SUMS)
    unsigned = quench("ship", "--check", bundle, "--key", keys[1])
    assert unsigned.exit_code == 5
    missing = quench("ship", "--check", bundle / "nowhere")
    assert missing.exit_code == 3 and "Q-SHIP-010: " in missing.output
    (made / "params.yaml").write_text(yaml.safe_dump(shipping.params().model_dump(), allow_unicode=True))
    shipped = quench("ship", "Q4_K_M", "--root", made)
    assert shipped.exit_code == 0, shipped.output
    assert "quench ship --check" in shipped.output


def test_a_level_that_too_few_rows_decide_about_ships_and_is_said_not_to_have_passed(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = project / "reports/eval/Q4_K_M.json"
    task = json.loads(file.read_text(encoding="utf-8"))["task"]
    answers = (project / "reports/eval/Q4_K_M.answers.jsonl").read_text(encoding="utf-8").splitlines()
    line = [json.loads(answer)["score"] for answer in answers]
    line[0] = max(line[0] - 0.5, 0.0)  # The commonest answer is a little worse, in one row of 64.
    commonest = {"answer": "a | b", "rows": 40, "distinct": 3, "points": {task["scorer"]: line}}
    change(file, task=task | {"commonest": commonest})
    assert command.main(Project(shipping.params(), project), "Q4_K_M", None, None) == 0
    assert "not decided: Whether Q4_K_M is better" in capsys.readouterr().out
    bundle = project / "models/bundle/demo-Q4_K_M"
    assert bundle_faults(bundle) == []
    assert json.loads((bundle / GATE).read_text())["verdict"] == "not decided"
    card = (bundle / CARD).read_text(encoding="utf-8")
    assert "passed the gate" not in card
    assert "\n| always saying “a &#124; b” |" in card


@pytest.mark.parametrize(
    ("text", "rows", "words"),
    [
        ("Sort the ticket.\n\nOne word.", 20, 'SYSTEM """Sort the ticket.\n\nOne word."""\n'),
        ("Sort the ticket.", 14, 'SYSTEM """You are a helpful assistant"""\n'),  # of half of the rows only
        ('Say """yes""".', 28, "No SYSTEM: most training rows have a system prompt, but it has three quotes"),
        ('Say "yes"', 28, "No SYSTEM: most training rows have a system prompt, but it has three quotes"),
        ("Sort \u202ethe ticket.", 28, "but it holds U+202E in line 1"),
    ],
)
def test_the_system_prompt_of_most_training_rows_is_the_bundles(
    text: str, rows: int, words: str, project: Path
) -> None:
    file = project / "reports/labels.json"
    labels = json.loads(file.read_text(encoding="utf-8"))
    assert labels["splits"]["train"]["rows"] == 28
    labels["splits"]["train"]["system_prompt"] = {"text": text, "rows": rows}
    file.write_text(json.dumps(labels), encoding="utf-8")
    assert command.main(Project(shipping.params(), project), "Q4_K_M", None, None) == 0
    bundle = project / "models/bundle/demo-Q4_K_M"
    assert bundle_faults(bundle) == []
    modelfile = (bundle / "Modelfile").read_text(encoding="utf-8")
    assert words in modelfile
    assert modelfile.count("SYSTEM") == 1
    card = (bundle / CARD).read_text(encoding="utf-8")
    assert ("send it with every request" in card) == (rows == 20)


@pytest.mark.parametrize(
    ("epoch", "words"),
    [
        (0.27778, "710 of 849 conversations can be trained; 20 of 72 packed rows were seen (28 %); "),
        (3.0, "710 of 849 conversations can be trained; all 72 packed rows were seen (3.0 epochs); "),
    ],
)
def test_the_card_says_how_many_rows_training_has_seen(epoch: float, words: str, project: Path) -> None:
    change(project / "reports/data.json", rows_kept=849, splits={"train": 712, "val": 67, "test": 70})
    train = {"rows_read": 712, "rows": 710, "packed_rows": 72}
    change(project / "reports/labels.json", splits={"train": train})
    log = project / "reports/train.jsonl"
    steps = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    log.write_text("".join(json.dumps(row | {"epoch": epoch}) + "\n" for row in steps), encoding="utf-8")
    assert command.main(Project(shipping.params(), project), "Q4_K_M", None, None) == 0
    card = (project / "models/bundle/demo-Q4_K_M" / CARD).read_text(encoding="utf-8")
    assert f"\n{words}" in card


def test_the_card_names_where_the_data_comes_from(tmp_path: Path) -> None:
    """Check that text from a data set's card neither ends a table cell nor becomes markup."""
    root = shipping.write_project(tmp_path)
    hub = {"address": "maker/chats", "revision": "c0ffee", "config": "en", "split": "train", "license": "mit"}
    web = {"address": "https://example.test/a.jsonl", "license": "a | <b>`c`"}
    nothing = {"revision": None, "config": None, "split": None}
    change(root / "reports/data.json", sources={"chats-en": hub, "a.jsonl": nothing | web})
    assert command.main(Project(shipping.params(), root), "Q4_K_M", None, None) == 0
    bundle = root / "models/bundle/demo-Q4_K_M"
    assert bundle_faults(bundle) == []
    card = (bundle / CARD).read_text(encoding="utf-8")
    assert "\n| chats-en | maker/chats, config en, split train | `c0ffee` | mit |\n" in card
    assert "\n| a.jsonl | https://example.test/a.jsonl | none | a &#124; &lt;b>'c' |\n" in card
    assert yaml.safe_load(card.split("---")[1])["datasets"] == ["maker/chats"]
