"""Find the compilers that build llama.cpp, for C++ and for the backend that fits this machine's GPU, and
detect their known faults. Standard library only, because it runs before anything is installed.
"""

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pipeline.core.cpu import instructions
from pipeline.core.errors import ConfigError, ToolError
from pipeline.core.hardware import Accelerator, accelerator

NO_COMPILER = (
    "no C++ compiler (c++, g++ or clang++) is on PATH and llama.cpp is built from source: install one with "
    "`sudo apt install g++` (Debian, Ubuntu), `sudo dnf install gcc-c++` (Fedora) or `xcode-select "
    "--install` (macOS), then run `make setup` again"
)
# GCC before 11.5, 12.4 and 13.3 (Debian 12 has 12.2) drops the stores before `_tile_loadconfig`, so that the
# tiles have no rows. llama.cpp then crashes with SIGSEGV or SIGILL at the first product of a quantized matrix
# (gcc.gnu.org/PR114098). This program loads a configuration as llama.cpp does and reads it back.
AMX_CHECK = """
#include <immintrin.h>
struct alignas(64) Tiles { unsigned char palette, start, reserved[14]; unsigned short columns[16]; unsigned char rows[16]; };
__attribute__((noinline)) void load() {
    Tiles tiles = {};
    tiles.palette = 1;
    for (int i = 0; i < 8; i++) { tiles.rows[i] = 16; tiles.columns[i] = 64; }
    _tile_loadconfig(&tiles);
}
int main() {
    load();
    Tiles found = {};
    _tile_storeconfig(&found);
    return !(found.rows[7] == 16 && found.columns[7] == 64);
}
"""  # noqa: E501
WITHOUT_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
SECONDS = 120
BackendName = Literal["cpu", "cuda", "hip", "vulkan"]
BACKENDS: tuple[BackendName, ...] = get_args(BackendName)
SWITCHES: Mapping[BackendName, str] = {
    "cuda": "-DGGML_CUDA=ON",
    "hip": "-DGGML_HIP=ON",
    "vulkan": "-DGGML_VULKAN=ON",
}
TRIED: Mapping[str, tuple[BackendName, ...]] = {"cuda": ("cuda", "vulkan"), "rocm": ("hip", "vulkan")}
# Each program includes and links what llama.cpp's CMake files require, and has a line for the GPU.
PROGRAMS: Mapping[str, str] = {
    "check.cu": """
#include <cublas_v2.h>
#include <cuda.h>
__global__ void kernel() {}
int main() { cublasHandle_t handle; kernel<<<1, 1>>>(); return cublasCreate(&handle) + cuInit(0); }
""",
    "check.hip": """
#include <hip/hip_runtime.h>
#include <hipblas/hipblas.h>
#include <rocblas/rocblas.h>
__global__ void kernel() {}
int main() { hipblasHandle_t handle; kernel<<<1, 1>>>(); return hipblasCreate(&handle); }
""",
    "check.comp": "#version 450\nvoid main() {}\n",
    "check.cpp": """
#include <spirv/unified1/spirv.hpp>
#include <vulkan/vulkan.h>
#if !__has_include(<vulkan/vulkan.hpp>)
#error vulkan/vulkan.hpp is missing
#endif
#if VK_HEADER_VERSION < 272
#error Vulkan headers are older than 1.3.272, which has the layer settings that llama.cpp uses
#endif
int main() { unsigned version; return vkEnumerateInstanceVersion(&version); }
""",
}
TO_INSTALL: Mapping[str, str] = {
    "cuda": "the CUDA toolkit (nvcc and cuBLAS)",
    "hip": "ROCm with hipcc, hipBLAS and rocBLAS",
    "vulkan": "Vulkan's headers, 1.3.272 or newer, and shader compiler (Debian 13, Ubuntu 24.04: `sudo apt "
    "install libvulkan-dev glslc spirv-headers`)",
}


@dataclass(frozen=True)
class Backend:
    """llama.cpp backend: CMake's `flags`, its compiler's version, and the reason (`why`) it was chosen."""

    name: BackendName = "cpu"
    flags: tuple[str, ...] = ()
    compiler: str = ""
    why: str = ""


def find_compiler() -> str:
    """Return CMake's C++ compiler: $CXX or the first of c++, g++, clang++.

    Raises `ToolError` if there is none.
    """
    for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        if name and shutil.which(name.split()[0]):
            return name
    raise ToolError("Q-LLAMACPP-007", NO_COMPILER)


def amx_flags(compiler: str) -> list[str]:
    """Return CMake's flags that leave AMX out if this compiler miscompiles it; empty on a CPU without AMX."""
    if "amx_tile" not in instructions() or compiles_amx(compiler):
        return []
    print(
        f"{compiler} makes wrong code for this CPU's AMX instructions: llama.cpp is built without them",
        flush=True,
    )
    return [
        f"-DCMAKE_{language}_FLAGS={os.environ.get(variable, '')} {WITHOUT_AMX}"
        for language, variable in (("C", "CFLAGS"), ("CXX", "CXXFLAGS"))
    ]


def compiles_amx(compiler: str) -> bool:
    """Return True if `AMX_CHECK` by `compiler`, with llama.cpp's optimization, runs correctly on this CPU."""
    with tempfile.TemporaryDirectory(prefix="quench-amx-") as folder:
        source = Path(folder) / "check.cpp"
        program = Path(folder) / "check"
        source.write_text(AMX_CHECK, encoding="ascii")
        try:
            for command in (
                [*shlex.split(compiler), "-O3", "-march=native", str(source), "-o", str(program)],
                [str(program)],
            ):
                subprocess.run(command, capture_output=True, timeout=SECONDS, check=True)
        except (OSError, subprocess.SubprocessError):
            return False
    return True


def choose_backend(wanted: str | None) -> Backend:
    """Return the backend that `wanted` names, or the one that fits the GPU that is there and compiles here,
    otherwise the CPU's; `why` gives the reason in words.

    Raises `ConfigError` for an unknown name, `ToolError` if the named one can't be compiled.
    """
    if wanted not in (None, "", "auto", *BACKENDS):
        raise ConfigError(
            "Q-LLAMACPP-022", f"LLAMA={wanted} is not a build of llama.cpp: auto, {', '.join(BACKENDS)} are"
        )
    try:
        card = accelerator()
    except (ToolError, OSError) as error:
        if wanted in (None, "", "auto"):
            return Backend(why=f"no GPU can be seen: {getattr(error, 'sentence', error)}")
        card = None
    if wanted in BACKENDS:
        backend = try_backend(wanted, card)
        if isinstance(backend, str):
            raise ToolError(
                "Q-LLAMACPP-023",
                f"llama.cpp can't be built for {wanted} here ({backend}): install {TO_INSTALL[wanted]}, or "
                "take another (LLAMA=auto)",
            )
        return backend
    if card is None:
        return Backend(why="no GPU is seen here")
    reasons = []
    for name in TRIED[card.kind]:
        backend = try_backend(name, card)
        if not isinstance(backend, str):
            return backend
        reasons.append(f"{name}: {backend}")
    install = " or ".join(TO_INSTALL[name] for name in TRIED[card.kind])
    return Backend(
        why=f"{card.name} is there, but nothing compiles for it ({'; '.join(reasons)}): install {install}, "
        "then run `make setup LLAMA=auto`"
    )


def try_backend(name: BackendName, card: Accelerator | None) -> Backend | str:
    """Return the backend if a small program compiles and links with all it needs, otherwise the reason."""
    on = f"for {card.name}" if card else "asked for"
    architecture = card.capability if card else None
    if name == "cuda":
        tool = _program_path("nvcc", os.environ.get("CUDACXX"), "/usr/local/cuda/bin/nvcc")
        number = architecture.replace(".", "") if architecture and card and card.kind == "cuda" else None
        build = [*([f"-arch=sm_{number}"] if number else []), "check.cu", "-lcublas", "-lcuda"]
        flags = [f"-DCMAKE_CUDA_COMPILER={tool}", *([f"-DCMAKE_CUDA_ARCHITECTURES={number}"] * bool(number))]
        tried = _compiled(tool, "nvcc", [build])
    elif name == "hip":
        tool = _program_path("hipcc", "/opt/rocm/bin/hipcc")
        target = architecture if card and card.kind == "rocm" else None
        build = [*([f"--offload-arch={target}"] if target else []), "check.hip", "-lhipblas", "-lrocblas"]
        flags = [f"-DGPU_TARGETS={target}"] if target else []
        tried = _compiled(tool, "hipcc", [build])
    elif name == "vulkan":
        tool = _program_path("glslc")
        flags = []
        tried = _compiled(tool, "glslc", [["-fshader-stage=compute", "check.comp"]]) or _compiled(
            find_compiler(), "c++", [["check.cpp", "-lvulkan"]]
        )
    else:
        return Backend(why=on)
    if tried:
        return tried
    return Backend(name, (SWITCHES[name], *flags), version_of(str(tool)), f"{on}, with {tool}")


def version_of(compiler: str) -> str:
    """Return a compiler's own version line."""
    return subprocess.run(
        [*shlex.split(compiler), "--version"], capture_output=True, text=True, check=False
    ).stdout.strip()


def _program_path(name: str, *elsewhere: str | None) -> str | None:
    """Return the tool's path: on PATH, otherwise the first of `elsewhere` that exists."""
    return next(filter(None, map(shutil.which, filter(None, (name, *elsewhere)))), None)


def _compiled(tool: str | None, name: str, commands: Sequence[Sequence[str]]) -> str | None:
    """Return None if `tool` compiles and links the programs, otherwise the reason in a few words."""
    if tool is None:
        return f"{name} is not on PATH"
    with tempfile.TemporaryDirectory(prefix="quench-compiler-") as folder:
        for file, text in PROGRAMS.items():
            (Path(folder) / file).write_text(text, encoding="ascii")
        for words in commands:
            try:
                done = subprocess.run(
                    [*shlex.split(tool), *words, "-o", "check"],
                    cwd=folder,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=SECONDS,
                    check=False,
                )
            except (OSError, subprocess.SubprocessError) as error:
                return f"{name} does not run: {error}"
            if done.returncode != 0:
                lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
                fault = next((line for line in lines if "error" in line.lower()), (lines or ["no reason"])[0])
                return f"{name} fails: {fault[:160]}"
    return None
