"""Comparison of the bytes on disk with `dvc.lock`, before they are read, restored, served or shipped.

- `verify_inputs("quantize@Q4_K_M", root)`: what a stage is about to read; a file that is known to be
  unchanged is not read again.
- `verify_outputs([root / "models/gguf/demo-Q4_K_M.gguf"], root)`: what is served or shipped; always read.

Both raise `DataError`, and both ignore a file that no stage of a DVC project recorded.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.core.errors import DataError
from pipeline.workflow.cluster_jobs import is_remote
from pipeline.workflow.keys.stamps import files_below
from pipeline.workflow.state.dvc_project import listing, open_project, quarantine_damaged, update_dvc_state
from pipeline.workflow.state.hashes import Hashes
from pipeline.workflow.state.lockfile import changed_paths, inputs_of, overlap, recorded_outputs
from pipeline.workflow.state.record import is_project_config

NAMED = 3  # files of a folder that a sentence names


def verify_inputs(stage: str, root: Path) -> None:
    """Raise `DataError` if an input of `stage` differs from its record.

    It is also raised if raw data changed without a new date.
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
    """Raise `DataError` if one of `paths` (files, or folders of them) differs from what its stage recorded.

    With `again`, files that seem unchanged are read too. With a `params` file other than the project's the
    difference is reported and not refused, because no record contains the outputs of such a file.
    """
    # A link is not resolved, because it leads into DVC's cache.
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
        if is_project_config(params, root):
            raise
        print(f"Unless it was made with {params}: {error.sentence}", file=sys.stderr)


def _need_good(root: Path, paths: list[Path], hashes: Hashes, *, again: bool) -> None:
    records = {
        out: md5 for out, md5 in recorded_outputs(root).items() if any(overlap(out, path) for path in paths)
    }
    changed = changed_paths(records, hashes, again=again)
    if changed and is_remote():
        named = ", ".join(str(path.relative_to(root)) for path in changed[:NAMED])
        raise DataError(
            "Q-WORKFLOW-007",
            f"{named} changed on disk since a stage wrote it: start `snakemake` again, which brings it back "
            "or runs that stage",
        )
    if changed or hashes.suspects:
        with open_project(root, wait=True) as repo:
            _refuse_damage(repo, hashes, changed)


def damage_sentences(repo: Any, hashes: Hashes, paths: Iterable[Path]) -> list[str]:
    """Return a sentence with a remedy for each stage's output in `paths` and raw data that DVC finds changed.

    DVC gets the true hashes first. Objects of its cache that would restore damage are quarantined, so that
    the remedy works.
    """
    update_dvc_state(repo, hashes)
    checked = set(paths)
    sentences: list[str] = []
    for out in repo.index.outs:
        path = Path(out.fs_path)
        is_source = out.stage.is_data_source
        suspects = [file for file in hashes.suspects if is_source and overlap(file, path)]
        is_suspect = bool(suspects) if is_source else path in checked
        if not is_suspect or "modified" not in out.workspace_status().values():
            continue
        quarantine_damaged(out, hashes)
        if is_source:
            sentences.append(_source_sentence(out, suspects))
        else:
            sentences.append(_stage_sentence(out, changed_files(out, hashes)))
    return sentences


def _refuse_damage(repo: Any, hashes: Hashes, paths: Iterable[Path] = ()) -> None:
    sentences = damage_sentences(repo, hashes, paths)
    if sentences:
        raise DataError("Q-WORKFLOW-007", "; ".join(sentences))


def scan_outputs(repo: Any, hashes: Hashes) -> list[str]:
    """Read every output that is not known to be unchanged, and give DVC the hashes.

    Return the files that changed though their dates did not, relative to the project. Raises `DataError` if
    such a file is raw data: only its owner can distinguish damage from an edit.
    """
    changed = changed_paths({Path(out.fs_path): out.hash_info.value for out in repo.index.outs}, hashes)
    _refuse_damage(repo, hashes)
    return sorted(
        file.relative_to(repo.root_dir).as_posix()
        for file in hashes.suspects
        if any(overlap(file, path) for path in changed)
    )


def changed_files(out: Any, hashes: Hashes) -> list[str]:
    """Return the files of a folder that changed, if DVC's cache knows them."""
    folder = Path(out.fs_path)
    entries = listing(Path(out.cache.path), out.hash_info.value)
    return [entry["relpath"] for entry in entries if hashes.md5(folder / entry["relpath"]) != entry["md5"]]


def _stage_sentence(out: Any, files: list[str]) -> str:
    names = ", ".join(files[:NAMED])
    if len(files) > NAMED:
        names += f" and {len(files) - NAMED} more"
    place = f"{_place(out)} ({names})" if files else _place(out)
    back = f"`dvc checkout --force {_place(out)}` brings back what it wrote, or "
    if out.changed_cache():
        back = ""
    return f"{place} changed on disk since {out.stage.name} wrote it: {back}`snakemake` runs it again"


def _source_sentence(out: Any, files: list[Path]) -> str:
    names = ", ".join(file.relative_to(out.repo.root_dir).as_posix() for file in sorted(files)[:NAMED])
    back = f"`dvc checkout --force {_place(out)}` brings back what was recorded"
    if out.changed_cache():
        back = "DVC's cache has no good copy"
    return f"{names} changed on disk though its date did not: {back}; `touch` it if you meant to change it"


def _place(out: Any) -> str:
    return Path(out.fs_path).relative_to(out.repo.root_dir).as_posix()
