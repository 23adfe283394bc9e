"""Are the bytes on disk those that `dvc.lock` records? Asked before they are read, restored, served or
shipped.

    verify_inputs("quantize@Q4_K_M", root)       what a stage is about to read; what is known to be unchanged
    is not read again verify_outputs([root / "models/gguf/demo-Q4_K_M.gguf"], root)     what leaves the house;
    always read

Both raise `DataError`, and both say nothing about a file that no stage of a DVC project recorded.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.core.errors import DataError
from pipeline.core.hashing import NO_PART
from pipeline.workflow.dvc_cache import drop_rotten, listing, place
from pipeline.workflow.hashes import Digests, Hashes, files_below
from pipeline.workflow.locked import inputs_of, recorded
from pipeline.workflow.receipts import is_remote
from pipeline.workflow.record import is_about, open_project

NAMED = 3  # files of a folder that a sentence names


def verify_inputs(stage: str, root: Path) -> None:
    """Raise `DataError` where an input of `stage` is not what the stage that wrote it recorded, or raw data
    changed though its date did not.
    """
    root = root.resolve()
    inputs = inputs_of(stage, root) if (root / ".dvc").is_dir() else []
    sources = [root / path for path in inputs if (root / f"{path}.dvc").is_file()]
    with Hashes(root) as hashes:
        hashes.md5s([file for source in sources for file in files_below(source)])
        _need_good(root, [root / path for path in inputs], hashes, again=False)


def verify_outputs(
    paths: Iterable[Path], root: Path, *, again: bool = True, params: Path | None = None
) -> None:
    """Raise `DataError` where one of `paths` (files, or folders of them) is not what its stage recorded;
    `again`: read also what seems unchanged.

    With another `params` file than the project's it is said and not refused: what was made by that is in no
    record.
    """
    # a file that is a link is not followed: it leads into DVC's cache
    inside = [os.path.relpath(path, root) for path in paths]
    try:
        with Hashes(root) as hashes:
            _need_good(
                root.resolve(),
                [root.resolve() / path for path in inside if not path.startswith("..")],
                hashes,
                again=again,
            )
    except DataError as error:
        if is_about(params, root):
            raise
        print(f"Unless it was made with {params}: {error.sentence}", file=sys.stderr)


def _need_good(root: Path, paths: list[Path], hashes: Hashes, *, again: bool) -> None:
    wanted = [one for one in recorded(root) if any(_overlap(root / one.path, path) for path in paths)]
    changed = differing({root / one.path: one.md5 for one in wanted}, hashes, again=again)
    if changed and is_remote():
        named = ", ".join(str(path.relative_to(root)) for path in changed[:NAMED])
        raise DataError(
            "Q-WORKFLOW-007",
            f"{named} changed on disk since a stage wrote it: start `snakemake` again, which brings it back "
            "or runs that stage",
        )
    if changed or hashes.suspects:
        with open_project(root, wait=True) as repo:
            if found := faults(repo, hashes, changed):
                raise DataError("Q-WORKFLOW-007", "; ".join(found))


def differing(records: Mapping[Path, str], hashes: Hashes, *, again: bool = False) -> list[Path]:
    """Which files and folders of `records` ({path: md5}) have other bytes; DVC is to hear of them, also if
    another process read them.
    """
    digests = hashes.md5s([file for path in records for file in files_below(path)], again=again)
    changed = [path for path, md5 in records.items() if path.exists() and _digest(path, digests) != md5]
    hashes.fresh |= {file: digests[file] for path in changed for file in files_below(path) if file in digests}
    return changed


def md5s_of(paths: Iterable[str], root: Path, hashes: Hashes) -> dict[str, str]:
    """{path: md5} of those files and folders, relative to `root`, that are there."""
    there = [path for path in paths if (root / path).exists()]
    digests = hashes.md5s([file for path in there for file in files_below(root / path)])
    return {path: digest for path in there if (digest := _digest(root / path, digests))}


def faults(repo: Any, hashes: Hashes, paths: Iterable[Path]) -> list[str]:
    """A sentence with a remedy for each output of a stage among `paths` that DVC, with the true hashes before
    it, finds changed; and for raw data.

    Objects of DVC's cache that would bring damage back are put aside, so that the remedy works.
    """
    teach(repo, hashes)
    wanted, sentences = set(paths), []
    for out in repo.index.outs:
        path, is_source = Path(out.fs_path), out.stage.is_data_source
        suspects = [file for file in hashes.suspects if _overlap(file, path)] if is_source else []
        if (suspects if is_source else path in wanted) and "modified" in out.workspace_status().values():
            drop_rotten(out, hashes)
            sentences.append(
                _source_sentence(out, suspects)
                if is_source
                else _stage_sentence(out, changed_files(out, hashes))
            )
    return sentences


def teach(repo: Any, hashes: Hashes) -> None:
    """Tell DVC the hashes that were found by reading: it goes by inode, size and date, and would believe in
    what it had.
    """
    from dvc_data.hashfile.hash_info import HashInfo

    repo.state.save_many(
        [(str(path), HashInfo("md5", digest), None) for path, digest in hashes.fresh.items()], repo.fs
    )
    hashes.fresh.clear()


def learn(repo: Any, hashes: Hashes) -> list[str]:
    """Read every output that is not known to be unchanged, and tell DVC; the files that changed though their
    dates did not, relative to the project.

    Raises `DataError` where such a file is raw data: nothing but its owner can tell damage from an edit.
    """
    changed = differing({Path(out.fs_path): out.hash_info.value for out in repo.index.outs}, hashes)
    if found := faults(repo, hashes, ()):
        raise DataError("Q-WORKFLOW-007", "; ".join(found))
    return sorted(
        file.relative_to(repo.root_dir).as_posix()
        for file in hashes.suspects
        if any(_overlap(file, path) for path in changed)
    )


def _digest(path: Path, digests: Digests) -> str | None:
    """The md5 as DVC records it; of a folder that of a list of its files (those that `.dvcignore` names would
    count: DVC itself is asked then).
    """
    if not path.is_dir():
        return digests.get(path)
    below = {
        file.relative_to(path).as_posix(): digests[file]
        for file in files_below(path)
        if file in digests and file.name not in NO_PART
    }
    text = json.dumps([{"md5": below[name], "relpath": name} for name in sorted(below)])
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() + ".dir"


def is_cached(path: Path, cache: Path, hashes: Hashes) -> bool:
    """Whether DVC's cache has a file or a folder as it is on disk, to the byte; its objects are read too."""
    digests = hashes.md5s([file for file in files_below(path) if file.name not in NO_PART])
    objects = {place(cache, md5): md5 for md5 in (*digests.values(), _digest(path, digests) or "")}
    found = hashes.md5s(one for one in objects if one.is_file())
    return all(md5 and found.get(one) == md5.removesuffix(".dir") for one, md5 in objects.items())


def changed_files(out: Any, hashes: Hashes) -> list[str]:
    """Which files of a folder changed, where DVC's cache knows them."""
    folder = Path(out.fs_path)
    entries = listing(Path(out.cache.path), out.hash_info.value)
    return [entry["relpath"] for entry in entries if hashes.md5(folder / entry["relpath"]) != entry["md5"]]


def _stage_sentence(out: Any, files: list[str]) -> str:
    named = ", ".join(files[:NAMED]) + (f" and {len(files) - NAMED} more" if len(files) > NAMED else "")
    what = f"{_place(out)} ({named})" if files else _place(out)
    kept = not out.changed_cache()
    remedy = (
        f"`dvc checkout --force {_place(out)}` brings back what it wrote, or `snakemake` runs it again"
        if kept
        else "`snakemake` runs it again"
    )
    return f"{what} changed on disk since {out.stage.name} wrote it: {remedy}"


def _source_sentence(out: Any, files: list[Path]) -> str:
    names = ", ".join(file.relative_to(out.repo.root_dir).as_posix() for file in sorted(files)[:NAMED])
    back = (
        f"`dvc checkout --force {_place(out)}` brings back what was recorded"
        if not out.changed_cache()
        else "DVC's cache has no good copy"
    )
    return f"{names} changed on disk though its date did not: {back}; `touch` it if you meant to change it"


def _place(out: Any) -> str:
    return Path(out.fs_path).relative_to(out.repo.root_dir).as_posix()


def _overlap(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)
