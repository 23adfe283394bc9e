"""Delete from DVC's cache what neither the working tree nor the last runs need; say what a project takes on
the disk.

Without a number of runs it only says what each number would free.

    quench doctor clean
    quench doctor clean --keep 2
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.core.errors import ConfigError
from pipeline.core.text import plural
from pipeline.core.units import size_text
from pipeline.workflow.state.unused import Cache, remove_unused, unused

CACHE = ".dvc/cache"
MADE = ("data", "models", "reports")
OFFERED = (1, 2, 3, 5, 10)  # numbers of runs for which it is said what they would free


def main(root: Path, keep: int | None, *, as_json: bool) -> None:
    """Delete what the working tree and the last `keep` runs don't need; with None, say what that would be."""
    with cache_of(root) as cache:
        total = sum(cache.sizes().values())
        report: dict[str, object] = {"cache": str(cache.objects), "bytes": total}
        if keep is None:
            frees = {runs: sum(unused(cache, runs).values()) for runs in OFFERED}
            lines = _offers(frees, total)
            report["frees"] = frees
        else:
            found = unused(cache, keep)
            remove_unused(cache, found)
            freed = sum(found.values())
            report |= {"keep": keep, "objects": len(found), "freed": freed}
            lines = [
                f"{plural(len(found), 'object')} deleted, {size_text(freed)} freed: DVC's cache takes "
                f"{size_text(total - freed)}, for this working tree, all branches and tags, and the last "
                f"{plural(keep, 'run')}"
            ]
    print(json.dumps(report, indent=2)) if as_json else print(*lines, sep="\n")


@contextmanager
def cache_of(root: Path) -> Iterator[Cache]:
    """Give the project's own cache while nothing else works in the project.

    Raises `ConfigError` if there is none, or if other projects may use it too.
    """
    from pipeline.workflow.prepare import be_the_only_one, no_stage_at_work
    from pipeline.workflow.state.dvc_project import check_no_writer, open_project

    if not (root / ".dvc").is_dir():
        raise ConfigError(
            "Q-COMMANDS-015",
            f"{root.resolve()} is not a DVC project, so it has no cache: run it in the project's folder",
        )
    be_the_only_one(root)
    no_stage_at_work(root)  # Its outputs are in the cache before they are in the record.
    with open_project(root) as repo, repo.lock:
        check_no_writer(Path(repo.tmp_dir, "rwlock"))
        objects = Path(repo.cache.local.path)
        if not objects.resolve().is_relative_to(Path(repo.root_dir, ".dvc").resolve()):
            raise ConfigError(
                "Q-DOCTOR-002",
                f"DVC's cache is {objects}, which other projects may use too, so nothing is deleted: `dvc gc "
                "--workspace --projects OTHER` keeps what they need",
            )
        yield Cache(root, objects, Path(repo.stage_cache.cache_dir), not repo.config["core"].get("no_scm"))


def disk_line(root: Path) -> str:
    """Return a line on what the project takes on its disk, and what of that is DVC's cache."""
    # A file that is also in the cache, by a hard link, takes its bytes once.
    seen: set[tuple[int, int]] = set()
    made = sum(_bytes_below(root / name, seen) for name in MADE)
    cache = _bytes_below(root / CACHE, seen)
    return (
        f"Disk: {', '.join(MADE)} take {size_text(made)}, DVC's cache of all runs {size_text(cache)} more; "
        f"{size_text(shutil.disk_usage(root).free)} are free. `quench doctor clean` says what can go."
    )


def _offers(frees: dict[int, int], total: int) -> list[str]:
    lines = [f"DVC's cache takes {size_text(total)}. What keeps the last runs:"]
    for runs, freed in frees.items():
        lines.append(f"  quench doctor clean --keep {runs:<2}  frees {size_text(freed)}")
        if not freed:
            break
    return [*lines, "This working tree, all branches and all tags keep what they need with any number."]


def _bytes_below(folder: Path, seen: set[tuple[int, int]]) -> int:
    """Return the bytes of all files below `folder`, without those in `seen`, to which they are added."""
    total = 0
    for inner, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # Another process may delete it now.
                state = Path(inner, name).lstat()
                if (state.st_dev, state.st_ino) not in seen:
                    seen.add((state.st_dev, state.st_ino))
                    total += state.st_size
    return total
