"""The one place that knows llama.cpp: where it is, which version, how its tools are called.

Reads `.tools/llama.cpp/VERSION/` (built by `make setup`, see `pipeline.llamacpp.build`), or the build that
`LLAMA_CPP_HOME` or `llamacpp.home` in `params.yaml` points at. One version for everything: converter, quantiser,
bench, server and the Python binding.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import ToolError

VERSION = "0.3.36"  # of the llama-cpp-python source distribution whose llama.cpp is used
PROJECT = Path(__file__).resolve().parents[2]
DEFAULT_HOME = PROJECT / ".tools" / "llama.cpp" / VERSION
TOOLS = ("llama-quantize", "llama-server", "llama-perplexity", "llama-imatrix", "llama-bench", "llama-export-lora", "llama-tokenize")


@dataclass(frozen=True)
class Toolchain:
    """A built llama.cpp: `bin` holds tools and shared libraries, `source` its Python converters."""

    bin: Path
    source: Path

    def tool(self, name: str) -> Path:
        """The path of one tool; `ToolError` where this build lacks it."""
        path = self.bin / name
        if not os.access(path, os.X_OK):
            raise ToolError(f"{name} is not in {self.bin}: run `make setup`, or point LLAMA_CPP_HOME at a build that has it")
        return path

    @property
    def version(self) -> str:
        """What `llama-server --version` says, on one line: build number, commit, compiler."""
        done = subprocess.run([self.tool("llama-server"), "--version"], capture_output=True, text=True, timeout=60, check=False)
        return " ".join((done.stdout + done.stderr).split())


def find_toolchain(home: str | None = None) -> Toolchain:
    """The llama.cpp to use: `LLAMA_CPP_HOME`, else `home` (`llamacpp.home`), else the one `make setup` built.

    A home is either ours (`build/bin` and `source/vendor/llama.cpp`) or a llama.cpp checkout with `build/bin`.
    Raises `ToolError` where there is none.
    """
    chosen = Path(os.environ.get("LLAMA_CPP_HOME") or home or DEFAULT_HOME).expanduser()
    source = chosen / "source" / "vendor" / "llama.cpp"
    if not source.is_dir():
        source = chosen
    found = Toolchain(bin=chosen / "build" / "bin", source=source)
    if not (found.bin / "llama-server").exists() or not (source / "convert_hf_to_gguf.py").exists():
        raise ToolError(
            f"no llama.cpp in {chosen} (build/bin/llama-server and convert_hf_to_gguf.py are looked for): run `make setup`, "
            "or point LLAMA_CPP_HOME at a llama.cpp checkout that is built in its folder build"
        )
    return found


def run_tool(command: Sequence[str | Path], env: dict[str, str] | None = None) -> str:
    """Run one tool to its end and give what it printed (stdout, then stderr).

    Raises `ToolError` with its last lines where it fails.
    """
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", env={**os.environ, **(env or {})}, check=False)
    if done.returncode != 0:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-8:])
        raise ToolError(f"{Path(words[0]).name} failed with exit status {done.returncode}: {' '.join(words)}\n{last}")
    return done.stdout + done.stderr


def run_converter(tools: Toolchain, script: str, arguments: Sequence[str | Path]) -> str:
    """Run one of llama.cpp's converters (`convert_hf_to_gguf.py`, …) with its own `gguf` package, offline."""
    env = {"PYTHONPATH": str(tools.source / "gguf-py"), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return run_tool([sys.executable, tools.source / script, *arguments], env)


def bench(
    tools: Toolchain, model: Path, *, prompt_tokens: int, generated_tokens: int, repetitions: int, threads: int, n_gpu_layers: int
) -> dict[str, Any]:
    """Prompt and generation speed by `llama-bench`: {"prompt": tok/s, "generation": tok/s, each with "_spread"} (standard deviation)."""
    output = subprocess.run(
        [tools.tool("llama-bench"), "-m", model, "-p", str(prompt_tokens), "-n", str(generated_tokens), "-r", str(repetitions),
         "-t", str(threads), "-ngl", str(n_gpu_layers), "-o", "json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if output.returncode != 0:
        raise ToolError(f"llama-bench failed on {model} with exit status {output.returncode}: {output.stderr.strip()[-300:]}")
    speeds: dict[str, Any] = {}
    for test in json.loads(output.stdout):
        kind = "prompt" if test["n_prompt"] else "generation"
        speeds[kind] = round(test["avg_ts"], 2)
        speeds[f"{kind}_spread"] = round(test["stddev_ts"], 2)
    return speeds


def load_binding(tools: Toolchain) -> Any:
    """The module `llama_cpp` (the ctypes binding), bound to this toolchain's libraries. Call it before any other import of it."""
    os.environ["LLAMA_CPP_LIB_PATH"] = str(tools.bin)
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError) as error:
        raise ToolError(f"llama-cpp-python can't load {tools.bin} ({error}): run `make setup`") from error
    return llama_cpp
