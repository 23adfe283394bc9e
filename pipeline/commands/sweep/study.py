"""A sweep's trials in Optuna's journal: the only record of what was tried and what came out.

Every step of a trial's life is one line of the journal: it is there with all of its settings, or it is not.
What a trial tries depends on the sweep's seed, its number and the trials before it alone, so a sweep that
was killed tries what it would have tried.
"""

import hashlib
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.commands.sweep.space import Space

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages.journal import JournalFileSymlinkLock
    from optuna.trial import FrozenTrial, Trial, TrialState

SWEEPS = Path("models/.sweep")  # scratch: neither Snakemake's main workflow nor DVC looks at it
RESULTS = Path("reports/sweep")
LOG = "train.log"  # in a job's folder: what its training said
ROOT = "root"  # in a sweep's folder: where the project is
SEARCH, SEEDS = "search", "seeds"  # the studies in a journal: trials; finalists with other seeds


class Sweep(NamedTuple):
    """A sweep's place: the project and a folder in it, both absolute."""

    root: Path
    folder: Path

    @classmethod
    def named(cls, root: Path, name: str) -> "Sweep":
        """The sweep of this name in a project."""
        return cls(root.resolve(), root.resolve() / SWEEPS / name)

    @classmethod
    def opened(cls, folder: Path) -> "Sweep":
        """The sweep in this folder, as a job sees it. It can't tell the project by the folders above it, for
        one of them may be a link to another disk.
        """
        return cls(Path((folder / ROOT).read_text(encoding="utf-8")), folder)

    @property
    def journal(self) -> Path:
        """Optuna's."""
        return self.folder / "journal.log"

    @property
    def space(self) -> Path:
        """The copy of the space that the sweep began with."""
        return self.folder / "space.yaml"

    @property
    def params(self) -> Path:
        """The copy of the settings that the sweep began with."""
        return self.folder / "params.yaml"


def open_study(sweep: Sweep, part: str, space: Space) -> "Study":
    """The study `SEARCH` or `SEEDS` of a sweep, made if there is none."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = JournalStorage(JournalFileBackend(str(sweep.journal), lock_obj=lock_of(sweep)))
    pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
    if part == SEARCH and space.pruner == "median":
        pruner = optuna.pruners.MedianPruner(n_startup_trials=space.startup, n_warmup_steps=space.prune_after)
    sampler = optuna.samplers.RandomSampler(seed=0)  # asked for nothing: `draw` is
    if part in {study.study_name for study in storage.get_all_studies()}:  # to make it again writes a line
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
    """What writers of the journal hold; one that a kill left ends by itself after 30 s."""
    from optuna.storages.journal import JournalFileSymlinkLock

    return JournalFileSymlinkLock(str(sweep.journal))  # absolute: a relative one would never end


def trials_of(study: "Study") -> dict[str, "FrozenTrial"]:
    """{job: its trial}, in the order in which they began."""
    return {trial.user_attrs["job"]: trial for trial in study.get_trials()}


def known_trials(sweep: Sweep, part: str, space: Space) -> dict[str, "FrozenTrial"]:
    """`trials_of` a study that there may not be yet; the journal is only read."""
    if not sweep.journal.is_file() or f'"study_name":"{part}"' not in sweep.journal.read_text("utf-8"):
        return {}
    return trials_of(open_study(sweep, part, space))


def begin(
    study: "Study", job: str, params: Mapping[str, Any], space: Space, **attributes: Any
) -> "FrozenTrial":
    """The running trial of `job`, which has none yet, with these parameters (as Optuna has them)."""
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
    """What `job` tries, as Optuna has it: chosen by the sampler from what the trials `before` showed."""
    import optuna

    digest = hashlib.sha256(f"{space.seed}/{job}".encode()).digest()
    seed = int.from_bytes(digest[:4])
    with warnings.catch_warnings():
        # constant_liar: trials at work count as bad ones, so that several at once don't try the same
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
    """A trial that can be reported to."""
    import optuna

    storage = study._storage  # the one that it was opened with
    number = storage.get_study_id_from_name(study.study_name)
    return optuna.trial.Trial(study, storage.get_trial_id_from_study_id_trial_number(number, trial.number))


def same_settings_trial(study: "Study", trial: "FrozenTrial") -> "FrozenTrial | None":
    """A finished trial with the same parameters and seed: training again would give the same bytes."""
    from optuna.trial import TrialState

    for other in study.get_trials(states=(TrialState.COMPLETE,)):
        if other.params == trial.params and other.user_attrs.get("seed") == trial.user_attrs.get("seed"):
            return other
    return None


class Ending(NamedTuple):
    """How a trial ended: Optuna's state, the metric's value, why, how many steps and seconds it trained."""

    state: "TrialState"
    value: float | None
    reason: str
    steps: int
    seconds: float


def tell(study: "Study", trial: "FrozenTrial", end_of: Ending) -> None:
    """Report a trial's end to Optuna; its notes go first, so that a finished trial has them."""
    running = live(study, trial)
    for name in ("reason", "steps", "seconds"):
        running.set_user_attr(name, getattr(end_of, name))
    value = end_of.value if end_of.state.name == "COMPLETE" else None
    study.tell(trial.number, value, state=end_of.state)


def repair(sweep: Sweep) -> None:
    """Cut what a power cut left of the journal's last line: the next one would be glued to it, and no line
    after that could be read.
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
