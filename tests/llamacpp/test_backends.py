"""The backend of llama.cpp's build. The compilers are small scripts on a separate PATH, some with a fault."""

from pathlib import Path

import pytest
from make import script

from pipeline.core.errors import ConfigError, ToolError
from pipeline.llamacpp import build as toolchain
from pipeline.llamacpp import compiler, stamp
from pipeline.llamacpp.compiler import Backend, choose_backend

RTX = 'echo "NVIDIA GeForce RTX 4060, 8188, 580.95, 8.9"'
RADEON = 'printf "Agent 1\\n  Name:    gfx1100\\n  Marketing Name:  AMD Radeon\\n  Device Type:     GPU\\n"'
WORKS = 'echo "$@" >> "$0.asked"; [ "$1" != --version ] || echo "$(basename "$0") 13.0"'
FAILS = 'echo "check.cu:2:10: fatal error: cublas_v2.h: No such file or directory" >&2; exit 1'


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The first folder on PATH; the compilers of this machine are out of reach."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setattr(
        compiler, "_program_path", lambda name, *_: compiler.shutil.which(name, path=str(tmp_path))
    )
    for name in ("CXX", "CUDACXX", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    script(tmp_path / "c++", WORKS)
    return tmp_path


@pytest.mark.parametrize(
    ("there", "chosen", "flags"),
    [
        ({}, "cpu", ()),
        ({"nvcc": WORKS, "glslc": WORKS}, "cpu", ()),  # compilers, and no card
        ({"nvidia-smi": RTX}, "cpu", ()),
        ({"nvidia-smi": RTX, "nvcc": FAILS}, "cpu", ()),
        ({"nvidia-smi": RTX, "nvcc": WORKS, "glslc": WORKS}, "cuda", ("-DCMAKE_CUDA_ARCHITECTURES=89",)),
        ({"nvidia-smi": RTX, "nvcc": FAILS, "glslc": WORKS}, "vulkan", ()),
        ({"nvidia-smi": RTX, "glslc": WORKS, "c++": FAILS}, "cpu", ()),
        ({"nvidia-smi": "exit 9", "nvcc": WORKS}, "cpu", ()),
        ({"rocminfo": RADEON, "hipcc": WORKS, "nvcc": WORKS}, "hip", ("-DGPU_TARGETS=gfx1100",)),
        ({"rocminfo": RADEON, "glslc": WORKS}, "vulkan", ()),
    ],
)
def test_the_backend_is_what_the_card_takes_and_the_compilers_make(
    tools: Path, there: dict[str, str], chosen: str, flags: tuple[str, ...]
) -> None:
    for name, text in there.items():
        script(tools / name, text)
    found = choose_backend(None)
    assert found.name == chosen and set(flags) <= set(found.flags)
    assert (compiler.SWITCHES.get(found.name) in found.flags) == (chosen != "cpu")
    assert found.why and "\n" not in found.why


def test_what_keeps_a_card_from_being_used_is_said_with_the_remedy(tools: Path) -> None:
    script(tools / "nvidia-smi", RTX)
    script(tools / "nvcc", FAILS)
    why = choose_backend("auto").why
    assert all(word in why for word in ("RTX 4060", "cublas_v2.h", "glslc", "LLAMA=auto"))


def test_the_card_is_what_nvcc_is_tried_for(tools: Path) -> None:
    script(tools / "nvidia-smi", RTX)
    script(tools / "nvcc", WORKS)
    choose_backend(None)
    assert "-arch=sm_89" in (tools / "nvcc.asked").read_text()


def test_a_backend_that_was_named_is_built_or_refused(tools: Path) -> None:
    script(tools / "glslc", WORKS)
    assert choose_backend("vulkan").name == "vulkan"
    script(tools / "nvidia-smi", RTX)
    assert choose_backend("cpu") == Backend(why=choose_backend("cpu").why)
    with pytest.raises(ToolError, match="Q-LLAMACPP-023"):
        choose_backend("cuda")
    with pytest.raises(ConfigError, match="Q-LLAMACPP-022"):
        choose_backend("metal")


def test_vulkan_headers_that_are_too_old_are_seen_before_anything_is_built(
    tools: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian 12's 1.3.239 compiled a small program, and failed after 199 of llama.cpp's 553 steps."""
    include = tmp_path_factory.mktemp("include")
    for name in ("spirv/unified1/spirv.hpp", "vulkan/vulkan.hpp", "vulkan/vulkan.h"):
        (include / name).parent.mkdir(parents=True, exist_ok=True)
        (include / name).write_text("#define VK_HEADER_VERSION 239\n")
    script(tools / "glslc", WORKS)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setenv("CXX", "/usr/bin/c++")
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(include))  # before the machine's own
    with pytest.raises(ToolError, match=r"Q-LLAMACPP-023.*older than 1\.3\.272"):
        choose_backend("vulkan")


CUDA = Backend("cuda", ("-DGGML_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=89"), "nvcc 13.0", "for a card")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with its source, whose cmake notes its flags and fails for CUDA if $FAIL is set."""
    home, bin = tmp_path / "home", tmp_path / "bin"
    (home / "source").mkdir(parents=True)
    (home / "source" / ".sdist-sha256").write_text(stamp.SDIST_SHA256 + "\n")
    script(bin / "c++", "")
    script(
        bin / "cmake",
        f'mkdir -p {home}/build; echo "$@" >> {home}/ran\n'
        f'case "$*" in *GGML_CUDA*) [ -z "$FAIL" ] || exit 1; '
        f"echo GGML_CUDA:BOOL=ON > {home}/build/CMakeCache.txt;; esac\n"
        f"echo CMAKE_HOME_DIRECTORY:INTERNAL={home}/source/vendor/llama.cpp >> {home}/build/CMakeCache.txt",
    )
    script(
        bin / "ninja",
        f'while [ "${{1#llama-}}" = "$1" ]; do shift; done; mkdir -p {home}/build/bin\n'
        f'for tool; do printf "#!/bin/sh\\n" > {home}/build/bin/$tool; chmod +x {home}/build/bin/$tool; done',
    )
    monkeypatch.setattr(toolchain.sys, "executable", str(bin / "python"))
    monkeypatch.setenv("PATH", f"{bin}:/usr/bin:/bin")
    monkeypatch.setenv("QUENCH_CACHE", str(tmp_path / "cache"))
    return home


def choosing(monkeypatch: pytest.MonkeyPatch, backend: Backend) -> None:
    monkeypatch.setattr(toolchain, "choose_backend", lambda wanted: Backend() if wanted == "cpu" else backend)


def configured(home: Path) -> list[bool]:
    """For each time that cmake ran, whether it was for CUDA."""
    return ["GGML_CUDA" in line for line in (home / "ran").read_text().splitlines()]


def test_a_choice_once_made_stays_until_another_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    choosing(monkeypatch, Backend(why="no card here"))
    toolchain.build(home)
    assert "no card here" in capsys.readouterr().out
    choosing(monkeypatch, CUDA)  # a card has come
    toolchain.build(home)
    assert configured(home) == [False] and capsys.readouterr().out == ""
    toolchain.build(home, "auto")
    assert configured(home) == [False, True] and toolchain.is_built(home, CUDA.flags)
    toolchain.build(home)
    toolchain.build(home, "cuda")
    assert configured(home) == [False, True]
    toolchain.build(home, "cpu")  # the cache has it
    assert configured(home) == [False, True] and toolchain.is_built(home, ())


def test_what_cmake_remembers_of_another_backend_is_forgotten(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUENCH_CACHE", "off")
    choosing(monkeypatch, CUDA)
    toolchain.build(home)
    toolchain.build(home, "cpu")
    assert configured(home) == [True, False]
    assert "GGML_CUDA" not in (home / "build" / "CMakeCache.txt").read_text()


def test_a_backend_that_does_not_build_costs_a_line_unless_it_was_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    choosing(monkeypatch, CUDA)
    monkeypatch.setenv("FAIL", "1")
    with pytest.raises(ToolError, match="Q-LLAMACPP-005"):
        toolchain.build(home, "cuda")
    toolchain.build(home)
    assert toolchain.is_built(home, ()) and "CPU" in capsys.readouterr().out


def test_builds_for_other_cards_and_compilers_are_kept_apart() -> None:
    others = [
        Backend("cuda", ("-DGGML_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=120"), "nvcc 13.0"),
        Backend("cuda", CUDA.flags, "nvcc 13.1"),
        Backend("vulkan", ("-DGGML_VULKAN=ON",)),
        Backend(),
    ]
    assert len({stamp.entry_name("true", one) for one in (CUDA, *others)}) == 5
