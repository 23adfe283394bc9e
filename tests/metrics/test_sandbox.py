"""sandbox: hostile answers reach nothing outside, end in time, leave nothing; no sandbox, nothing runs."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from make import ended
from needed import absent, need

from pipeline.core.errors import ToolError
from pipeline.core.places import PROJECT
from pipeline.metrics import guard, sandbox
from pipeline.metrics.sandbox import bubblewrap, probe, run_in, run_tests

BARE = ["bwrap", "--unshare-net", "--ro-bind", "/", "/", "true"]


@pytest.fixture(scope="module")
def inside() -> list[str]:
    """The sandbox's command, where it can be tried."""
    if reason := absent("bwrap"):
        pytest.skip(reason)
    done = subprocess.run(BARE, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(need(f"namespaces of users ({done.stderr.strip()})"))
    assert run_tests("", "") == "passed"
    return bubblewrap()


@pytest.fixture
def secret(tmp_path: Path) -> Iterator[Path]:
    """A key file as `.quench/api-key`, and one in the home folder."""
    key = tmp_path / ".quench/api-key"
    key.parent.mkdir()
    key.write_text("secret-key")
    os.environ["QUENCH_TEST_SECRET"] = "secret-key"  # noqa: S105
    yield key
    del os.environ["QUENCH_TEST_SECRET"]


def test_right_wrong_and_no_python(inside: list[str]) -> None:
    add = "def add(a, b):\n    return a + b"
    assert run_in(inside, add, "assert add(1, 2) == 3") == "passed"
    assert run_in(inside, add, "assert add(1, 2) == 4") == "failed"
    assert run_in(inside, "Sure! Here it is:", "assert True") == "unreadable"
    assert run_in(inside, "x = '\0'", "assert True") == "unreadable"
    assert run_in(inside, "(" * 5000, "assert True") == "unreadable"


def test_packages_of_this_environment_are_there(inside: list[str]) -> None:
    code = (
        "import dataclasses, numpy\n@dataclasses.dataclass\nclass P:\n    x: int\nopen('note', "
        "'w').write('x')"
    )
    assert (
        run_in(inside, code, "assert P(numpy.ones(3).sum()).x == 3 and open('note').read() == 'x'")
        == "passed"
    )


@pytest.mark.parametrize(
    "early",
    ["import os; os._exit(0)", "raise SystemExit(0)", "import sys; sys.exit()", "print('passed')", "exit()"],
)
def test_an_answer_that_ends_early_has_not_passed(inside: list[str], early: str) -> None:
    assert run_in(inside, early, "assert False") == "failed"


def test_files_variables_and_descriptors_are_out_of_reach(inside: list[str], secret: Path) -> None:
    wanted = [
        secret,
        secret.parent,
        PROJECT / "params.yaml",
        PROJECT / "pipeline",
        PROJECT / ".git",
        Path.home(),
        "/etc/passwd",
        "/proc",
        "/run",
        "/proc/1/environ",
        "/dev/mem",
        "/sys",
        "/var",
        Path(sys.prefix) / "pyvenv.cfg",
        "/root/.ssh",
    ]
    code = f"""
import os
seen = [p for p in {list(map(str, wanted))!r} if os.path.lexists(p) and not (p == "/root/.ssh" and not os.listdir(p))]
variables = dict(os.environ)
fds = []
for fd in range(64):
    try:
        fds.append((fd, os.fstat(fd).st_mode))
    except OSError:
        pass
project = os.listdir({str(PROJECT)!r}) if os.path.exists({str(PROJECT)!r}) else []
"""  # noqa: E501
    tests = """
assert not seen
assert set(project) <= {'.venv'}
assert not any("secret-key" in value for value in variables.values())
import stat
assert sum(stat.S_ISREG(mode) for _, mode in fds) == 0
assert os.read(0, 1) == b""
"""
    assert run_in(inside, code, tests) == "passed"


def test_nothing_outside_is_written_or_changed(inside: list[str], tmp_path: Path) -> None:
    packages, mode = Path(sandbox._packages()[0]), Path(sandbox._packages()[0]).stat().st_mode
    code = f"""
import os
done = []
for attempt in (
    lambda: open({str(tmp_path / "written")!r}, "w"), lambda: open("/written", "w"), lambda: open("/usr/lib/written", "w"),
    lambda: open({str(packages / "written")!r}, "w"), lambda: os.chmod({str(packages)!r}, 0o777), lambda: os.utime({str(packages)!r}),
    lambda: os.mkdir("/tmp/x"), lambda: os.unlink({str(packages / "six.py")!r}), lambda: open("/dev/sda"), lambda: os.mknod("zero", 0o20666, 0x105),
):
    try:
        attempt()
        done.append(attempt.__code__.co_firstlineno)
    except OSError:
        pass
"""  # noqa: E501
    assert run_in(inside, code, "assert not done") == "passed"
    assert not (tmp_path / "written").exists()
    assert packages.stat().st_mode == mode


def test_no_rights_and_no_way_to_more(inside: list[str]) -> None:
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
got = []
if libc.mount(b"tmpfs", b"/sandbox", b"tmpfs", 0, None) == 0: got.append("mount")
if libc.chroot(b"/sandbox") == 0: got.append("chroot")
if libc.setns(0, 0) == 0: got.append("setns")
if libc.sethostname(b"x", 1) == 0: got.append("hostname")
if libc.umount2(b"/sandbox", 2) == 0: got.append("umount")
header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
libc.capget(header, data)
import resource
try:
    resource.setrlimit(resource.RLIMIT_NPROC, (1000, 1000)); got.append("limit")
except (OSError, ValueError):
    pass
"""
    assert run_in(inside, code, "assert not got and not any(data)") == "passed"


def test_no_network(inside: list[str]) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
    ):
        udp.bind(("127.0.0.1", 0))
        ports = tcp.getsockname()[1], udp.getsockname()[1]
        code = f"""
import socket
reached = []
for kind, address in (
    (socket.SOCK_STREAM, ("127.0.0.1", {ports[0]})), (socket.SOCK_STREAM, ("1.1.1.1", 53)), (socket.SOCK_DGRAM, ("1.1.1.1", 53)),
):
    try:
        one = socket.socket(socket.AF_INET, kind); one.settimeout(1); one.connect(address); one.send(b"x"); reached.append((address, kind))
    except OSError:
        pass
try:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", {ports[1]}))  # its own loopback
except OSError:
    pass
"""  # noqa: E501
        assert run_in(inside, code, "assert not reached") == "passed"
        for listening in (tcp, udp):
            listening.setblocking(False)
            with pytest.raises(BlockingIOError):
                listening.accept() if listening is tcp else listening.recv(1)


def test_an_endless_loop_and_a_long_sleep_end(inside: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sandbox.LIMITS, "RLIMIT_CPU", 1)
    assert run_in(inside, "while True:\n    pass", "assert True") == "failed"
    start = time.monotonic()
    stubborn = (
        "import signal, time\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n    "
        "except Exception: pass\ntime.sleep(60)"
    )
    assert run_in(inside, stubborn, "assert True", seconds=1) == "failed"
    assert time.monotonic() - start < 8


def test_memory_files_and_output_are_limited(inside: list[str]) -> None:
    assert run_in(inside, "x = bytearray(10 << 30)", "assert True") == "failed"
    big = "with open('big', 'wb') as file:\n    for _ in range(10 << 10):\n        file.write(bytes(1 << 20))"
    assert run_in(inside, big, "assert True") == "failed"
    many = "for n in range(1000):\n    with open(f'f{n}', 'wb') as file:\n        file.write(bytes(8 << 20))"
    assert run_in(inside, many, "assert True") == "failed"
    shout = (
        "import os\nfor _ in range(1024):\n    os.write(1, b'x' * (1 << 20))\n    os.write(2, b'x' * (1 "
        "<< 20))"
    )
    assert run_in(inside, shout, "assert True") == "passed"
    flood = (
        "import os\nfor fd in range(3, 64):\n    try:\n        while True: os.write(fd, b'x' * 4096)\n   "
        " except OSError: pass"
    )
    # the verdict's pipe is full, and nobody reads on
    assert run_in(inside, flood, "assert True", seconds=1) == "failed"


def test_memory_that_no_limit_counts_is_refused(inside: list[str]) -> None:
    code = """
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
got = [name for name, made in (
    ("shm", libc.shmget(0, 400 << 20, 0o1600)), ("msg", libc.msgget(0, 0o1600)), ("sem", libc.semget(0, 1000, 0o1600)),
    ("x32", libc.syscall(0x40000000 | 29, 0, 4096, 0o1600) if platform.machine() == "x86_64" else -1),
) if made != -1]
try:
    os.memfd_create("held")
    got.append("memfd")
except OSError:
    pass
if libc.syscall({"x86_64": 447, "aarch64": 447}[platform.machine()], 0) != -1: got.append("memfd_secret")
"""  # noqa: E501
    assert run_in(inside, code, "assert not got, got") == "passed"
    assert (
        run_in(inside, "import threading, subprocess, mmap\nx = mmap.mmap(-1, 1 << 20)", "x[0] = 1")
        == "passed"
    )  # and nothing else is


def test_files_without_a_byte_are_counted(inside: list[str]) -> None:
    """400,000 of them once held 397 MB of the kernel's memory."""
    code = """
import errno, os
made, why = 0, None
try:
    for made in range(20_000):
        os.close(os.open(f"{made:0250}", os.O_CREAT))
except OSError as error:
    why = error.errno
for make in (lambda: os.mkdir("folder"), lambda: os.symlink("x", "link"), lambda: os.link("0" * 250, "hard"), lambda: os.mkfifo("pipe")):
    try:
        make()
        why = 0
    except OSError as error:
        assert error.errno == errno.ENOSPC
"""  # noqa: E501
    assert run_in(inside, code, "assert why == errno.ENOSPC and 4000 < made < 4100, (made, why)") == "passed"


CALLS = """
unshare setns chroot pivot_root mount umount2 open_tree move_mount fsopen fsconfig fsmount fspick
mount_setattr io_uring_setup io_uring_enter io_uring_register add_key request_key keyctl bpf userfaultfd
perf_event_open ptrace process_vm_readv process_vm_writev pidfd_getfd shmget msgget semget memfd_create
memfd_secret
"""


def test_calls_of_no_use_to_an_answer_are_refused_unseen(inside: list[str]) -> None:
    """Before the kernel looks at an argument; clone, which makes threads and processes, where it asks for new
    namespaces (of users, of mounts); clone3, whose flags a filter doesn't see, as if there were none.
    """
    numbers = {name: guard.REFUSED[name][guard.MACHINE] for name in CALLS.split()}
    code = f"""
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def answer(number, flags=0):
    ctypes.set_errno(0)
    return libc.syscall(number, flags, 0, 0, 0, 0), ctypes.get_errno()
wrong = [name for name, number in {numbers}.items() if answer(number) != (-1, errno.EPERM)]
wrong += [flag for flag in (0x10000000, 0x00020000) if answer({guard.CLONE[guard.MACHINE]}, flag | 17) != (-1, errno.EPERM)]
wrong += ["clone3"] * (answer({guard.CLONE3[guard.MACHINE]}) != (-1, errno.ENOSYS))
"""  # noqa: E501
    tests = "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True); assert not wrong"
    assert run_in(inside, code, tests) == "passed"


def test_a_fork_bomb_and_a_thread_bomb_stay_small(inside: list[str]) -> None:
    bomb = """
import os, time
made = refused = 0
for _ in range(200):
    try:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        made += 1
    except OSError:
        refused += 1
"""
    assert run_in(inside, bomb, "assert made < 10 and refused > 100") == "passed"
    threads = """
import threading, time
started = 0
try:
    for _ in range(200):
        threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
        started += 1
except RuntimeError:
    pass
"""
    assert run_in(inside, threads, "assert started < 10") == "passed"
    assert (
        run_in(
            inside,
            "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
            "assert True",
            seconds=1,
        )
        == "failed"
    )
    assert not left()


def test_its_parents_live_and_its_daemons_die(inside: list[str]) -> None:
    code = f"""
import os, signal, time
for pid in ({os.getpid()}, {os.getppid()}, os.getppid(), 1, -1):
    try:
        os.kill(pid, signal.SIGKILL) if pid not in (0, os.getpid()) else None
    except OSError:
        pass
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(987)
    os._exit(0)
"""
    assert run_in(inside, code, "assert True") in ("passed", "failed")  # it may have killed itself
    immortal = (
        "import ctypes, time, os\nctypes.CDLL(None).prctl(1, 0)\nos.setsid() if os.getsid(0) != "
        "os.getpid() else 0\ntime.sleep(987)"
    )
    assert run_in(inside, immortal, "assert True", seconds=1) == "failed"
    assert not left()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_it_ends_with_the_process_that_started_it(inside: list[str], how: signal.Signals) -> None:
    code = (
        "from pipeline.metrics import sandbox as s; "
        "s.run_in(s.bubblewrap(), 'import time; time.sleep(987)', '')"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=PROJECT, stderr=subprocess.DEVNULL) as process:
        while not running():
            time.sleep(0.05)
        time.sleep(0.3)
        process.send_signal(how)
        process.wait(5)
    assert not left()


def running() -> list[int]:
    """Processes that run a guard."""
    return [
        one.pid
        for one in psutil.process_iter(["cmdline"])
        if any("isolate the process, then run" in part for part in one.info["cmdline"] or ())
    ]


def left() -> list[int]:
    """Processes that still run a guard, once the kernel has had time to end them."""
    end = time.monotonic() + 5
    while True:
        if not (found := running()) or time.monotonic() > end:
            return found
        time.sleep(0.05)


def test_nothing_runs_without_a_sandbox(tmp_path: Path) -> None:
    code = "import sys; from pipeline.metrics.sandbox import run_tests; run_tests(sys.argv[1], 'assert True')"
    command = [sys.executable, "-c", code, f"open({str(tmp_path / 'ran')!r}, 'w')"]
    done = ended(command, cwd=PROJECT, env=os.environ | {"PATH": str(tmp_path)})
    assert done.returncode != 0 and re.search(r"Q-METRICS-013.*install bubblewrap", done.stderr)
    assert not (tmp_path / "ran").exists()


def test_what_the_sandbox_says_where_it_fails() -> None:
    no = ["sh", "-c", "echo no namespaces here >&2; exit 1"]
    with pytest.raises(ToolError, match="Q-METRICS-013"):
        run_in(no, "x = 1", "assert True")


def test_a_leaky_sandbox_does_not_pass_the_probe() -> None:
    with pytest.raises(ToolError):
        probe(["env"])
