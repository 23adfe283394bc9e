"""The inner side of `pipeline.metrics.sandbox`: shut the door, then run an answer and its tests.

    python -P -s -B -c THIS_FILE < job.json

It runs in namespaces of its own, which bubblewrap or `unshare` made, and imports the standard library alone.
With `job["root"]` (no bubblewrap) it makes its own file system first, as bubblewrap does. It writes `NONCE
ready` before the answer's first line runs, and `NONCE passed`, `failed` or `unreadable` after the last: an
answer that ends the process early has not passed.
"""

import ctypes
import json
import os
import resource
import struct
import sys
import types
from pathlib import Path
from typing import Any

NOSUID, NODEV, BIND, RECURSIVE, DETACH = 2, 4, 4096, 16384, 2  # of mount(2) and umount2(2)
MOUNT_SETATTR, PIVOT_ROOT = (
    442,
    {"x86_64": 155, "aarch64": 41},
)  # system calls without a function in the C library
SET_NO_NEW_PRIVS = 38  # of prctl(2)
# what could hold memory that RLIMIT_AS doesn't count: shmget, msgget, semget, memfd_create, memfd_secret; by
# machine, with its AUDIT_ARCH
UNCOUNTED = {
    "x86_64": (0xC000003E, (29, 68, 64, 319, 447)),
    "aarch64": (0xC00000B7, (194, 186, 190, 279, 447)),
}
SET_SECCOMP, FILTER, OTHER_ABI = (
    22,
    2,
    1 << 30,
)  # of prctl(2); x86_64 has its calls a second time from here on
libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Run the job on stdin."""
    job, null = json.load(sys.stdin), os.open("/dev/null", os.O_RDWR)
    verdicts = os.dup(1)
    if job["root"]:
        change_root(
            Path(job["root"]), job["readable"], job["links"], job["devices"], job["work"], job["bytes"]
        )
        if (
            answer := os.fork()
            # the namespace's first process ends with `unshare`, and all others with it: the answer must not
            # be that one
        ):
            os.waitpid(answer, 0)
            os._exit(0)
    os.chdir(job["work"])
    give_up_rights(job["user"])
    forbid_calls(*UNCOUNTED[os.uname().machine])
    for name, limit in job["limits"].items():
        resource.setrlimit(getattr(resource, name), (limit, limit))
    for stream in range(3):  # nothing to read, nowhere to print; until here stderr is the guard's own
        os.dup2(null, stream)
    os.write(verdicts, f"{job['nonce']} ready\n".encode())
    os.write(verdicts, f"{job['nonce']} {run(job['answer'], job['tests'])}\n".encode())
    os._exit(0)  # whatever threads are left


def run(answer: str, tests: str) -> str:
    """`passed`, `failed`, or `unreadable` where the answer is no Python."""
    try:
        code = compile(answer, "answer.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "unreadable"
    module = types.ModuleType("answer")  # not __main__: what a script does on top is no part of the answer
    sys.modules["answer"] = module
    try:
        exec(code, module.__dict__)  # noqa: S102 (what the sandbox is for)
        exec(compile(tests, "tests.py", "exec", dont_inherit=True), module.__dict__)  # noqa: S102
    except BaseException:  # SystemExit and KeyboardInterrupt too: the tests have not passed
        return "failed"
    return "passed"


def change_root(
    root: Path, readable: list[str], links: dict[str, str], devices: list[str], work: str, size: int
) -> None:
    """Make `root` the file system: `readable` and nothing else, read-only, and an empty `work` of `size`
    bytes in memory.
    """
    mount("tmpfs", root, "tmpfs", NOSUID | NODEV, "size=1m,mode=755")
    for path in [*readable, *devices]:
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if Path(path).is_dir():
            target.mkdir(exist_ok=True)
        else:
            target.touch()
        mount(path, target, None, BIND | RECURSIVE)
        read_only(target, recursive=True)
    for link, to in links.items():
        (root / link.lstrip("/")).symlink_to(to)
    (root / work.lstrip("/")).mkdir()
    read_only(root, recursive=False)
    mount("tmpfs", root / work.lstrip("/"), "tmpfs", NOSUID | NODEV, f"size={size},mode=1777")
    if os.getuid() == 0 and Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]:
        # this namespace's own: no further one, with its rights, below it
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
    os.chdir(root)
    checked(libc.syscall(PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    checked(libc.umount2(b".", DETACH), "umount2")
    os.chdir("/")


def mount(source: str, target: Path, kind: str | None, flags: int, data: str | None = None) -> None:
    """mount(2)."""
    words = (
        source.encode(),
        bytes(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        data.encode() if data else None,
    )
    checked(libc.mount(*words), f"mount {target}")


def read_only(target: Path, *, recursive: bool) -> None:
    """mount_setattr(2), from Linux 5.12 on: no writing, and no change of modes or times either."""
    attributes = struct.pack("QQQQ", 1 | NOSUID, 0, 0, 0)
    checked(
        libc.syscall(
            MOUNT_SETATTR, -100, bytes(target), 0x8000 if recursive else 0, attributes, len(attributes)
        ),
        f"mount_setattr {target}",
    )


def give_up_rights(user: int | None) -> None:
    """Be `user` from here on (where we are root: limits don't hold for root), without any capability, now or
    after an exec.
    """
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    checked(libc.capset(struct.pack("Ii", 0x20080522, 0), bytes(24)), "capset")
    checked(libc.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def forbid_calls(architecture: int, calls: tuple[int, ...]) -> None:
    """Let the kernel answer `calls`, and every call of another architecture, with "not permitted"
    (seccomp(2)); no way back from there.
    """
    load, equal, at_least, back = (
        0x20,
        0x15,
        0x35,
        0x06,
    )  # of classic BPF: a word of seccomp_data, two jumps, the verdict
    count = len(calls)
    program = [
        (load, 0, 0, 4),
        (equal, 0, count + 3, architecture),
        (load, 0, 0, 0),
        (at_least, count + 1, 0, OTHER_ABI),
        *((equal, count - place, 0, call) for place, call in enumerate(calls)),
        (back, 0, 0, 0x7FFF0000),
        (back, 0, 0, 0x00050001),  # allowed; EPERM
    ]
    filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in program))
    checked(
        libc.prctl(
            SET_SECCOMP, FILTER, struct.pack("HxxxxxxQ", len(program), ctypes.addressof(filters)), 0, 0
        ),
        "seccomp",
    )


def checked(result: int, what: str) -> Any:
    """Raise `OSError` if a system call failed."""
    if result:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main()
