"""A bucket as DVC's remote, set up by the commands of docs/dvc-remotes.md: pushes and pulls that are
interrupted, what comes out in another clone, and bases that DVC keeps.

The server is moto's, in this process; DVC's commands are processes of their own, which it kills.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from forked import Forked
from graph_settings import graph_text
from make import ran
from s3_server import KEY, S3, Accident
from user_project import BIN, nothing_to_do

from pipeline.core.places import PROJECT
from pipeline.llamacpp.tools import DEFAULT_HOME
from pipeline.workflow.keys.code_keys import LOCK
from pipeline.workflow.state.settings import refresh_lock

pytestmark = pytest.mark.slow
BUCKET = "team"
EXAMPLES = {"example": "s3://my-team", "server": "https://s3.example.org", "folder": "/mnt/disk/quench-store"}
NEEDED = ("Snakefile", "graphs", "pipeline", "profiles", ".dvcignore", ".gitignore")
QUENCH = str(BIN / "quench")
PATH = f"{BIN}{os.pathsep}{os.environ['PATH']}"


class Project:
    """A project's folder and the tools on it."""

    def __init__(self, root: Path, forked: Forked) -> None:
        self.root, self.forked = root, forked

    def run(self, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        client = {"PATH": PATH, "AWS_MAX_ATTEMPTS": "1", "AWS_EC2_METADATA_DISABLED": "true"}
        known = os.environ | KEY | client | environment
        known["LLAMA_CPP_HOME"] = os.environ.get("LLAMA_CPP_HOME") or str(DEFAULT_HOME)
        program = QUENCH if words[0] == "quench" else words[0]
        return self.forked.run(program, *words[1:], cwd=self.root, environment=known)

    def need(self, *words: str) -> str:
        """Run a command, check that it works, and return what it says."""
        done = self.run(*words)
        assert done.returncode == 0, f"{words}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout + done.stderr

    def type(self, *lines: str, **instead: str) -> None:
        """Run commands of the page, with this bucket and server instead of those in it."""
        for line in lines:
            for name, given in instead.items():
                line = line.replace(EXAMPLES[name], given)
            words = shlex.split(line)
            self.git(*words[1:]) if words[0] == "git" else self.need(*words)

    def git(self, *words: str) -> None:
        subprocess.run(["git", *words], cwd=self.root, check=True, capture_output=True)

    def objects(self) -> dict[str, bytes]:
        """{key: bytes} of DVC's cache, as the bucket has them; what a kill left half has no such key."""
        cache = self.root / ".dvc/cache/files"
        return {
            f"quench/files/{path.relative_to(cache)}": path.read_bytes()
            for path in cache.rglob("*")
            if path.is_file() and path.suffix != ".tmp"
        }

    def recorded(self, *, base: bool = False) -> dict[str, bytes]:
        """{key: bytes} of what dvc.lock and data/raw.dvc name."""
        lock, raw = (yaml.safe_load((self.root / name).read_text()) for name in ("dvc.lock", "data/raw.dvc"))
        outs = [*raw["outs"], *(out for stage in lock["stages"].values() for out in stage["outs"])]
        known, found = self.objects(), {}
        for out in outs:
            if out["path"] != LOCK and (base or out["path"] != "models/base"):
                found[key(out["md5"])] = content = known[key(out["md5"])]
                if out["md5"].endswith(".dir"):
                    found |= {key(one["md5"]): known[key(one["md5"])] for one in json.loads(content)}
        return found

    def key(self, path: str) -> str:
        """The name in the bucket of an artifact that is one file."""
        return key(hashlib.md5((self.root / path).read_bytes(), usedforsecurity=False).hexdigest())

    def artifacts(self) -> dict[str, str]:
        """{path: hash} of all that stages made."""
        return {
            str(path.relative_to(self.root)): hashlib.sha256(path.read_bytes()).hexdigest()
            for folder in ("data", "models", "reports")
            for path in (self.root / folder).rglob("*")
            if path.is_file()
        }

    def clone(self, root: Path) -> "Project":
        subprocess.run(["git", "clone", "--quiet", self.root, root], check=True)
        return Project(root, self.forked)


def page(heading: str) -> list[str]:
    """The commands below a heading of docs/dvc-remotes.md."""
    text = (PROJECT / "docs/dvc-remotes.md").read_text(encoding="utf-8").partition(f"# {heading}\n")[2]
    blocks = re.findall(r"^```sh\n(.*?)^```$", text.partition("\n## ")[0], re.M | re.S)
    return [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]


def key(md5: str) -> str:
    """An object's name in the bucket."""
    return f"quench/files/md5/{md5[:2]}/{md5[2:]}"


@pytest.fixture(scope="module")
def forked() -> Iterator[Forked]:
    server = Forked(what="remotes")
    yield server
    server.close()


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with S3() as server:
        server.make_bucket(BUCKET)
        yield server


@pytest.fixture(scope="module")
def project(served: Path, s3: S3, forked: Forked, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The tiny project that has run, in Git and DVC, its default remote the bucket. Read only."""
    root = tmp_path_factory.mktemp("remote") / "project"
    shutil.copytree(served, root, ignore=shutil.ignore_patterns(".quench", "checkpoints", "tensorboard"))
    for name in NEEDED:
        source = PROJECT / name
        if source.is_dir():
            shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, root / name)
    (root / "dvc.yaml").write_text(graph_text("adapter"))
    users = ("data/guard", "data/evaluation", "data/distill")
    for folder in (*users, "data/augmented", "reports/compare", "reports/distill"):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / ".gitkeep").touch()
    made = Project(root, forked)
    made.git("init", "--quiet")
    for words in ("init --quiet", "config core.analytics false", "add --quiet data/raw"):
        made.need("dvc", *words.split())
    subprocess.run([sys.executable, "-m", "pipeline", "code"], cwd=root, check=True, capture_output=True)
    refresh_lock(root)
    made.need("dvc", "commit", "--force", "--quiet")
    made.git("add", "--all")
    made.git("commit", "--quiet", "--message", "has run")
    *lines, push, _ = page("DVC remotes")
    made.type(*lines, example=f"s3://{BUCKET}", server=s3.endpoint)
    assert push == "dvc push"  # as `pushed` does
    return made


def test_a_push_that_is_interrupted_goes_on_and_leaves_nothing_half(pushed: Project, s3: S3) -> None:
    assert s3.objects(BUCKET) == pushed.recorded()
    # DVC's own cache has the base all the same: it remembers runs with everything that they made
    assert pushed.recorded().keys() < pushed.recorded(base=True).keys()
    assert "up to date" in pushed.need("dvc", "push")


def test_a_pull_that_is_interrupted_goes_on_to_the_same_bytes(pulled: Project, pushed: Project) -> None:
    assert pulled.objects() == pushed.recorded()
    assert pulled.artifacts() == {
        name: digest for name, digest in pushed.artifacts().items() if not name.startswith("models/base/")
    }


def test_a_pulled_clone_has_nothing_to_do(pulled: Project) -> None:
    """But for the base's weights, which DVC doesn't keep: nobody fetches them before a stage needs them."""
    pull, plan, verify = page("A clone")
    assert "up to date" in pulled.need(*pull.split())
    assert nothing_to_do(pulled.need(*plan.split()))
    status = json.loads(pulled.need("dvc", "status", "--json"))
    assert status.pop("base") == [{"changed outs": {"models/base": "deleted"}}]
    assert all(found == [{"changed deps": {"models/base": "deleted"}}] for found in status.values())
    assert "none is damaged" in pulled.need(*verify.split())


def test_a_damaged_object_is_named_and_not_used(
    pushed: Project, s3: S3, tmp_path: Path, damaged: Callable[[str], None]
) -> None:
    """By DVC if the remote's `verify` is on, as on the page, else by Quench; mended, `dvc pull` brings it."""
    page_of_report, name = "reports/index.html", pushed.key("reports/index.html")
    damaged(page_of_report)
    checked, trusting = pushed.clone(tmp_path / "checked"), pushed.clone(tmp_path / "trusting")
    done = checked.run("dvc", "pull")
    assert done.returncode == 1 and page_of_report in done.stderr and "Traceback" not in done.stderr
    assert pushed.recorded().keys() - checked.objects().keys() == {name}
    trusting.need("dvc", "remote", "modify", "store", "verify", "false")
    trusting.need("dvc", "pull")
    done = trusting.run("quench", "model", "verify")
    assert done.returncode == 3 and page_of_report in done.stderr
    assert re.search(r"^report +1\b", trusting.need("snakemake", "-n"), re.M)
    s3.remove(BUCKET, name)
    assert f"new:                {page_of_report}" in pushed.need(
        "dvc", *page("When it is interrupted")[0].split()[1:]
    )
    pushed.need("dvc", "push")
    for clone, options in ((checked, []), (trusting, ["--force"])):
        clone.need("dvc", "pull", *options)
        assert (clone.root / page_of_report).read_bytes() == (pushed.root / page_of_report).read_bytes()


def test_a_remote_that_lacks_something_is_named_and_it_is_built(
    pushed: Project, s3: S3, tmp_path: Path, damaged: Callable[[str], None]
) -> None:
    s3.remove(BUCKET, pushed.key("reports/index.html"))
    clone = pushed.clone(tmp_path / "clone")
    done = clone.run("dvc", "pull")
    assert done.returncode == 1 and "reports/index.html" in done.stderr
    said = clone.need("snakemake")
    assert re.search(r"`dvc pull`.* 1 artifact ", said)
    assert "1 job to do: report;" in said
    assert clone.artifacts().keys() == {
        name for name in pushed.artifacts() if not name.startswith("models/base/")
    }
    assert nothing_to_do(clone.need("snakemake", "-n"))


MISTAKES = {
    "no credentials": (
        {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""},
        {},
        "Unable to locate credentials",
    ),
    "wrong credentials": ({"AWS_ACCESS_KEY_ID": "nobody"}, {}, "InvalidAccessKeyId|Forbidden"),
    "wrong bucket": ({}, {"url": "s3://nobodys/quench"}, "NoSuchBucket"),
    "no server": ({}, {"endpointurl": "http://127.0.0.1:9"}, "Could not connect to the endpoint URL"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_a_sentence_of_dvcs_that_the_page_explains(
    pushed: Project, tmp_path: Path, mistake: str
) -> None:
    environment, settings, words = MISTAKES[mistake]
    clone = pushed.clone(tmp_path / "clone")
    for name, value in settings.items():
        clone.need("dvc", "remote", "modify", "--local", "store", name, value)
    done = clone.run("dvc", "pull", **environment)
    assert done.returncode not in (0, 137)
    assert re.search(words, done.stderr) and "Traceback" not in done.stderr
    page = (PROJECT / "docs/dvc-remotes.md").read_text(encoding="utf-8")
    assert all(f"`{one}`" in page for one in words.split("|"))  # DVC asks for several objects at once
    assert clone.objects() == {}


@pytest.fixture(scope="module")
def cached(pushed: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project with its base in DVC's cache, pushed."""
    root = tmp_path_factory.mktemp("cached") / "project"
    shutil.copytree(pushed.root, root)
    project = Project(root, pushed.forked)
    project.type(*page("The base's weights"))
    return project


def test_a_clone_whose_base_is_kept_pulls_everything(cached: Project, s3: S3, tmp_path: Path) -> None:
    """No stage runs, and none would have to ask the base's source."""
    assert s3.objects(BUCKET) == cached.recorded(base=True)
    clone = cached.clone(tmp_path / "clone")
    clone.need("dvc", "pull")
    assert clone.artifacts() == cached.artifacts()
    assert "up to date" in clone.need("dvc", "status")
    assert nothing_to_do(clone.need("snakemake", "-n"))
    assert "Running stage" not in clone.need("dvc", "repro")
    shutil.rmtree(clone.root / "models/base")
    assert "models/base" in clone.need("snakemake", "-n")
    assert clone.artifacts() == cached.artifacts()
    clone.need("quench", "config", "graph", "--no-cache-base")
    assert nothing_to_do(clone.need("snakemake", "-n"))
    assert (clone.root / "dvc.yaml").read_bytes() == graph_text("adapter").encode()


def test_a_base_that_is_not_kept_is_fetched_again_and_nothing_else_runs(
    pulled: Project, pushed: Project
) -> None:
    said = pulled.need("dvc", "repro")
    assert re.findall(r"Running stage '(.*?)'", said) == ["base"]
    assert pulled.artifacts() == pushed.artifacts()
    assert "up to date" in pulled.need("dvc", "status")
    assert nothing_to_do(pulled.need("snakemake", "-n"))


def test_a_folder_does_too(pushed: Project, tmp_path: Path) -> None:
    shutil.copytree(pushed.root, tmp_path / "project")
    project = Project(tmp_path / "project", pushed.forked)
    (project.root / ".dvc/config").write_text("")
    project.type(*page("A shared folder, and SSH"), folder=str(tmp_path / "store"))
    found = {f"quench/{path.relative_to(tmp_path / 'store')}" for path in (tmp_path / "store").rglob("*")}
    assert pushed.recorded().keys() <= found


def test_credentials_stay_out_of_git(pushed: Project) -> None:
    assert (pushed.root / ".dvc/config.local").exists() is False
    pushed.type(page("DVC remotes")[-1])
    try:
        assert "my-team" in (pushed.root / ".dvc/config.local").read_text()
        pushed.git("diff", "--exit-code")
        assert ran(["git", "status", "--porcelain"], cwd=pushed.root).stdout == ""
        assert not any(secret in (pushed.root / ".dvc/config").read_text() for secret in KEY.values())
    finally:
        (pushed.root / ".dvc/config.local").unlink()


@pytest.fixture
def damaged(pushed: Project, s3: S3) -> Iterator[Callable[[str], None]]:
    """Gives what damages the bucket's object of an artifact, until the test ends."""
    before = s3.objects(BUCKET)

    def damage(path: str) -> None:
        content = before[pushed.key(path)]
        s3.put(BUCKET, pushed.key(path), content[:-1] + bytes([content[-1] ^ 1]))

    yield damage
    for name, content in before.items():
        s3.put(BUCKET, name, content)


# ---- what the fixtures do


KINDS: tuple[Accident, ...] = (*["kill"] * 7, "503", *["kill"] * 6, "cut")  # 15 of them


@pytest.fixture(scope="module")
def pushed(project: Project, s3: S3) -> Project:
    """The project, pushed to the end through 15 accidents."""
    interrupted(project, "push", s3, lambda: s3.objects(BUCKET), project.recorded())
    return project


@pytest.fixture(scope="module")
def pulled(pushed: Project, s3: S3, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A clone, pulled to the end through 15 accidents."""
    clone = pushed.clone(tmp_path_factory.mktemp("pulled") / "clone")
    interrupted(clone, "pull", s3, clone.objects, pushed.recorded())
    return clone


def interrupted(
    project: Project, word: str, s3: S3, found: Callable[[], dict[str, bytes]], wanted: dict[str, bytes]
) -> None:
    """Push or pull `wanted`; what is there after each accident is whole, and the next command goes on from
    it. A connection that is cut once is taken up again by itself.
    """
    parts = len(wanted) // len(KINDS) + 1
    for kind in KINDS:
        before, dead = len(found()), len(s3.killed)
        s3.fail(kind, at=parts, children_of=project.forked.server.pid)
        try:
            done = project.run("dvc", word)
        finally:
            requests = s3.requests
            s3.fail(None)
        there = found()
        # where the server is out of order, DVC's own threads may lose a temporary file to each other: then it
        # ends with 255
        raced = kind == "503" and "unexpected error - [Errno 2]" in done.stderr
        assert done.returncode == (255 if raced else {"kill": 137, "503": 1, "cut": 0}[kind]), done.stderr
        assert len(s3.killed) == dead + (kind == "kill")
        assert requests >= parts
        assert before <= len(there) and (len(there) < len(wanted)) == (kind != "cut")
        assert all(wanted[name] == content for name, content in there.items())
