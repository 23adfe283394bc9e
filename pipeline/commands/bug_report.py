"""Print what a bug report needs: versions, machine, settings, states of the stages, the last error.

Names, paths, secrets and texts of rows are left out: of the settings only those values are shown that are
numbers, names of Quench's own or from its recipes; in the last error every name that this machine and project
are known to have is replaced, as are quoted texts, paths, and what stage curate takes for secret or personal.

Reads `params.yaml`, `dvc.lock`, what the stages read and wrote, and the ends of `logs/`. Changes nothing.

    quench doctor report
"""

import importlib.metadata
import os
import platform
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.commands.doctor import GB, PINNED
from pipeline.config.choices import choices
from pipeline.config.levels import level_problem
from pipeline.config.params import Params, read_params
from pipeline.config.params_text import value_at
from pipeline.config.sections.values import group_of, keys_of
from pipeline.core.catalog import catalog
from pipeline.core.errors import QuenchError, ToolError
from pipeline.core.git import ask_git
from pipeline.core.hardware import machine
from pipeline.core.places import IS_CHECKOUT, PROJECT, resource
from pipeline.core.text import one_line, plural
from pipeline.core.yaml_readers import UNREADABLE, read_fast
from pipeline.llamacpp.devices import devices
from pipeline.llamacpp.tools import find_toolchain
from pipeline.workflow.graph_source import graph_source
from pipeline.workflow.overview.causes import Kind
from pipeline.workflow.overview.states import overview

PACKAGES = (
    *PINNED,
    "torch",
    "accelerate",
    "datasets",
    "liger-kernel",
    "llama-cpp-python",
    "typer",
    "pydantic",
)
LOGS = ("logs/*.log", ".snakemake/log/*.log")
END_BYTES = 1 << 16  # read from the end of a log
LONGEST = 600  # characters of the last error
CAUSES = 3  # of a job's state that are named
OWN_WORDS = (
    "quench",
    "pipeline",
    "data",
    "models",
    "reports",
    "logs",
    "params",
    "raw",
    "val",
    "test",
    "demo",
)
SHORTEST = 2  # characters of a name that is replaced
ERROR = re.compile(r"\b(Q-[A-Z]+-\d{3}): (.*)")
TRACEBACK = "Traceback (most recent call last):"
FRAME = re.compile(r'File "[^"]*/(pipeline/[\w/]+\.py)", line (\d+), in (\S+)')
EXCEPTION = re.compile(r"^([A-Za-z_][\w.]*)(?::|$)")
QUOTED = re.compile(r"(?<!\w)'[^'\n]*'(?!\w)|\"[^\"\n]*\"|“[^”\n]*”")
# Keys of services, of which no list is complete. A hash has no capitals.
TOKEN = re.compile(r"(?<!\w)(?=[\w+=-]*[A-Z])(?=[\w+=-]*[a-z])(?=[\w+=-]*\d)[\w+=-]{20,}")
FULL_PATH = re.compile(r"(?<![\w.\]])(?:~|/)(?:[^\s/:,;'\"`()]+/)*[^\s/:,;'\"`()]*[^\s/:,;.'\"`()]")


def main(root: Path) -> None:
    """Print the report."""
    hide = Hider(root)
    print("Quench's own report for an issue: read it before you paste it.\n")
    for title, lines in (
        ("Versions", versions),
        ("Machine", machine_lines),
        ("Settings that differ from the defaults", settings),
        ("Stages", states),
        ("Last error", last_error),
    ):
        print(f"### {title}\n")
        for line in _lines(lines, root, hide):
            print(f"    {hide(line)}")
        print()


class Hider:
    """Replacement of what names the user, the machine, or the data. `public` are texts that may be shown as a
    setting: those of the defaults, of the recipes and of the schema.
    """

    def __init__(self, root: Path) -> None:
        from pipeline.stages.curate.rules.redaction import Redactor

        recipes = [read_fast(file) for file in resource("recipes").glob("*.yaml")]
        self.public = set(_texts([Params().model_dump(mode="json"), *recipes]))
        for place, _ in keys_of(Params):
            self.public |= {*place, *choices(".".join(place))}
        values: list[Any] = []
        with suppress(OSError, *UNREADABLE):  # A file with errors has texts of the user too.
            values = [read_fast(root / "params.yaml")]
        self._known = {text: "[SETTING]" for text in _texts(values) if not _is_public(text, self.public)}
        self._known |= dict(_known_names(root))
        # A folder called train or a file demo.jsonl says nothing of its owner, and reports need these words.
        self._own = {*graph_source()["stages"], *Params.model_fields, *OWN_WORDS}
        self._scrub = Redactor().scrub

    def __call__(self, text: str) -> str:
        """Return `text` without these names, quoted texts, paths, secrets and personal data."""
        for name in sorted(self._known, key=len, reverse=True):
            if len(name) >= SHORTEST and name.lower() not in self._own:
                pattern = rf"(?<!\w){re.escape(name)}(?!\w)"
                text = re.sub(pattern, self._known[name], text, flags=re.IGNORECASE)
        text = FULL_PATH.sub("[PATH]", QUOTED.sub("[TEXT]", text))
        return TOKEN.sub(self._token, self._scrub(text))

    def _token(self, match: re.Match[str]) -> str:
        """Return a long mix of letters and digits if a recipe has it, otherwise what stands for a secret."""
        return match[0] if any(match[0] in text for text in self.public) else "[SECRET]"


def _known_names(root: Path) -> Iterator[tuple[str, str]]:
    """Yield (name, what stands for it) of the user, the machine, the project and the files of data."""
    import getpass
    import pwd

    for file in sorted(path for path in (root / "data").rglob("*") if path.is_file()):
        if "final" not in file.parts and "tokens" not in file.parts:
            yield file.name, "[FILE]"
            yield file.stem, "[FILE]"
    yield root.resolve().name, "[PROJECT]"
    with suppress(KeyError, OSError):
        yield getpass.getuser(), "[USER]"
        yield pwd.getpwuid(os.getuid()).pw_gecos.partition(",")[0], "[USER]"
    for key in ("user.name", "user.email"):
        yield _output("git", "-C", str(root), "config", key), "[USER]"
    yield socket.gethostname(), "[HOST]"
    yield socket.gethostname().partition(".")[0], "[HOST]"
    yield str(root.resolve()), "[PROJECT]"
    yield str(Path.home()), "[HOME]"


def _lines(lines: Callable[[Path, Hider], Iterator[str]], root: Path, hide: Hider) -> Iterator[str]:
    """Yield the lines of a section, up to what can't be read."""
    try:
        yield from lines(root, hide)
    except QuenchError as error:
        yield f"can't be read: {one_line(str(error), LONGEST)}"
    except (OSError, *UNREADABLE, KeyError, TypeError, AttributeError) as error:
        yield f"can't be read: {type(error).__name__}"


def versions(root: Path, hide: Hider) -> Iterator[str]:
    """Yield the versions of Quench, Python, the packages and llama.cpp."""
    kind = "installed package"
    if IS_CHECKOUT:
        try:
            commit = ask_git(PROJECT, "rev-parse", "--short=12", "--verify", "--quiet", "HEAD")
            edited = ask_git(PROJECT, "status", "--porcelain", "--untracked-files=no", "--", "pipeline")
            name = commit.decode().strip() if commit else "no commit"
            kind = f"checkout of {name}{', its code edited' if edited else ''}"
        except ToolError as error:
            kind = f"checkout, of which Git says: {error.sentence}"
    libc = " ".join(platform.libc_ver())
    yield f"quench {_version('quench')}, {kind}"
    system = f"{platform.system()} {platform.release()} {platform.machine()} {libc}"
    yield f"python {platform.python_version()}, {system.strip()}"
    yield ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    try:
        tools = find_toolchain(None)
        seen = ", ".join(device.name for device in devices(tools)) or "no GPU"
        yield f"llama.cpp {tools.version}; it sees {seen}"
    except (ToolError, OSError, subprocess.SubprocessError) as error:
        yield f"llama.cpp: {getattr(error, 'id', type(error).__name__)}"


def machine_lines(root: Path, hide: Hider) -> Iterator[str]:
    """Yield the processor, memory and GPUs, and what is free."""
    import psutil

    yield machine()
    memory = psutil.virtual_memory().available / GB
    disk = shutil.disk_usage(root).free / GB
    yield f"{memory:.1f} GB of memory available, {disk:.1f} GB of disk free"


def settings(root: Path, hide: Hider) -> Iterator[str]:
    """Yield the settings that differ from the defaults. Of a text only its length is said, unless it is a
    name of Quench's own or a value in its recipes.
    """
    params = read_params(root / "params.yaml").params
    values = params.model_dump(mode="json")
    defaults = Params().model_dump(mode="json")
    for place, field in keys_of(Params):
        value = value_at(values, place)
        if group_of(field) or value == value_at(defaults, place):
            continue
        key = ".".join(place)
        yield f"{key}: {_shown(value, hide.public)}"
    yield f"(graph of {params.product.plural})"


def states(root: Path, hide: Hider) -> Iterator[str]:
    """Yield each job's state as `quench status` has it, with what differs, but no values and no files."""
    params = read_params(root / "params.yaml").params
    for job in overview(root, params).jobs:
        causes = [f"{cause.kind} {cause.name}" for cause in job.causes if cause.kind != Kind.NO_RECORD]
        more = f" and {len(causes) - CAUSES} more" if len(causes) > CAUSES else ""
        differs = f" ({', '.join(causes[:CAUSES])}{more})" if causes else ""
        yield f"{job.name}: {job.state}{differs}"


def last_error(root: Path, hide: Hider) -> Iterator[str]:
    """Yield the newest error in the logs, with its place in the code if it is a bug."""
    logs = [file for pattern in LOGS for file in root.glob(pattern) if file.is_file()]
    for log in sorted(logs, key=lambda file: file.stat().st_mtime, reverse=True):
        found = list(_error_in(log))
        if found:
            hours = max(0.0, time.time() - log.stat().st_mtime) / 3600
            yield f"{log.stem}, {hours:.1f} hours ago"
            yield from found
            return
    yield "none in the logs"


def _error_in(log: Path) -> Iterator[str]:
    """Yield lines on the last error in a log; none if it has no error."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - END_BYTES))
        text = file.read(END_BYTES).decode(errors="replace")
    errors = list(ERROR.finditer(text))
    bug = text.rfind(TRACEBACK)
    if errors and errors[-1].start() > bug:
        id, sentence = errors[-1].groups()
        yield f"{id}: {one_line(sentence, LONGEST)}"
        if id in catalog():
            yield f"({catalog()[id].when})"
    elif bug >= 0:
        lines = text[bug:].splitlines()
        for path, number, function in FRAME.findall(text[bug:]):
            yield f"{path}:{number} {function}"
        names = [match[1] for line in lines[1:] if (match := EXCEPTION.match(line))]
        yield f"{names[-1] if names else 'unknown exception'} (its text is left out)"


def _texts(values: Sequence[Any]) -> Iterator[str]:
    """Yield every text in nested lists and mappings, keys of mappings too."""
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            yield from _texts([*value, *value.values()])
        elif isinstance(value, list):
            yield from _texts(value)


def _is_public(text: str, allowed: set[str]) -> bool:
    return text in allowed or level_problem(text.removeprefix("base-")) is None


def _shown(value: Any, allowed: set[str]) -> str:
    if isinstance(value, str):
        return value if _is_public(value, allowed) else f"(a text of {len(value)} characters)"
    if isinstance(value, list):
        return f"[{', '.join(_shown(item, allowed) for item in value)}]"
    if isinstance(value, dict):
        return f"(a mapping with {plural(len(value), 'key')})"
    return str(value)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _output(*command: str) -> str:
    """Return a command's output on one line; nothing if it fails."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""
    return ""
