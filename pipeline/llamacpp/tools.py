"""Locate llama.cpp: its path, its version, and how its tools are called.

Reads the build of `make setup` in `.tools/llama.cpp/VERSION/` (of `quench doctor setup`: in the user's cache;
see `pipeline.llamacpp.build`), or the one that `LLAMA_CPP_HOME` or `machine.llama_cpp` in `params.yaml`
names. One version serves everything: converter, quantizer, server and the Python binding.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pipeline.core.child import bound
from pipeline.core.errors import ToolError
from pipeline.core.places import IS_CHECKOUT, expanded, own_folder
from pipeline.core.rights import changed_by_others

if TYPE_CHECKING:  # `make setup` looks for a compiler before pydantic is installed.
    from pipeline.config.sections import Evaluate, Machine, Serve

SHOWN = 60  # characters shown of a JSON object in a command line
VERSION = "0.3.36"  # version of the llama-cpp-python source distribution that contains llama.cpp
DEFAULT_HOME = own_folder() / (".tools/llama.cpp" if IS_CHECKOUT else "llama.cpp") / VERSION
TOOLS = (
    "llama-quantize",
    "llama-server",
    "llama-perplexity",
    "llama-imatrix",
    "llama-export-lora",
    "llama-tokenize",
    "llama-gguf-split",
)


@dataclass(frozen=True)
class Toolchain:
    """Built llama.cpp: `bin` contains tools and shared libraries, `source` its Python converters."""

    bin: Path
    source: Path

    def tool(self, name: str) -> Path:
        """Return the path of one tool. Raises `ToolError` if this build lacks it."""
        path = self.bin / name
        if not os.access(path, os.X_OK):
            raise ToolError(
                "Q-LLAMACPP-017",
                f"{name} is not in {self.bin}: run `make setup`, or point LLAMA_CPP_HOME at a build that "
                "has it",
            )
        return path

    @property
    def commit(self) -> str:
        """Commit of llama.cpp if the build knows it, otherwise "unknown"."""
        match = re.search(r"commit ([0-9a-f]{7,})", self.version)
        return match[1] if match else "unknown"

    @property
    def version(self) -> str:
        """Output of `llama-server --version`, on one line: build number, commit, compiler."""
        done = subprocess.run(
            [self.tool("llama-server"), "--version"], capture_output=True, text=True, timeout=60, check=False
        )
        return " ".join((done.stdout + done.stderr).split())


@dataclass(frozen=True)
class Llama:
    """llama.cpp as it runs here: tools, CPU threads, and model layers on a GPU ("auto": as many as fit)."""

    tools: Toolchain
    threads: int = 1
    n_gpu_layers: int | Literal["auto"] = 0


def find_llama(machine: "Machine") -> Llama:
    """Return the llama.cpp of section `machine`. Raises what `find_toolchain` does."""
    return Llama(find_toolchain(machine.llama_cpp), machine.threads, machine.n_gpu_layers)


def llama_of(tools: Toolchain, settings: "Evaluate | Serve") -> Llama:
    """Return llama.cpp with the resolved threads and layers on a GPU of a section's settings."""
    return Llama(tools, settings.threads, settings.n_gpu_layers)


def find_toolchain(home: str | None = None) -> Toolchain:
    """Return the llama.cpp to use: `LLAMA_CPP_HOME`, otherwise `home` (`machine.llama_cpp`), otherwise that
    of `make setup`.

    A home is either ours (`build/bin` and `source/vendor/llama.cpp`) or a llama.cpp checkout with
    `build/bin`. Raises `ToolError` if there is none, or if the one in the user's cache is not safe
    (`need_safe_home`).
    """
    stated = os.environ.get("LLAMA_CPP_HOME")
    chosen = expanded(stated or home or DEFAULT_HOME, "LLAMA_CPP_HOME" if stated else "machine.llama_cpp")
    if chosen == DEFAULT_HOME:
        need_safe_home()
    source = chosen / "source" / "vendor" / "llama.cpp"
    if not source.is_dir():
        source = chosen
    toolchain = Toolchain(bin=chosen / "build" / "bin", source=source)
    if not (toolchain.bin / "llama-server").exists() or not (source / "convert_hf_to_gguf.py").exists():
        raise ToolError(
            "Q-LLAMACPP-018",
            f"no llama.cpp in {chosen} (build/bin/llama-server and convert_hf_to_gguf.py are looked for): "
            "run `make setup`, "
            "or point LLAMA_CPP_HOME at a llama.cpp checkout that is built in its folder build",
        )
    return toolchain


def need_safe_home() -> None:
    """Raise `ToolError` if others may have changed the tools in the user's cache, before any of them runs.
    Those of a checkout are next to its code, and a home that the user names is trusted.
    """
    if not IS_CHECKOUT and (path := changed_by_others(DEFAULT_HOME)):
        raise ToolError(
            "Q-LLAMACPP-025",
            f"{path} belongs to another user, or others can write to it, so the llama.cpp in {DEFAULT_HOME} "
            "could be from any user and is not run: set QUENCH_CACHE to a folder of your own, then run "
            "`quench doctor setup`",
        )


def run_tool(
    command: Sequence[str | Path], env: dict[str, str] | None = None, cwd: Path | None = None
) -> str:
    """Run one tool, in the folder `cwd` if it is given, and return its output (stdout, then stderr). It dies
    with this process.

    Raises `ToolError` with its last lines if it fails.
    """
    words = [str(word) for word in command]
    done = subprocess.run(
        bound(words),
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, **(env or {})},
        cwd=cwd,
        check=False,
    )
    if done.returncode != 0:
        last = last_lines(done.stdout + done.stderr, 8)
        command_line = " ".join(shortened(word) for word in words)
        raise ToolError(
            "Q-LLAMACPP-019",
            f"{Path(words[0]).name} failed with exit status {done.returncode}: {command_line}\n{last}",
        )
    return done.stdout + done.stderr


def shortened(word: str) -> str:
    """Return a command line's word as a sentence shows it.

    Only the beginning of a JSON object is shown, such as a converter's metadata.
    """
    return f"{word[:SHOWN]}…" if word.startswith("{") and len(word) > SHOWN else word


def last_lines(text: str, lines: int = 12) -> str:
    """Return the last lines of a tool's output."""
    return "\n".join(text.strip().splitlines()[-lines:])


def run_converter(
    tools: Toolchain,
    script: str,
    arguments: Sequence[str | Path],
    pre: str | None = None,
    fields: Mapping[str, str | int | float] | None = None,
    *,
    vocabulary: bool = True,
) -> str:
    """Run one of llama.cpp's converters (`convert_hf_to_gguf.py`, …) with its own `gguf` package, offline.

    `pre` is the name of the pre-tokenizer, used instead of looking the vocabulary up in the converter's list
    of hashes. `fields` are written into the GGUF's metadata (`pipeline.llamacpp.converter_process`). Without
    `vocabulary` the folder needs no tokenizer, and the GGUF contains only the number of tokens.
    """
    paths = os.pathsep.join([str(tools.source / "gguf-py"), str(tools.source)])
    env = {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    settings = json.dumps({"pre": pre, "fields": dict(fields or {}), "vocabulary": vocabulary})
    return run_tool(
        [
            sys.executable,
            "-P",
            Path(__file__).with_name("converter_process.py"),
            settings,
            tools.source / script,
            *arguments,
        ],
        env,
    )


def load_binding(tools: Toolchain) -> Any:
    """Return the ctypes binding `llama_cpp` on this toolchain's libraries.

    Call this before any other import of it.
    """
    os.environ["LLAMA_CPP_LIB_PATH"] = str(tools.bin)
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError) as error:
        raise ToolError(
            "Q-LLAMACPP-020", f"llama-cpp-python can't load {tools.bin} ({error}): run `make setup`"
        ) from error
    return llama_cpp
