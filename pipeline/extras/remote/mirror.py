"""Copy a run's log, journal and checkpoints from the host to this machine, as if train ran here."""

import codecs
import hashlib
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from pipeline.core.errors import ToolError
from pipeline.core.hashing import file_hash
from pipeline.core.jsonl import parse_object
from pipeline.core.progress import JobProgress, current_record
from pipeline.core.publish import need_disk, publishing, remove
from pipeline.core.text import safe
from pipeline.extras.remote.answers import Piece, Snapshot
from pipeline.extras.remote.host.files import CHECKPOINTS
from pipeline.extras.remote.payload import JOURNAL, NO_STATE, SCRATCH, STALLED, STATE
from pipeline.extras.remote.ssh import SshConnection
from pipeline.extras.ssh import ConnectionLost, foreign
from pipeline.stages.train.checkpoints import METRICS_LOG, defect
from pipeline.stages.train.run import RUN

LOG = "logs/train.log"  # the path that Snakemake's rule uses
FOLLOWED = {"log": "log", "journal": f"project/{JOURNAL}"}


class RunRemoved(Exception):
    """The run's folder does not exist on the host any more."""


class _Pruned(Exception):
    """A checkpoint was deleted while it was read. The message names the missing part."""


class Mirror:
    """Local copy of the files of `run`, a training of so many `steps` (0: unknown), below `root`."""

    def __init__(self, connection: SshConnection, root: Path, run: str, steps: int = 0) -> None:
        self.steps = steps
        self.connection = connection
        self.root = root
        self.run = run
        self.paths = {"log": root / LOG, "journal": root / JOURNAL}
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # {path below the root: sha256} of the local files that are as the host sent them
        self._placed: dict[str, str] = {}

    def follow(self) -> None:
        """Print train's output, fetch journal and checkpoints until it exits or the connection is lost."""
        tails = {name: _size_and_hash(path) for name, path in self.paths.items()}
        stream = self.connection.follow(
            run=self.run, files=FOLLOWED, checkpoints=f"project/{CHECKPOINTS}", tails=tails
        )
        try:
            for news in stream:
                if news.piece:
                    self._append(news.piece)
                if news.checkpoints:
                    self.bring(STATE)
                if news.ended:
                    return
        except ConnectionLost as cut:
            print(
                f"remote: the connection to {self.connection.name} is lost ({cut}); train runs there: trying "
                "again",
                file=sys.stderr,
                flush=True,
            )

    def _append(self, piece: Piece) -> None:
        """Write a piece of the log or the journal. A piece at offset 0 replaces the file in one rename."""
        path = self.paths[piece.file]
        content = piece.data
        if piece.at not in (0, path.stat().st_size if path.is_file() else 0):
            raise ConnectionLost(f"{path} was changed here")
        if piece.at == 0:
            with publishing(path) as aside:
                aside.write_bytes(content)
        else:
            with path.open("ab") as file:
                file.write(content)
        if piece.file == "log":
            print(self._decoder.decode(content), end="", flush=True)
        else:
            self._record(content)

    def _record(self, rows: bytes) -> None:
        """Write the last step in these rows of the journal, which may be cut, to this job's record."""
        record = current_record()
        if record is None or not self.steps:
            return
        for line in reversed(rows.split(b"\n")):
            try:
                row = parse_object(line)
                step = int(row["step"])
                seconds_left = (self.steps - step) * float(row["seconds"])
                loss = f", loss {row['loss']:.3g}"
            except (ValueError, TypeError, KeyError):  # a cut line, or no step
                continue
            record.write(JobProgress.at_step(step, self.steps, loss, seconds_left))
            return

    def bring(self, paths: Sequence[str]) -> dict[str, str]:
        """Fetch the files at `paths` (folders with everything below) as they are on the host now. They are
        verified, and each artifact is complete. A checkpoint here that the host
        has deleted is deleted too, unless one of the fetched ones is incomplete. Return {path: sha256}.

        Raises `ToolError` if they can't be fetched, and `RunRemoved` if the run's folder is gone.
        """
        skip = [*NO_STATE, METRICS_LOG]  # The journal is followed line by line.
        snapshot: Snapshot = self.connection.ask("snapshot", run=self.run, paths=list(paths), skip=skip)
        files = snapshot.files
        if files is None:
            raise RunRemoved
        outside = snapshot.outside(paths)
        if outside:
            raise foreign(self.connection.name, f"the path {outside}")
        digests = {place: digest for place, (digest, _) in files.items()}
        have = {
            digest: self.root / place
            for place, digest in self._kept_hashes(files).items()
            if digests.get(place, digest) == digest  # A file about to be replaced is not a source.
        }
        folder = self._fetch({digest: size for digest, size in files.values() if digest not in have})
        changed = {place: digest for place, digest in digests.items() if self._placed.get(place) != digest}
        complete = True
        # The record that identifies the run is written last.
        ordered = sorted(changed, key=lambda place: (place == f"{CHECKPOINTS}/{RUN}", _unit(place)))
        for unit, _ in groupby(ordered, _unit):
            inside = [place for place in digests if _unit(place) == unit]
            try:
                self._place(unit, inside, digests, have, folder)
            except _Pruned as reason:
                print(f"remote: {safe(f'{unit} is left out ({reason})', 200)}", file=sys.stderr)
                digests = {place: digest for place, digest in digests.items() if place not in inside}
                complete = False
        checkpoints = {
            Path(place).relative_to(CHECKPOINTS).parts[0]
            for place in digests
            if place.startswith(f"{CHECKPOINTS}/")
        }
        for path in (self.root / CHECKPOINTS).glob("[!.]*"):
            if complete and path.name not in {*checkpoints, *skip}:
                remove(path)
        self._placed |= digests
        remove(folder)
        return digests

    def _kept_hashes(self, files: Mapping[str, Any]) -> dict[str, str]:
        """Return {path: SHA-256} of the local files. Each file is read once."""
        for place in files:
            if place not in self._placed and (self.root / place).is_file():
                self._placed[place] = file_hash(self.root / place)
        return {place: digest for place, digest in self._placed.items() if (self.root / place).is_file()}

    def _place(
        self,
        unit: str,
        places: list[str],
        digests: Mapping[str, str],
        have: Mapping[str, Path],
        folder: Path,
    ) -> None:
        """Publish a file, or a complete folder."""
        is_checkpoint = Path(unit).parent == Path(CHECKPOINTS) and [unit] != places
        with publishing(self.root / unit, _check if is_checkpoint else None) as aside:
            for place in places:
                target = aside / Path(place).relative_to(unit)
                target.parent.mkdir(parents=True, exist_ok=True)
                digest = digests[place]
                shutil.copyfile(have.get(digest, folder / digest), target)

    def _fetch(self, sizes: Mapping[str, int]) -> Path:
        """Fetch the files of these hashes into a folder and return it. Files that a lost connection left
        there are resumed.
        """
        folder = self.root / SCRATCH / "coming"
        folder.mkdir(parents=True, exist_ok=True)
        need_disk(folder, sum(sizes.values()) - sum(path.stat().st_size for path in folder.iterdir()))
        before = -1  # bytes that had arrived at the last look
        stalled = 0  # looks in a row without a new byte
        trouble = ""
        while missing := [name for name, size in sizes.items() if not _arrived(folder / name, size)]:
            received = sum((folder / name).stat().st_size for name in sizes if (folder / name).exists())
            stalled = stalled + 1 if received == before else 0
            before = received
            if stalled >= STALLED:
                raise ToolError(
                    "Q-REMOTE-006",
                    f"nothing more comes from {self.connection.name} ({trouble}): make room here",
                )
            try:
                self.connection.pull(self.run, folder, missing)
                trouble = "what comes has other bytes"
            except ConnectionLost as cut:
                trouble = str(cut)
                if self.connection.ask("look", run=self.run).state == "none":
                    raise RunRemoved from cut
            time.sleep(stalled)
        return folder


def _arrived(path: Path, size: int) -> bool:
    """Return True if a file is complete. A file of its size with other bytes is removed."""
    if not path.is_file() or path.stat().st_size < size:
        return False
    if file_hash(path) == path.name:
        return True
    path.unlink()
    return False


def _size_and_hash(path: Path) -> tuple[int, str]:
    """Return the size and SHA-256 of the local part of a followed file."""
    content = path.read_bytes() if path.is_file() else b""
    return len(content), hashlib.sha256(content).hexdigest()


def _unit(place: str) -> str:
    """Return the path that is published in one rename: a checkpoint, the adapter, or a file."""
    parts = Path(place).parts
    if place.startswith(f"{CHECKPOINTS}/"):
        return "/".join(parts[:3]) if parts[2].startswith("checkpoint-") else place
    return "/".join(parts[:2]) if parts[0] == "models" else place


def _check(checkpoint: Path) -> None:
    trouble = defect(checkpoint)
    if trouble:
        raise _Pruned(trouble)
