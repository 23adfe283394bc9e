"""The build of llama.cpp: what makes it reused, what makes it redone, what a user reads if it can't be."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from make import ended, script
from needed import need

from pipeline.core import progress
from pipeline.core.errors import MachineError, ToolError
from pipeline.core.places import PROJECT
from pipeline.core.publish import write_json
from pipeline.core.rights import changed_by_others
from pipeline.llamacpp import build as toolchain
from pipeline.llamacpp import compiler, stamp, tools
from pipeline.llamacpp.tools import DEFAULT_HOME, TOOLS, run_tool

OTHER = 12345  # a user and a group that this one is not


def with_source(home: Path) -> Path:
    """A home whose source has already arrived."""
    (home / "source").mkdir(parents=True)
    (home / "source" / ".sdist-sha256").write_text(stamp.SDIST_SHA256 + "\n")
    return home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose source has already arrived, without a cache of builds that other checkouts made."""
    monkeypatch.setenv("QUENCH_CACHE", "off")
    return with_source(tmp_path / "home")


@pytest.fixture
def fake_tools(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """cmake notes that it ran; ninja "builds" every tool it is asked for, with ninja's progress lines; the
    folder they are in.
    """
    folder = home.parent / "bin"
    script(folder / "c++", "")
    script(
        folder / "cmake",
        f'echo configured >> {home}/ran\n[ -z "$FAIL" ] || {{ echo "no such generator"; exit 1; }}',
    )
    ninja = f"""[ -z "$FAIL_BUILD" ] || {{ echo "[1/2] x.cpp"; echo "x.cpp:1: error: expected ;"; exit 1; }}
while [ "${{1#llama-}}" = "$1" ]; do shift; done
n=0
for tool in "$@"; do
  n=$((n + 1)); echo "[$n/$#] $tool"
  mkdir -p {home}/build/bin && echo "#!/bin/sh" > {home}/build/bin/$tool && chmod +x {home}/build/bin/$tool
done
"""
    script(folder / "ninja", ninja)
    monkeypatch.setattr(toolchain.sys, "executable", str(folder / "python"))  # its folder comes first on PATH
    return folder


def test_builds_stamps_and_reuses(
    home: Path, fake_tools: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    toolchain.build(home)
    assert "100%" in capsys.readouterr().err
    assert toolchain.is_built(home)
    assert (home / "ran").read_text() == "configured\n"
    assert "llama-quantize" in (home / "build.log").read_text()
    toolchain.build(home)
    assert (home / "ran").read_text() == "configured\n"
    assert capsys.readouterr().out == ""


def test_progress_starts_with_the_plan_and_never_goes_back(tmp_path: Path) -> None:
    steps: list[int] = []
    lines = "[1/1] Re-running CMake\n[1/4] a\n[3/4] b\n[3/6] c\n[6/6] d\n"
    toolchain._logged(["printf", lines], tmp_path / "log", steps.append)
    assert steps == [25, 50, 0, 25]


def test_a_build_within_the_build_is_not_its_end(tmp_path: Path) -> None:
    """Vulkan's shader compiler is built by a ninja of its own, whose last step once said 100 %."""
    steps: list[int] = []
    toolchain._logged(["printf", "[1/8] a\n[3/3] inner\n[4/8] b\n"], tmp_path / "log", steps.append)
    assert sum(steps) == 50


@pytest.mark.parametrize(
    "damage",
    [
        lambda home: (home / "stamp.json").unlink(),
        lambda home: (home / "stamp.json").write_text("{"),
        lambda home: write_json(home / "stamp.json", stamp.stamp() | {"cmake_flags": []}),
        lambda home: write_json(home / "stamp.json", stamp.stamp() | {"sdist_sha256": "0" * 64}),
        lambda home: (home / "build" / "bin" / TOOLS[-1]).unlink(),
        lambda home: (home / "build" / "bin" / TOOLS[0]).chmod(0o644),
    ],
    ids=["no stamp", "torn stamp", "other flags", "other source", "tool gone", "tool not executable"],
)
def test_a_build_that_is_not_the_one_is_done_again(home: Path, fake_tools: Path, damage: object) -> None:
    toolchain.build(home)
    damage(home)  # type: ignore[operator]
    assert not toolchain.is_built(home)
    toolchain.build(home)
    assert toolchain.is_built(home)
    assert (home / "ran").read_text() == "configured\n" * 2


def test_an_unfinished_build_goes_on_only_where_it_was_configured(home: Path, fake_tools: Path) -> None:
    toolchain.build(home)
    (home / "build" / "CMakeCache.txt").write_text(
        f"CMAKE_HOME_DIRECTORY:INTERNAL={home / 'source' / 'vendor' / 'llama.cpp'}\n"
    )
    kept = home / "build" / "object.o"
    kept.touch()
    (home / "stamp.json").unlink()
    toolchain.build(home)
    assert kept.exists()  # here it was made: ninja goes on
    (home / "stamp.json").unlink()
    moved = home.rename(home.with_name("elsewhere"))
    assert not toolchain.is_built(moved)
    toolchain._forget_foreign_build(moved, compiler.Backend())
    assert not (moved / "build").exists()


def test_a_finished_build_is_used_from_a_copy(
    home: Path, fake_tools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toolchain.build(home)
    capsys.readouterr()
    copied = Path(shutil.copytree(home, home.with_name("copied"), symlinks=True))
    shutil.rmtree(home)
    for tool in ("cmake", "ninja", "c++"):
        (fake_tools / tool).unlink()
    toolchain.build(copied)
    assert capsys.readouterr().out == ""


@pytest.fixture
def kept(
    home: Path, fake_tools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Path:
    """`home` is built, and the cache, which is the user's by default, holds it; the entry's folder."""
    monkeypatch.delenv("QUENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home.parent / "cache"))
    toolchain.build(home)
    (entry,) = (home.parent / "cache" / "quench" / "llama.cpp").glob("[!.]*")
    capsys.readouterr()
    return entry


def build_again(home: Path) -> None:
    """Build where there is no stamp any more."""
    (home / "stamp.json").unlink()
    toolchain.build(home)
    assert toolchain.is_built(home)


def configured(home: Path) -> int:
    """Return how often the fake cmake ran."""
    return (home / "ran").read_text().count("configured")


def test_another_checkout_takes_the_build_from_the_cache(
    home: Path, kept: Path, fake_tools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for tool in ("cmake", "ninja"):
        (fake_tools / tool).unlink()
    other = with_source(home.with_name("other"))
    toolchain.build(other)
    assert toolchain.is_built(other)
    assert str(kept.parent) in capsys.readouterr().out
    shutil.rmtree(kept)  # the copy stands alone
    toolchain.build(other)
    assert toolchain.is_built(other)


@pytest.mark.parametrize(
    "change",
    [
        lambda kept, patch: patch.setenv("QUENCH_CACHE", "off"),
        lambda kept, patch: patch.setenv("QUENCH_CACHE", str(kept.parent / "elsewhere")),
        lambda kept, patch: patch.setenv("CXXFLAGS", "-O1"),
        lambda kept, patch: patch.setenv(
            "CXX", str(script(kept.parents[3] / "bin" / "c++", "echo another version"))
        ),
        lambda kept, patch: patch.setattr(stamp, "instructions", lambda: {"sse2"}),
        lambda kept, patch: (kept / "build" / "bin" / TOOLS[1]).write_text("torn"),
        lambda kept, patch: (kept / "stamp.json").unlink(),
        lambda kept, patch: (kept / "build" / "bin" / TOOLS[1]).chmod(0o757),
        lambda kept, patch: kept.parent.chmod(0o777),
    ],
    ids=[
        "switched off",
        "another cache",
        "other flags",
        "another compiler",
        "another CPU",
        "damaged",
        "half",
        "a program that others can write",
        "a folder where others can put another",
    ],
)
def test_what_is_not_the_very_build_is_compiled(
    home: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[..., object]
) -> None:
    change(kept, monkeypatch)
    build_again(home)
    assert configured(home) == 2


def linked_to_anothers(kept: Path) -> None:
    other = kept.rename(kept.parents[3] / "others")
    os.chown(other, OTHER, -1)
    kept.symlink_to(other)


def shared_by_a_group(path: Path, mode: int) -> None:
    os.chown(path, -1, OTHER)
    path.chmod(mode)


@pytest.mark.skipif(os.geteuid() != 0, reason=need("root, who can be two users"))
@pytest.mark.parametrize(
    "change",
    [
        lambda kept: os.chown(kept / "build" / "bin" / TOOLS[1], OTHER, -1),
        lambda kept: os.chown(kept.parent, OTHER, -1),
        lambda kept: shared_by_a_group(kept / "build" / "bin" / TOOLS[1], 0o775),
        lambda kept: shared_by_a_group(kept / "build" / "bin", 0o2775),
        linked_to_anothers,
    ],
    ids=["a program", "a folder on the way", "a group's program", "a setgid folder", "a link"],
)
def test_what_belongs_to_others_is_not_the_very_build(
    home: Path, kept: Path, change: Callable[[Path], object]
) -> None:
    change(kept)
    build_again(home)
    assert configured(home) == 2


def test_nothing_of_a_build_that_others_can_change_runs(home: Path, kept: Path) -> None:
    script(kept / "build" / "bin" / "llama-server", f"touch {home}/ran-it").chmod(0o777)
    write_json(kept / "stamp.json", stamp.read_stamp(kept) | {"tree_sha256": stamp.tree_hash(kept / "build")})
    build_again(home)
    assert not (home / "ran-it").exists()


def test_an_installed_llama_cpp_that_others_can_change_is_refused(
    home: Path, fake_tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolchain.build(home)
    for module in (tools, toolchain):
        monkeypatch.setattr(module, "DEFAULT_HOME", home)
    monkeypatch.setattr(tools, "IS_CHECKOUT", False)
    script(home / "source/vendor/llama.cpp/convert_hf_to_gguf.py", "")
    monkeypatch.delenv("LLAMA_CPP_HOME", raising=False)
    assert tools.find_toolchain().bin == home / "build" / "bin"
    (home / "source").chmod(0o777)
    for ask in (tools.find_toolchain, toolchain.build):
        with pytest.raises(ToolError) as refused:
            ask(*[home] * (ask is toolchain.build))
        assert refused.value.id == "Q-LLAMACPP-025"


def test_a_build_is_closed_to_others_whatever_the_umask(
    home: Path, fake_tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = home.parent / "shared"
    shared.mkdir()
    shared.chmod(0o2755)
    monkeypatch.setenv("QUENCH_CACHE", str(shared))
    before = os.umask(0)
    try:
        toolchain.build(home)
    finally:
        os.umask(before)
    assert changed_by_others(home) is None
    assert changed_by_others(shared / "llama.cpp") is None


@pytest.mark.parametrize("kind", ["held", "a named pipe", "a link"])
def test_a_lock_of_the_cache_that_never_comes_costs_a_line_and_a_compilation(
    home: Path, kept: Path, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stamp, "LOCK_SECONDS", 0.2)
    lock = kept.parent / ".lock"
    lock.unlink()
    if kind == "a named pipe":
        os.mkfifo(lock)
    elif kind == "a link":
        lock.symlink_to(home.parent / "elsewhere")
    (home / "stamp.json").unlink()
    with (lock if kind == "held" else home.parent / "other").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        toolchain.build(home)
    assert configured(home) == 2
    assert "QUENCH_CACHE=off" in capsys.readouterr().out
    assert not (home.parent / "elsewhere").exists()


def test_a_damaged_build_in_the_cache_is_replaced(home: Path, kept: Path) -> None:
    (kept / "build" / "bin" / TOOLS[1]).write_text("torn")
    build_again(home)
    build_again(home)
    assert configured(home) == 2
    assert [path.name for path in kept.parent.iterdir() if path.name != ".lock"] == [kept.name]


def test_a_cache_that_cannot_be_written_costs_a_line(
    home: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home.parent / "file").touch()
    monkeypatch.setenv("QUENCH_CACHE", str(home.parent / "file"))
    build_again(home)
    assert "QUENCH_CACHE=off" in capsys.readouterr().out


def test_set_ups_at_once_share_the_cache(home: Path, kept: Path, fake_tools: Path) -> None:
    """While a process publishes the entry over and over, others take it: none sees half, so none compiles."""
    homes = [with_source(home.with_name(f"other{number}")) for number in range(3)]
    again = (
        "import sys; from pathlib import Path; from pipeline.llamacpp import stamp, compiler; "
        "assert hasattr(stamp, '_is_complete'); stamp._is_complete = lambda entry: False\n"
        "print(flush=True)\nwhile True: stamp.keep(Path(sys.argv[1]), compiler.find_compiler())"
    )
    with subprocess.Popen(
        [Path(sys.prefix) / "bin" / "python", "-c", again, home], stdout=subprocess.PIPE
    ) as publisher:
        assert publisher.stdout
        assert publisher.stdout.readline()
        for one in homes:
            toolchain.build(one)
        assert publisher.poll() is None
        publisher.kill()
    assert all(toolchain.is_built(one) for one in homes)
    assert configured(home) == 1


def test_a_busy_machine_costs_no_build(home: Path, fake_tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain.build(home)
    script(home / "build" / "bin" / "llama-server", "exec sleep 9")
    monkeypatch.setattr(stamp, "SECONDS_TO_START", 0.1)
    assert toolchain.is_built(home)


@pytest.mark.parametrize(
    "strange",
    [
        lambda home: write_json(home / "stamp.json", stamp.stamp() | {"instructions": ["avx1024"]}),
        lambda home: script(home / "build" / "bin" / "llama-server", "exit 127"),
        lambda home: (home / "build" / "bin" / "llama-server").write_bytes(b"\x7fELF of another machine"),
    ],
    ids=["CPU lacks an instruction", "a library is missing", "another architecture"],
)
def test_a_copied_build_that_does_not_run_here_is_made_again(
    home: Path, fake_tools: Path, strange: object
) -> None:
    toolchain.build(home)
    made_there = home / "build" / "object.o"
    made_there.touch()
    strange(home)  # type: ignore[operator]
    assert not toolchain.is_built(home)
    toolchain.build(home)
    assert toolchain.is_built(home)
    assert not made_there.exists()  # ninja would take it for its own


def test_a_failed_build_shows_the_reason_and_leaves_no_stamp(
    home: Path, fake_tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIL_BUILD", "1")
    with pytest.raises(ToolError, match=r"Q-LLAMACPP-005.* 1 .*build\.log(.|\n)*error: expected ;"):
        toolchain.build(home)
    assert not (home / "stamp.json").exists()
    monkeypatch.delenv("FAIL_BUILD")
    monkeypatch.setenv("FAIL", "1")
    with pytest.raises(ToolError, match=r"Q-LLAMACPP-005.*cmake failed(.|\n)*no such generator"):
        toolchain.build(home)
    monkeypatch.delenv("FAIL")
    toolchain.build(home)
    assert toolchain.is_built(home)


def test_two_builds_at_once_are_refused(home: Path, fake_tools: Path) -> None:
    with (home / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(MachineError, match="Q-LLAMACPP-006"):
            toolchain.build(home)
    toolchain.build(home)
    assert toolchain.is_built(home)


def test_missing_compiler_is_one_sentence_with_the_remedy(
    home: Path, fake_tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(home))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ToolError, match="Q-LLAMACPP-007"):
        toolchain.build(home)
    monkeypatch.setenv("CXX", "/nowhere/clang++ -O1")
    with pytest.raises(ToolError):
        compiler.find_compiler()
    mine = script(home / "mine", "")
    monkeypatch.setenv("CXX", f"{mine} -O1")
    assert compiler.find_compiler() == f"{mine} -O1"


def test_a_compiler_that_makes_wrong_code_for_amx_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GCC 12.2 drops the tiles' configuration when it optimizes (PR114098), and llama.cpp dies of it at the
    first quantized matrix.
    """
    wrong = script(tmp_path / "wrong", "while [ $# -gt 1 ]; do shift; done; cp /bin/false $1")
    right = script(tmp_path / "right", "while [ $# -gt 1 ]; do shift; done; cp /bin/true $1")
    assert compiler.compiles_amx(str(right))
    assert not compiler.compiles_amx(str(wrong)) and not compiler.compiles_amx(str(tmp_path / "none"))
    monkeypatch.setattr(compiler, "instructions", lambda: {"sse2", "amx_tile"})
    monkeypatch.setenv("CXXFLAGS", "-g")
    assert compiler.amx_flags(str(right)) == []
    assert f"-DCMAKE_CXX_FLAGS=-g {compiler.WITHOUT_AMX}" in compiler.amx_flags(str(wrong))
    monkeypatch.setattr(compiler, "instructions", lambda: {"sse2"})
    assert compiler.amx_flags(str(wrong)) == []


@pytest.mark.skipif("amx_tile" not in compiler.instructions(), reason=need("a CPU with AMX"))
def test_what_checks_amx_passes_where_the_compiler_is_right(tmp_path: Path) -> None:
    plain = script(
        tmp_path / "plain",
        'for one; do shift; [ "$one" = -O3 ] || set -- "$@" "$one"; done\nexec c++ -O0 "$@"',
    )
    assert compiler.compiles_amx(str(plain))


@pytest.mark.parametrize("built", [False, True])
def test_check_compiler_before_anything_is_installed(tmp_path: Path, built: bool) -> None:
    """`make setup` asks first, with a standard-library-only Python; a finished build needs no compiler."""
    if not built:
        code = "t.DEFAULT_HOME = Path('nowhere'); exit(t.main(['--check-compiler']))"
        imports = "from sys import exit; from pathlib import Path; from pipeline.llamacpp import build as t; "
        command = [sys.executable, "-S", "-c", imports + code]
    else:
        command = [sys.executable, "-S", "-m", "pipeline.llamacpp.build", "--check-compiler"]
    environment = {
        name: value for name, value in os.environ.items() if name not in ("CXX", "LLAMA_CPP_HOME")
    } | {"PATH": str(tmp_path)}
    done = ended(command, cwd=PROJECT, env=environment)
    if built and toolchain.is_built(DEFAULT_HOME):
        assert (done.returncode, done.stderr) == (0, "")
    elif not built:
        assert done.returncode == 4
        assert "Q-LLAMACPP-007" in done.stderr and done.stderr.count("\n") == 1


def test_this_projects_toolchain_is_stamped() -> None:
    if os.environ.get("LLAMA_CPP_HOME"):
        pytest.skip("LLAMA_CPP_HOME is set: another build is used")
    assert toolchain.is_built(DEFAULT_HOME)


def test_the_tools_take_the_libraries_beside_them(tmp_path: Path) -> None:
    """A copied build must not live on libraries of the place where it was made, which may go away."""
    if os.environ.get("LLAMA_CPP_HOME"):
        pytest.skip("LLAMA_CPP_HOME is set: another build is used")
    shutil.copytree(DEFAULT_HOME / "build" / "bin", tmp_path / "build" / "bin", symlinks=True)
    assert stamp.runs(tmp_path)
    for library in (tmp_path / "build" / "bin").glob("libggml-base.*"):
        library.unlink()
    assert not stamp.runs(tmp_path)


def test_a_home_without_what_is_looked_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LLAMA_CPP_HOME", raising=False)
    server = script(tmp_path / "build/bin/llama-server", "")
    with pytest.raises(ToolError, match="Q-LLAMACPP-018"):
        tools.find_toolchain(str(tmp_path))
    (tmp_path / "convert_hf_to_gguf.py").touch()
    checkout = tools.find_toolchain(str(tmp_path))
    assert (checkout.source, checkout.tool("llama-server")) == (tmp_path, server)
    with pytest.raises(ToolError, match="Q-LLAMACPP-017: llama-quantize "):
        checkout.tool("llama-quantize")


def test_a_tool_that_fails_says_its_last_lines() -> None:
    with pytest.raises(ToolError, match=r"Q-LLAMACPP-019.*status 7(?s:.*)gone wrong$"):
        run_tool([sys.executable, "-c", "print('gone wrong'); raise SystemExit(7)"])


def test_the_metadata_that_a_converter_writes_does_not_hide_why_it_failed() -> None:
    fields = json.dumps({"fields": {"general.note": "a word " * 300}})
    with pytest.raises(ToolError) as refusal:
        run_tool([sys.executable, "-c", "print('gone wrong'); raise SystemExit(7)", fields])
    sentence = str(refusal.value)
    assert sentence.endswith("…\ngone wrong")
    assert '{"fields"' in sentence and len(sentence) < 300 + len(sys.executable)
