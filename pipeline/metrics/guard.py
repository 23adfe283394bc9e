"""The inner side of `pipeline.metrics.sandbox`: isolate the process, then run an answer and its tests.

    python -P -s -B -c THIS_FILE < job.json

It runs in namespaces and a file system of its own, which bubblewrap made, and imports only the standard
library. It makes the answer's folder itself, because bubblewrap's `--tmpfs` accepts any number of files. It
writes `NONCE ready` before the answer's first line runs, and `NONCE passed`, `failed` or `unreadable` after
the last. An answer that exits the process early has not passed.
"""

import ctypes
import json
import os
import resource
import struct
import sys
import types
from typing import Any

# Flags of mount(2).
NOSUID = 2
NODEV = 4
NEW_NAMESPACE = 0x7E020000  # all namespace flags of clone(2)
# Constants of prctl(2).
SET_NO_NEW_PRIVS = 38
SET_SECCOMP = 22
FILTER = 2
OTHER_ABI = 1 << 30  # x86_64 has its calls a second time from here on.
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# System calls that are refused, with their numbers on each of these machines.
REFUSED = {
    # Memory that RLIMIT_AS doesn't count.
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    # Namespaces and mounts. clone with their flags is refused too, and clone3, whose flags a filter doesn't
    # see.
    "unshare": (272, 97),
    "setns": (308, 268),
    "chroot": (161, 51),
    "pivot_root": (155, 41),
    "mount": (165, 40),
    "umount2": (166, 39),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    # No answer needs these, and the kernel's holes were in them.
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
}
CLONE, CLONE3 = (56, 220), (435, 435)
MACHINE = list(AUDIT_ARCH).index(os.uname().machine)
libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Run the job on stdin."""
    job = json.load(sys.stdin)
    null = os.open("/dev/null", os.O_RDWR)
    verdicts = os.dup(1)
    make_folder(job["work"], f"size={job['bytes']},nr_inodes={job['files']},mode=1777")
    give_up_rights(job["user"])
    forbid_calls()
    for name, limit in job["limits"].items():
        resource.setrlimit(getattr(resource, name), (limit, limit))
    for stream in range(3):  # Nothing to read, nowhere to print. Until here stderr is the guard's own.
        os.dup2(null, stream)
    os.write(verdicts, f"{job['nonce']} ready\n".encode())
    os.write(verdicts, f"{job['nonce']} {run(job['answer'], job['tests'])}\n".encode())
    os._exit(0)  # Exit in spite of any threads that are left.


def run(answer: str, tests: str) -> str:
    """Return `passed`, `failed`, or `unreadable` if the answer is not Python."""
    try:
        code = compile(answer, "answer.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "unreadable"
    module = types.ModuleType("answer")  # Not __main__: a script's main block is not part of the answer.
    sys.modules["answer"] = module
    try:
        exec(code, module.__dict__)  # noqa: S102 (what the sandbox is for)
        exec(compile(tests, "tests.py", "exec", dont_inherit=True), module.__dict__)  # noqa: S102
    except BaseException:  # SystemExit and KeyboardInterrupt too: the tests have not passed.
        return "failed"
    return "passed"


def make_folder(path: str, room: str) -> None:
    """Mount an empty folder in memory at `path`, and work there (mount(2))."""
    kind = b"tmpfs"
    checked(libc.mount(kind, path.encode(), kind, ctypes.c_ulong(NOSUID | NODEV), room.encode()), "mount")
    os.chdir(path)


def give_up_rights(user: int | None) -> None:
    """Become `user` permanently (if root, who has no limits), without any capability, even after an exec."""
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    checked(libc.capset(struct.pack("Ii", 0x20080522, 0), bytes(24)), "capset")
    checked(libc.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def forbid_calls() -> None:
    """Let the kernel answer the calls of `REFUSED`, and every call of another architecture, with "not
    permitted" (seccomp(2)). This can't be undone.
    """
    # Codes of classic BPF: a word of seccomp_data, three jumps, the verdict.
    load = 0x20
    equal = 0x15
    at_least = 0x35
    any_bit = 0x45
    verdict = 0x06
    refuse, unknown, allow = ((verdict, 0, 0, value) for value in (0x00050001, 0x00050026, 0x7FFF0000))
    calls = [numbers[MACHINE] for numbers in REFUSED.values()]
    program = [
        *((load, 0, 0, 4), (equal, 1, 0, AUDIT_ARCH[os.uname().machine]), refuse),
        *((load, 0, 0, 0), (at_least, 0, 1, OTHER_ABI), refuse),
        *(step for call in calls for step in ((equal, 0, 1, call), refuse)),
        *((equal, 0, 1, CLONE3[MACHINE]), unknown),  # "No such call": the C library then uses clone.
        *((equal, 0, 3, CLONE[MACHINE]), (load, 0, 0, 16), (any_bit, 0, 1, NEW_NAMESPACE), refuse),
        allow,
    ]
    filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
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
