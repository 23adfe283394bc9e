"""Record of a sweep's trials in Optuna's journal: the only record of what was tried, and the results.

Every step of a trial is one line of the journal. A trial is there with all of its settings, or not at all.
The settings of a trial depend only on the sweep's seed, the trial's number and the trials before it. So a
sweep that was killed continues with the settings that it would have tried.
"""

import hashlib
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.extras.sweep.space import Space

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages.journal import JournalFileSymlinkLock
    from optuna.trial import FrozenTrial, Trial, TrialState

SWEEPS = Path("models/.sweep")  # Scratch: neither Snakemake's main workflow nor DVC reads it.
RESULTS = Path("reports/sweep")
LOG = "train.log"  # output of the training, in a job's folder
ROOT = "root"  # path of the project, in a sweep's folder
SEARCH = "search"  # study in a journal: the trials
SEEDS = "seeds"  # study in a journal: the finalists with other seeds


class Sweep(NamedTuple):
    """Paths of a sweep: the project and a folder in it, both absolute."""

    root: Path
    folder: Path

    @classmethod
    def named(cls, root: Path, name: str) -> "Sweep":
        """Return the sweep of this name in a project."""
        return cls(root.resolve(), root.resolve() / SWEEPS / name)

    @classmethod
    def opened(cls, folder: Path) -> "Sweep":
        """Return the sweep in this folder, as a job sees it. The folders above do not tell the project,
        because one of them may be a link to another disk.
        """
        return cls(Path((folder / ROOT).read_text(encoding="utf-8")), folder)

    @property
    def journal(self) -> Path:
        """Path of Optuna's journal."""
        return self.folder / "journal.log"

    @property
    def space(self) -> Path:
        """Path of the copy of the space that the sweep began with."""
        return self.folder / "space.yaml"

    @property
    def params(self) -> Path:
        """Path of the copy of the settings that the sweep began with."""
        return self.folder / "params.yaml"


def open_study(sweep: Sweep, part: str, space: Space) -> "Study":
    """Open the study `SEARCH` or `SEEDS` of a sweep. Create it if it does not exist."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = JournalStorage(JournalFileBackend(str(sweep.journal), lock_obj=lock_of(sweep)))
    pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
    if part == SEARCH and space.pruner == "median":
        pruner = optuna.pruners.MedianPruner(n_startup_trials=space.startup, n_warmup_steps=space.prune_after)
    sampler = optuna.samplers.RandomSampler(seed=0)  # It is never used: `draw` chooses the settings.
    # To create it again would write a line.
    if part in {study.study_name for study in storage.get_all_studies()}:
        return optuna.load_study(storage=storage, study_name=part, sampler=sampler, pruner=pruner)
    return optuna.create_study(
        storage=storage,
        study_name=part,
        direction="maximize" if space.maximize else "minimize",
        sampler=sampler,
        pruner=pruner,
        load_if_exists=True,
    )


def lock_of(sweep: Sweep) -> "JournalFileSymlinkLock":
    """Return the lock for writers of the journal. A lock that a kill left expires after 30 s."""
    from optuna.storages.journal import JournalFileSymlinkLock

    # An absolute path: a lock with a relative one would never expire.
    return JournalFileSymlinkLock(str(sweep.journal))


def trials_of(study: "Study") -> dict[str, "FrozenTrial"]:
    """Return {job: its trial} in the order in which they began."""
    return {trial.user_attrs["job"]: trial for trial in study.get_trials()}


def known_trials(sweep: Sweep, part: str, space: Space) -> dict[str, "FrozenTrial"]:
    """Return `trials_of` a study that may not exist yet. The journal is only read."""
    if not sweep.journal.is_file() or f'"study_name":"{part}"' not in sweep.journal.read_text("utf-8"):
        return {}
    return trials_of(open_study(sweep, part, space))


def begin(
    study: "Study", job: str, params: Mapping[str, Any], space: Space, **attributes: Any
) -> "FrozenTrial":
    """Begin a trial for `job`, which has none yet, with these parameters (in Optuna's form).

    Return it, running.
    """
    from optuna.trial import TrialState, create_trial

    study.add_trial(
        create_trial(
            state=TrialState.RUNNING,
            params=dict(params),
            distributions=space.distributions(),
            user_attrs={"job": job, **attributes},
        )
    )
    return trials_of(study)[job]


def draw(space: Space, job: str, before: Mapping[str, "FrozenTrial"]) -> dict[str, Any]:
    """Choose the settings of `job`, in Optuna's form: the sampler uses the results of the trials `before`."""
    import optuna

    digest = hashlib.sha256(f"{space.seed}/{job}".encode()).digest()
    seed = int.from_bytes(digest[:4])
    with warnings.catch_warnings():
        # constant_liar counts running trials as bad ones, so that parallel trials don't try the same
        # settings.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler: optuna.samplers.BaseSampler = optuna.samplers.RandomSampler(seed=seed)
        if space.sampler == "tpe":
            sampler = optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=space.startup, constant_liar=True
            )
        memory = optuna.create_study(direction="maximize" if space.maximize else "minimize", sampler=sampler)
        memory.add_trials(before.values())
        return dict(memory.ask(space.distributions()).params)


def live(study: "Study", trial: "FrozenTrial") -> "Trial":
    """Return a trial that can be reported to."""
    import optuna

    storage = study._storage  # storage that the study was opened with
    number = storage.get_study_id_from_name(study.study_name)
    return optuna.trial.Trial(study, storage.get_trial_id_from_study_id_trial_number(number, trial.number))


def same_settings_trial(study: "Study", trial: "FrozenTrial") -> "FrozenTrial | None":
    """Return a finished trial with the same parameters and seed, or None.

    To train again would give the same bytes.
    """
    from optuna.trial import TrialState

    for other in study.get_trials(states=(TrialState.COMPLETE,)):
        if other.params == trial.params and other.user_attrs.get("seed") == trial.user_attrs.get("seed"):
            return other
    return None


class Ending(NamedTuple):
    """End of a trial: Optuna's state, metric's value, reason, steps and seconds of training."""

    state: "TrialState"
    value: float | None
    reason: str
    steps: int
    seconds: float


def tell(study: "Study", trial: "FrozenTrial", end_of: Ending) -> None:
    """Report a trial's end to Optuna. Its notes are written first, so that a finished trial has them."""
    running = live(study, trial)
    for name in ("reason", "steps", "seconds"):
        running.set_user_attr(name, getattr(end_of, name))
    value = end_of.value if end_of.state.name == "COMPLETE" else None
    study.tell(trial.number, value, state=end_of.state)


def repair(sweep: Sweep) -> None:
    """Cut off an incomplete last line of the journal, left by a power cut. Otherwise the next line would be
    appended to it, and no later line could be read.
    """
    if not sweep.journal.is_file():
        return
    lock = lock_of(sweep)
    lock.acquire()
    try:
        content = sweep.journal.read_bytes()
        os.truncate(sweep.journal, content.rfind(b"\n") + 1)
    finally:
        lock.release()
