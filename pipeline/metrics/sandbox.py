"""Run Python that a model wrote, isolated from this machine's files, network and processes, or not at all.

bubblewrap gives the answer namespaces of its own (user, mount, process, network, IPC). Inside them
`pipeline.metrics.guard` makes an empty folder in memory that disappears with it. Apart from that it sees
Python with the packages of this environment, read-only. No variable, descriptor or capability is passed on;
`LIMITS` and a clock limit the rest. Before the first answer runs, a probe proves that what should be out of
reach is.

Worst case for the machine: `RLIMIT_NPROC` processes of `RLIMIT_AS` bytes each, and a folder of `WORK_BYTES`
in `WORK_FILES` files, for `SECONDS`. Seccomp refuses what would keep memory outside them (System V IPC,
memfd) and what an answer needs least and the kernel's holes were in (namespaces, mounts, io_uring, keys, BPF:
`guard.REFUSED`), on x86-64 and aarch64; no other machine runs an answer. Other holes of the kernel are not
guarded against, and an answer that sets out to cheat its own tests can: it shares their process.
"""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from pipeline.core.child import bound
from pipeline.core.errors import ToolError
from pipeline.core.units import MEMORY_GB

Outcome = Literal["passed", "failed", "unreadable"]
SECONDS = 15  # wall-clock time, start included
GUARD = Path(__file__).with_name("guard.py")
WORK = "/sandbox"
WORK_BYTES = 64 << 20
WORK_FILES = 4096
LIMITS = {
    "RLIMIT_CPU": 5,  # seconds
    "RLIMIT_AS": MEMORY_GB,  # bytes of a process
    "RLIMIT_FSIZE": 16 << 20,
    "RLIMIT_NOFILE": 64,
    "RLIMIT_NPROC": 8,  # processes and threads
    "RLIMIT_CORE": 0,
}
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
SYSTEM = (
    *("/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib", "/lib", "/lib32", "/lib64"),
    *("/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/alternatives"),
)
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "HOME": WORK,
    "TMPDIR": WORK,
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}
REMEDY = (
    "install bubblewrap (apt install bubblewrap, dnf install bubblewrap), allow user namespaces (a container "
    "needs them from its host; on Ubuntu 24.04 sysctl kernel.apparmor_restrict_unprivileged_userns=0), or "
    "take code out of evaluate.scorers"
)


def run_tests(answer: str, tests: str) -> Outcome:
    """Run `answer`, then `tests` (Python) in one sandboxed process. Raises `ToolError` without a sandbox."""
    check_sandbox()
    return run_in(bubblewrap(), answer, tests)


@cache
def check_sandbox() -> None:
    """Raise `ToolError`, with what to install or to allow, unless bubblewrap is here and passes the probe."""
    try:
        if not shutil.which("bwrap"):
            raise ToolError("Q-METRICS-013", "bwrap isn't installed")
        probe(bubblewrap())
    except ToolError as error:
        raise ToolError(
            "Q-METRICS-013", f"answers with code can't be run safely here ({error.sentence}): {REMEDY}"
        ) from None


def run_in(sandbox: Sequence[str], answer: str, tests: str, seconds: float = SECONDS) -> Outcome:
    """Run tests as `run_tests` does, in the sandbox that this command (without Python) makes. Raises
    `ToolError` if the sandbox itself fails, because that is not the answer's fault.
    """
    nonce = secrets.token_hex(16)
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stderr:
        job = {
            "work": WORK,
            "bytes": WORK_BYTES,
            "files": WORK_FILES,
            "limits": LIMITS,
            "user": _user(),
            "nonce": nonce,
            "answer": answer,
            "tests": tests,
        }
        stdin.write(json.dumps(job).encode())
        stdin.seek(0)
        python = [os.path.realpath(sys.executable), "-P", "-s", "-B", "-X", "utf8"]
        command = [*sandbox, *python, "-c", GUARD.read_text(encoding="utf-8")]
        with subprocess.Popen(
            bound(command),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(_packages())},
            start_new_session=True,
        ) as process:
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                pass  # The output so far counts.
            finally:
                process.kill()  # The kernel kills everything in its namespaces with it.
            process.wait()
            assert process.stdout
            os.set_blocking(process.stdout.fileno(), False)
            output = (process.stdout.read(4096) or b"").decode(errors="replace").splitlines()
        if f"{nonce} ready" not in output:
            stderr.seek(0)
            lines = stderr.read(1 << 16).decode(errors="replace").strip().splitlines()
            why = lines[-1][:300] if lines else f"exit status {process.returncode}"
            raise ToolError("Q-METRICS-013", f"{sandbox[0]} gave no sandbox: {why}")
    outcomes: tuple[Outcome, ...] = ("passed", "unreadable")
    return next((outcome for outcome in outcomes if f"{nonce} {outcome}" in output), "failed")


def probe(sandbox: Sequence[str]) -> None:
    """Prove that an answer reaches no file, port, process or variable of ours.

    Raises `ToolError` otherwise.
    """
    with (
        tempfile.NamedTemporaryFile(prefix="quench-outside-") as outside,
        socket.create_server(("127.0.0.1", 0)) as listening,
    ):
        port = listening.getsockname()[1]
        facts = {"path": outside.name, "port": port, "packages": _packages(), "work": WORK}
        facts["files"] = WORK_FILES
        outcome = run_in(sandbox, f"facts = {facts!r}", PROBE)
    if outcome != "passed":
        raise ToolError("Q-METRICS-013", f"{sandbox[0]} runs, but what is outside is within reach of it")


PROBE = """
import os, socket
def refused(call, *arguments):
    try:
        call(*arguments)
    except OSError:
        return True
    return False
assert not os.path.exists(facts["path"])
assert refused(socket.create_connection, ("127.0.0.1", facts["port"]), 2)
assert refused(open, "/written", "w") and refused(open, facts["packages"][0] + "/written", "w") and refused(os.chmod, facts["packages"][0], 0o777)
assert refused(os.setuid, 0) or os.getuid() == 0 and refused(os.chroot, facts["work"])
assert os.getpid() < 10 and not os.path.exists("/proc") and not os.path.exists("/run")
assert refused(os.memfd_create, "held") and os.statvfs(".").f_files <= facts["files"]
with open("inside", "w") as file:
    file.write("x")
"""  # noqa: E501


def bubblewrap() -> list[str]:
    """Return the command that makes the sandbox; Python and its words are appended."""
    links, readable = _readable()
    # Otherwise they are made for root only.
    parents = sorted({str(parent) for path in (*readable, *DEVICES) for parent in Path(path).parents} - {"/"})
    folders = [word for path in parents for word in ("--perms", "0755", "--dir", path)]
    binds = [word for path in readable for word in ("--ro-bind", path, path)] + [
        word for path in DEVICES for word in ("--dev-bind", path, path)
    ]
    symlinks = [word for link, to in links.items() for word in ("--symlink", to, link)]
    # The guard mounts the answer's folder; root can be another user inside (see `_user`), others can't.
    rights = ["CAP_SYS_ADMIN", *(("CAP_SETUID", "CAP_SETGID") if os.geteuid() == 0 else ())]
    return [
        *["bwrap", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-pid", "--die-with-parent"],
        *["--new-session", *(() if os.geteuid() == 0 else ("--unshare-user",)), "--cap-drop", "ALL"],
        *(word for right in rights for word in ("--cap-add", right)),
        *folders,
        *binds,
        *symlinks,
        *["--dir", WORK, "--remount-ro", "/", "--"],
    ]


def _user() -> int | None:
    """Return an unused user id if we are root, otherwise None.

    Processes are limited by user, and never for root.
    """
    return 50_000 + secrets.randbelow(15_000) if os.geteuid() == 0 else None


def _readable() -> tuple[dict[str, str], list[str]]:
    """Return ({link: target}, paths) for Python and its packages, outer folders first.

    Links lead into the paths.
    """
    links = {path: str(Path(path).readlink()) for path in SYSTEM if Path(path).is_symlink()}
    base = Path(sys.base_prefix).resolve()
    python = [*(str(base / part) for part in ("bin", "lib", "lib64")), os.path.realpath(sys.executable)]
    needed = dict.fromkeys([*(path for path in SYSTEM if path not in links), *python, *_packages()])
    inner = {
        path for path in needed for other in needed if path != other and Path(path).is_relative_to(other)
    }
    return links, [path for path in needed if path not in inner and Path(path).exists()]


def _packages() -> list[str]:
    """Return the folders of installed packages, without .pth files, which could lead to the project."""
    return list(dict.fromkeys(os.path.realpath(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")))
