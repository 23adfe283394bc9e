"""The C++ compiler that builds llama.cpp, and what it can't be trusted with. Standard library only: it runs
before anything is installed.
"""

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from pipeline.core.cpu import instructions
from pipeline.core.errors import ToolError

NO_COMPILER = (
    "no C++ compiler (c++, g++ or clang++) is on PATH and llama.cpp is built from source: install one with "
    "`sudo apt install g++` (Debian, Ubuntu), `sudo dnf install gcc-c++` (Fedora) or `xcode-select "
    "--install` (macOS), then run `make setup` again"
)
# GCC before 11.5, 12.4 and 13.3 (Debian 12 has 12.2) drops the stores before `_tile_loadconfig`, so that the
# tiles have no rows, and llama.cpp ends in SIGSEGV or SIGILL at the first product of a quantized matrix
# (gcc.gnu.org/PR114098). This loads a configuration as llama.cpp does and reads it back
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


def find_compiler() -> str:
    """The C++ compiler that CMake will take: $CXX or the first of c++, g++, clang++. Raises `ToolError` if
    there is none.
    """
    for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        if name and shutil.which(name.split()[0]):
            return name
    raise ToolError("Q-LLAMACPP-007", NO_COMPILER)


def amx_flags(compiler: str) -> list[str]:
    """CMake's flags that leave the CPU's AMX out, if this compiler makes wrong code for it; nothing for a CPU
    without AMX.
    """
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
    """Whether what `compiler` makes of `AMX_CHECK`, optimized as llama.cpp is, does on this CPU what it
    says.
    """
    with tempfile.TemporaryDirectory(prefix="quench-amx-") as folder:
        source, program = Path(folder) / "check.cpp", Path(folder) / "check"
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
