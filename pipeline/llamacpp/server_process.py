"""Limits and a clean environment for a server's process. Run as a script, it becomes the server.

    python -I -S server_process.py COMMAND ...

- **Deep JSON.** llama.cpp copies and prints JSON by recursion. With the usual 8 MB of stack, 10,000 levels in
  a request crash the server (measured: a schema, and a grammar of 100,000 brackets). Threads get the stack
  that RLIMIT_STACK sets at start; pages that aren't touched cost nothing.
- **Crashes keep no prompts.** No core file, and no backtrace by a debugger, which prints the arguments of
  functions.
- **Memory.** A request can make it use all memory. Then the kernel is to kill the server (it starts again),
  not the user's other programs.
- **No orphans.** Linux kills the server when its parent is gone (`pipeline.core.child`).
- **No settings from outside.** llama-server reads options from `LLAMA_ARG_*` and lets `AIP_*` replace its
  port.
"""

import contextlib
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

STACK_BYTES = 2 * 1024**3  # bytes of address space per thread
KEPT = {
    "PATH",
    "HOME",
    "USER",
    "TMPDIR",
    "TZ",
    "LANG",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "XDG_CACHE_HOME",
    "XDG_RUNTIME_DIR",
}
KEPT_PREFIXES = (  # variables of GPU drivers, their compilers and OpenMP
    "LC_",
    "CUDA_",
    "NVIDIA_",
    "GGML_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "HIP_",
    "ROCR_",
    "ROCM_",
    "HSA_",
    "AMD_",
    "GPU_",
    "VK_",
    "ONEAPI_",
    "SYCL_",
    "ZE_",
)


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return what a server may see of the environment `given`: paths; no options, tokens or proxies."""
    kept = {name: value for name, value in given.items() if name in KEPT or name.startswith(KEPT_PREFIXES)}
    return kept | {"GGML_NO_BACKTRACE": "1"}


def guarded(command: Sequence[str]) -> list[str]:
    """Return the command line that runs `command` under the limits above, as a child of this process."""
    from pipeline.core.child import bound  # Imported here because the script imports nothing of the project.

    return bound([sys.executable, "-I", "-S", str(Path(__file__).resolve()), *command])


def main(command: list[str]) -> None:
    """Become `command`, with the limits set."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    stack = STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (stack, hard))
    with contextlib.suppress(OSError), Path("/proc/self/oom_score_adj").open("w") as file:
        file.write("1000")
    os.execv(command[0], command)  # noqa: S606 (no shell is wanted)


if __name__ == "__main__":
    main(sys.argv[1:])
