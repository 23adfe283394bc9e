"""Compare every recorded file with its record: outputs of stages, raw data, and all of DVC's cache. Reads
every byte; changes no artifact.

A damaged object of the cache is moved to `.dvc/cache/rotten`, so that nothing restores it.

    quench model verify
"""

import json
import re
import sys
from pathlib import Path

from pipeline.core.errors import ConfigError, DataError
from pipeline.workflow.keys.code_keys import CODE
from pipeline.workflow.keys.stamps import files_below
from pipeline.workflow.prepare import be_the_only_one, no_stage_at_work
from pipeline.workflow.state.dvc_project import (
    open_project,
    quarantine,
    quarantine_runs,
    remove_dead_links,
    update_dvc_state,
)
from pipeline.workflow.state.hashes import Hashes
from pipeline.workflow.state.integrity import changed_files, damage_sentences

OBJECT = re.compile(r"[0-9a-f]{32}(\.dir)?")  # does not match the leftovers of a killed copy


def main(root: Path, *, as_json: bool = False) -> int:
    """Print each difference with its remedy. Return the exit code: 3 if there is one, otherwise 0."""
    if not (root / ".dvc").is_dir():
        raise ConfigError(
            "Q-COMMANDS-015",
            f"{root.resolve()} is not a DVC project, so nothing is recorded: run it in the project's folder",
        )
    be_the_only_one(root)
    no_stage_at_work(root)  # Outputs of a running stage are not in the record yet.
    with open_project(root, exclusive=False) as repo, Hashes(root) as hashes:
        outs = [
            out
            for out in repo.index.outs
            if out.hash_info and out.exists and getattr(out.stage, "name", None) != CODE
        ]  # The keys follow the code.
        cache = Path(repo.cache.local.path)
        objects = [path for path in files_below(cache) if OBJECT.fullmatch(path.parent.name + path.name)]
        unchanged = [out for out in outs if out.stage.is_data_source and not out.workspace_status()]
        digests = hashes.md5s(
            [*objects, *(file for out in outs for file in files_below(Path(out.fs_path)))], again=True
        )
        damaged = [
            *quarantine(cache, {path: digests[path] for path in objects if path in digests}),
            *quarantine_runs(repo),
        ]
        remove_dead_links(repo)
        update_dvc_state(repo, hashes)
        for out in unchanged:  # A file that has changed since then kept its date.
            if out.workspace_status():
                hashes.suspects.update(Path(out.fs_path, name) for name in changed_files(out, hashes))
        sentences = damage_sentences(repo, hashes, [Path(out.fs_path) for out in outs])
        missing = sum(1 for out in repo.index.outs if out.hash_info and not out.exists)
    for sentence in sentences:
        print(sentence, file=sys.stderr)
    if damaged:
        print(
            "what DVC's cache lost by that, `snakemake` puts back if the file itself is good, and `dvc "
            "pull` from a remote",
            file=sys.stderr,
        )
    bad = len(sentences) + len(damaged)
    if as_json:
        report = {
            "outputs": len(outs),
            "missing": missing,
            "objects": len(objects),
            "damaged_outputs": list(sentences),
            "damaged_objects": damaged,
        }
        print(json.dumps(report, indent=2, ensure_ascii=False))
        return DataError.exit_code if bad else 0
    are = {0: "none is", 1: "1 is"}.get(bad, f"{bad} are")
    line = f"{len(outs)} recorded outputs and {len(objects)} objects of DVC's cache were read: {are} damaged"
    if missing:
        line += f"; {missing} recorded output{' is' if missing == 1 else 's are'} not here"
    print(line)
    return DataError.exit_code if bad else 0
