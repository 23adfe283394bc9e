"""Every test runs away from the user's home and off the network; the tiny models are made once per session.

Fixtures: `tools` (the llama.cpp toolchain), `tiny_qwen2` (a Hugging Face folder), `tiny_params` (a
params.yaml as a
dict), `tiny_root` (a project folder: `python -m pipeline STAGE --root DIR` works in it).
"""

import functools
import gc
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import draws
import needed
import pytest
import tiny
import unit_tier
import yaml
from forked import converters_in_forks
from kept import STORE, kept
from needed import pytest_runtest_setup, pytest_terminal_summary  # noqa: F401 (hooks)
from plots_once import forget_plots, plots_once  # noqa: F401 (fixtures)

from pipeline.core.owner import RUN
from pipeline.llamacpp.converters import HeaderFields, to_gguf
from pipeline.llamacpp.tools import Toolchain, find_toolchain

# set before any test module is imported: huggingface_hub reads its environment once, at import
# a process that a test starts may import this too, and end without a word: it has the home of its parent
OF_THIS_WORKER = f"QUENCH_TESTS_HOME_{os.environ.get('PYTEST_XDIST_WORKER', '')}"
OWNER = OF_THIS_WORKER not in os.environ
if OWNER:
    os.environ[OF_THIS_WORKER] = tempfile.mkdtemp(prefix="quench-home-")
HOME = Path(os.environ[OF_THIS_WORKER])
ISOLATED = {
    "HOME": str(HOME),
    "XDG_CACHE_HOME": str(HOME / ".cache"),
    "XDG_CONFIG_HOME": str(HOME / ".config"),
    "XDG_DATA_HOME": str(HOME / ".local" / "share"),
    "HF_HOME": str(HOME / "huggingface"),
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DVC_GLOBAL_CONFIG_DIR": str(HOME / "dvc"),
    "DVC_SITE_CACHE_DIR": str(HOME / "dvc-site"),
    "DVC_NO_ANALYTICS": "1",
    "GIT_CONFIG_GLOBAL": str(HOME / ".gitconfig"),
    "GIT_CONFIG_NOSYSTEM": "1",
    "MPLBACKEND": "Agg",
    "TOKENIZERS_PARALLELISM": "false",
    # a child process that tries to leave the machine meets a closed port
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9"),
    **dict.fromkeys(("no_proxy", "NO_PROXY"), "127.0.0.1,localhost"),
}
FORGOTTEN = (
    *("HF_TOKEN", "HF_ENDPOINT", "HUGGING_FACE_HUB_TOKEN", "TRANSFORMERS_OFFLINE"),
    *("ALL_PROXY", "all_proxy", "DVC_STAGE", "DVC_ROOT"),
)
OUTSIDE = "QUENCH_TESTS_OUTSIDE"  # what they were before, for the few tests that install packages
os.environ.setdefault(OUTSIDE, json.dumps({name: os.environ.get(name) for name in (*ISOLATED, *FORGOTTEN)}))
os.environ.update(ISOLATED)
for name in FORGOTTEN:
    os.environ.pop(name, None)


def outside() -> dict[str, str]:
    """The environment with the user's own home, caches and network."""
    before = json.loads(os.environ[OUTSIDE])
    kept = {name: value for name, value in os.environ.items() if name not in before and name != OUTSIDE}
    return kept | {name: value for name, value in before.items() if value is not None}


def share_the_cores() -> None:
    """Give each test process cores of its own, or one where there are fewer: threads that wait for each other
    on a shared core make the tests three times as slow.
    """
    number = os.environ.get("PYTEST_XDIST_WORKER", "")[2:]
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if number and cores:
        os.sched_setaffinity(0, cores[int(number) % len(cores) :: count])


def hear_signals() -> None:
    """Give SIGINT and SIGHUP back their meaning: under `nohup … &` they are ignored, by all children too, and
    the tests send them.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


# six times as fast
yaml.safe_load = functools.partial(yaml.load, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
os.fsync = lambda handle: None  # no test cuts the power, and a disk that is shared makes each wait
draws.register()
share_the_cores()
hear_signals()
(HOME / ".gitconfig").write_text(
    "[user]\n\tname = Quench test\n\temail = test@localhost\n[init]\n\tdefaultBranch = main\n"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest --unit` runs what needs no PyTorch, Transformers, DVC or Snakemake and no process."""
    parser.addoption(
        "--unit",
        action="store_true",
        help="skip every test that imports PyTorch, Transformers, DVC or Snakemake or starts a process",
    )
    parser.addoption(
        "--record",
        action="store_true",
        help="write tests/recorded or docs/bases.md again: from what is there now",
    )
    needed.pytest_addoption(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Name the folder of kept things: in pytest's cache, also for the next run; else for this run only."""
    needed.pytest_configure(config)
    cache = getattr(config, "cache", None)
    os.environ.setdefault(STORE, str(cache.mkdir("fixtures") if cache else HOME / "fixtures"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Begin the unit tier after xdist's own processes, and `uname`, have been started. Until all is collected
    nothing is looked through for garbage, which takes a sixth of that time.
    """
    gc.disable()
    if session.config.getoption("--unit") and (
        os.environ.get("PYTEST_XDIST_WORKER") or not session.config.getoption("numprocesses")
    ):
        unit_tier.begin()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is exhaustive is slow: `make test` runs neither, before pytest chooses by marks."""
    for item in items:
        if item.get_closest_marker("exhaustive"):
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    """Exempt what is loaded by now from garbage collection. Looking through PyTorch and Transformers would
    take a third of a second each time that a stage collects.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """The same for what a module of tests has loaded, once its fixtures are gone."""
    yield
    if nextitem is not None and nextitem.path != item.path:
        pytest_collection_finish()


def pytest_unconfigure() -> None:
    """Leave nothing of the session's home behind."""
    if OWNER:
        shutil.rmtree(HOME, ignore_errors=True)


@pytest.fixture(autouse=True)
def _belongs_to_no_run() -> Iterator[None]:
    """Forget the Snakemake run that a test has begun in this process: later stages are run by hand."""
    yield
    os.environ.pop(RUN, None)


@pytest.fixture(autouse=True, scope="session")
def _loopback_only() -> Iterator[None]:
    """Connections of this process reach 127.0.0.1, ::1 and Unix sockets only."""
    real = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in (
            "127.0.0.1",
            "::1",
            "localhost",
        ):
            raise OSError(f"tests stay on this machine: a connection to {address} was tried")
        real(self, address)

    patch = pytest.MonkeyPatch()
    patch.setattr(socket.socket, "connect", connect)
    yield
    patch.undo()


@pytest.fixture(scope="session")
def _converters() -> Iterator[None]:
    """To import what a converter needs takes eight seconds of CPU, and tests convert some forty times."""
    with pytest.MonkeyPatch.context() as patch:
        yield from converters_in_forks(patch)


@pytest.fixture
def whole_converters(tools: Toolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    """Converters are started as everywhere but in tests."""
    monkeypatch.setattr("pipeline.llamacpp.tools.subprocess", subprocess)


@pytest.fixture(scope="session")
def tools(_converters: None) -> Toolchain:
    """The llama.cpp that `make setup` built."""
    return find_toolchain()


@pytest.fixture(scope="session")
def tiny_qwen2(tools: Toolchain) -> Path:
    """A random two-layer Qwen2 with Qwen2.5's tokenizer cut to its first 8,000 words, as a Hugging Face
    folder. Read only: copy it to change it.
    """
    return kept("qwen2", lambda folder: tiny.tiny_qwen2(folder, tools, words=tiny.WORDS))


@pytest.fixture(scope="session")
def whole_qwen2(tools: Toolchain) -> Path:
    """The same with the entire vocabulary, for what depends on its size or ids; all else is ten times as fast
    with the other. Read only.
    """
    return kept("whole-qwen2", lambda folder: tiny.tiny_qwen2(folder, tools))


@pytest.fixture
def tiny_params(tiny_qwen2: Path) -> dict[str, Any]:
    """A params.yaml for a run of a minute on `tiny_qwen2`, as a dict to change at will."""
    return tiny.tiny_params(tiny_qwen2)


@pytest.fixture
def tiny_root(tiny_params: dict[str, Any], tmp_path: Path) -> Path:
    """A project folder with `tiny_params` as params.yaml and 40 short conversations in data/raw."""
    return tiny.write_project(tmp_path / "project", tiny_params)


STAGES = (
    *("base", "curate", "preprocess", "train", "merge", "convert"),
    *("quantize@Q4_K_M", "quantize@Q5_K_M", "parity"),
    *("evaluate@base-F16", "evaluate@F16", "evaluate@Q4_K_M", "evaluate@Q5_K_M", "report"),
)
MEASURED = ("parity", "evaluate@source", "evaluate@base")
GGUF_STAGES = (*STAGES[:4], "lora", *MEASURED, "evaluate@adapter", "report")
TUNED_STAGES = (*STAGES[:4], "tuned", *MEASURED, "evaluate@tuned", "report")


@pytest.fixture(scope="session")
def prepared(tiny_qwen2: Path) -> Path:
    """A tiny project folder in which all up to `preprocess` has run. Read only: copy it to change it."""
    return kept(
        "prepared",
        lambda root: run_stages(tiny.write_project(root, tiny.tiny_params(tiny_qwen2)), STAGES[:3]),
        STAGES[:3],
    )


@pytest.fixture(scope="session")
def evaluated(prepared: Path) -> Path:
    """A tiny project folder in which every stage but `report` has run. Read only: copy it to change it."""
    return kept(
        "evaluated", lambda root: run_stages(Path(shutil.copytree(prepared, root)), STAGES[3:-1]), STAGES[:-1]
    )


@pytest.fixture(scope="session")
def finished(evaluated: Path) -> Path:
    """A tiny project folder in which every stage has run. Read only: copy it to change it."""
    return kept(
        "finished", lambda root: run_stages(Path(shutil.copytree(evaluated, root)), STAGES[-1:]), STAGES
    )


@pytest.fixture(scope="session")
def tiny_gguf_base(tiny_qwen2: Path, tools: Toolchain) -> Path:
    """`tiny_qwen2` as an F16 GGUF. Read only."""

    def make(root: Path) -> None:
        root.mkdir()
        to_gguf(tools, tiny_qwen2, root / "tiny.gguf", "F16", HeaderFields("tiny", "qwen2"))

    return kept("gguf-base", make) / "tiny.gguf"


@pytest.fixture(scope="session")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random one-layer Llama in 16 bit. Read only."""
    return tiny.tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="session")
def served(tiny_gguf_base: Path) -> Path:
    """A tiny project of the graph without a merge, every stage run. Read only: copy it to change it."""
    return reported("served", tiny.gguf_params(tiny_gguf_base), GGUF_STAGES)


@pytest.fixture(scope="session")
def tuned(tiny_gguf_base: Path) -> Path:
    """A tiny project of the trained scales graph, every stage run. Read only: copy it to change it."""
    params = tiny.gguf_params(tiny_gguf_base)
    params["train"] |= {"tuner": "scales", "learning_rate": 1.0e-2, "weight_decay": 0.0}
    params["evaluate"] |= {"models": ["source", "base", "tuned"]}
    return reported("tuned", params, TUNED_STAGES)


def reported(name: str, params: dict[str, Any], stages: tuple[str, ...]) -> Path:
    """A kept project in which `stages` have run, `report` last: its code alone makes the page alone again."""
    measured = kept(
        f"measured-{name}",
        lambda root: run_stages(tiny.write_project(root, params), stages[:-1]),
        stages[:-1],
    )
    return kept(name, lambda root: run_stages(Path(shutil.copytree(measured, root)), stages[-1:]), stages)


def run_stages(root: Path, stages: tuple[str, ...]) -> Path:
    """Run stages one after the other, in this process (importing torch once), and give the root."""
    from pipeline.__main__ import main

    for stage in stages:
        assert main([stage, "--root", str(root)]) == 0, f"stage {stage} failed"
    return root
