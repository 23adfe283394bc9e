"""Each tracker's own part: the options that its class in accelerate is made with, and how it takes a table.

All of them are made so that they collect nothing by themselves: no source code, no command line, no host
name, no list of packages. Tokens and addresses are those of the tracker's own environment variables.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.tracking import LOGGER_TYPE_TO_CLASS

from pipeline.extras.trackers.request import FOLDER, Outcome, Table

PROJECT = "quench"  # the project's name at a tracker, unless its own variable gives another


@dataclass(frozen=True)
class Place:
    """The place of a run at a tracker: its `title` and `id` there, its `settings`, and the project's `root`.

    `resumed` is True if the tracker has the run already.
    """

    root: Path
    title: str
    id: str
    settings: dict[str, Any]
    resumed: bool

    @property
    def folder(self) -> Path:
        """The folder for what trackers store on this machine."""
        return self.root / FOLDER


class Tracker:
    """A run at a tracker of accelerate's."""

    name = ""
    variable = ""  # environment variable with the project's name at this tracker

    def __init__(self, place: Place) -> None:
        self.place = place
        PartialState(cpu=True)  # accelerate's loggers ask for it.
        project = os.environ.get(self.variable) or PROJECT
        self.inner: Any = LOGGER_TYPE_TO_CLASS[self.name](project, **self.options())
        self.inner.start()
        if not place.resumed:
            self.inner.store_init_configuration(place.settings)

    def options(self) -> dict[str, Any]:
        """Return the options of accelerate's class."""
        raise NotImplementedError

    @property
    def id(self) -> str:
        """The id by which the run is continued."""
        return self.place.id

    @property
    def where(self) -> str:
        """The address or folder of the run, for a person."""
        return FOLDER

    def log(self, values: dict[str, float], step: int) -> None:
        """Send a point of each curve."""
        self.inner.log(values, step=step)

    def table(self, table: Table, step: int) -> None:
        """Send a table."""
        self.inner.log_table(table.name, columns=table.columns, data=table.rows, step=step)

    def close(self, outcome: Outcome | None) -> None:
        """Send what is left, and end the run with its outcome; None if the training was killed."""
        self.inner.finish()


class Wandb(Tracker):
    """Weights & Biases."""

    name = "wandb"
    variable = "WANDB_PROJECT"

    def options(self) -> dict[str, Any]:
        """Return the options of `wandb.init`."""
        import wandb

        folder = self.place.folder
        folder.mkdir(parents=True, exist_ok=True)
        quiet = wandb.Settings(
            console="off",
            host="",
            disable_code=True,
            disable_git=True,
            disable_job_creation=True,
            save_code=False,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        return {
            "dir": str(folder),
            "id": self.place.id,
            "name": self.place.title,
            "resume": "allow",
            "settings": quiet,
        }

    @property
    def where(self) -> str:
        """The page of the run; offline its folder."""
        url = self.inner.tracker.url
        return str(url) if url else f"{FOLDER}/wandb, offline"

    def close(self, outcome: Outcome | None) -> None:
        """End the run; W&B calls one with an exit code failed."""
        self.inner.tracker.finish(exit_code=0 if outcome == "finished" else 1)


class Mlflow(Tracker):
    """MLflow, by default in a SQLite file of the project."""

    name = "mlflow"
    variable = "MLFLOW_EXPERIMENT_NAME"

    def options(self) -> dict[str, Any]:
        """Return the options of accelerate's class, after the store is chosen."""
        import mlflow

        options: dict[str, Any] = {
            "run_id": self.place.id if self.place.resumed else None,
            "run_name": self.place.title,
            # Otherwise they are this process's: a path of this machine, and who is logged in.
            "tags": {"mlflow.source.name": "quench", "mlflow.user": ""},
        }
        # MLflow sets the variable itself later.
        self.store = os.environ.get("MLFLOW_TRACKING_URI") or f"{FOLDER}/mlflow.db"
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            folder = self.place.folder
            folder.mkdir(parents=True, exist_ok=True)
            mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
            options["logging_dir"] = (folder / "mlflow").as_uri()
        return options

    @property
    def id(self) -> str:
        """The id that the store has given."""
        return str(self.inner.tracker.info.run_id)

    @property
    def where(self) -> str:
        """The store's address; the file if it is this project's own."""
        return self.store

    def table(self, table: Table, step: int) -> None:
        """Send a table as a file of the run, one for each step: MLflow reads a file to which it adds rows as
        pandas guesses, and the answer 007 would become the number 7.
        """
        import mlflow

        columns = dict(zip(table.columns, map(list, zip(*table.rows, strict=True)), strict=True))
        mlflow.log_table(columns, artifact_file=f"{table.name}/{step:06}.json")

    def close(self, outcome: Outcome | None) -> None:
        """End the run in MLflow's word for its outcome."""
        import mlflow

        states = {"finished": "FINISHED", "failed": "FAILED"}
        mlflow.end_run(states.get(outcome or "", "KILLED"))


class Trackio(Tracker):
    """Trackio, by default in its own folder of this machine."""

    name = "trackio"
    variable = "TRACKIO_PROJECT"

    def options(self) -> dict[str, Any]:
        """Return the options of `trackio.init`."""
        return {
            "name": self.id,
            "resume": "allow",
            # A run that is resumed without them loses those that it has.
            "config": self.place.settings,
            "embed": False,
            "auto_log_gpu": False,
            "auto_log_cpu": False,
        }

    @property
    def id(self) -> str:
        """The run's name, by which Trackio continues it."""
        place = self.place
        return place.id if place.resumed else f"{place.title}-{place.id[:8]}"

    @property
    def where(self) -> str:
        """The command that shows the run."""
        return "`trackio show`"

    def table(self, table: Table, step: int) -> None:
        """Send a table as one of Trackio's own."""
        import pandas
        import trackio

        frame = pandas.DataFrame(table.rows, columns=table.columns)
        self.inner.log({table.name: trackio.Table(dataframe=frame)}, step=step)


class Comet(Tracker):
    """Comet."""

    name = "comet_ml"
    variable = "COMET_PROJECT_NAME"

    def options(self) -> dict[str, Any]:
        """Return the options of `comet_ml.start`."""
        import comet_ml

        folder = self.place.folder / "comet"
        folder.mkdir(parents=True, exist_ok=True)
        quiet = comet_ml.ExperimentConfig(
            name=self.place.title,
            offline_directory=str(folder),
            log_code=False,
            log_git_metadata=False,
            log_git_patch=False,
            log_env_details=False,
            log_graph=False,
            auto_param_logging=False,
            auto_metric_logging=False,
            auto_output_logging=False,
            parse_args=False,
            display_summary_level=0,
        )
        return {"experiment_key": self.place.id, "mode": "get_or_create", "experiment_config": quiet}

    def table(self, table: Table, step: int) -> None:
        """Send a table as a file of the run."""
        self.inner.tracker.log_table(f"{table.name}-{step}.csv", table.rows, table.columns)


class Clearml(Tracker):
    """ClearML."""

    name = "clearml"
    variable = "CLEARML_PROJECT"

    def options(self) -> dict[str, Any]:
        """Return the options of `Task.init`."""
        return {
            "task_name": self.place.title,
            "continue_last_task": self.place.id if self.place.resumed else False,
            "reuse_last_task_id": False,
            "auto_connect_arg_parser": False,
            "auto_connect_frameworks": {"detect_repository": False},
            "auto_connect_streams": False,
            "auto_resource_monitoring": False,
        }

    @property
    def id(self) -> str:
        """The task's id, which ClearML has given."""
        return str(self.inner.tracker.id)


class Dvclive(Tracker):
    """DVCLive: files in the project, and no experiment of DVC's, because the stage is recorded already."""

    name = "dvclive"

    def options(self) -> dict[str, Any]:
        """Return the options of `dvclive.Live`."""
        return {
            "dir": str(self.place.folder / "dvclive" / self.place.id),
            "resume": self.place.resumed,
            "save_dvc_exp": False,
            "dvcyaml": None,
            "report": None,
            "monitor_system": False,
        }

    def table(self, table: Table, step: int) -> None:
        """Write a table beside the curves, a file for each step."""
        import pandas

        file = Path(self.inner.tracker.dir) / "tables" / f"{table.name}-{step}.csv"
        file.parent.mkdir(parents=True, exist_ok=True)
        pandas.DataFrame(table.rows, columns=table.columns).to_csv(file, index=False)


class Swanlab(Tracker):
    """SwanLab."""

    name = "swanlab"
    variable = "SWANLAB_PROJ_NAME"

    def options(self) -> dict[str, Any]:
        """Return the options of `swanlab.init`."""
        import swanlab

        collected = ("hardware", "runtime", "requirements", "git", "swanlab", "monitor")
        quiet = swanlab.Settings(
            probe=dict.fromkeys(collected, False), terminal={"proxy_type": "none"}, interactive=False
        )
        return {
            "name": self.place.title,
            "id": self.place.id,
            "resume": "allow",
            "log_dir": str(self.place.folder / "swanlab"),
            "settings": quiet,
        }

    def table(self, table: Table, step: int) -> None:
        """Send a table as text, the form that SwanLab shows."""
        import swanlab

        self.inner.log({table.name: swanlab.Text(as_text(table))}, step=step)


class Aim(Tracker):
    """Aim, in the folder of its files on this machine."""

    name = "aim"

    def options(self) -> dict[str, Any]:
        """Return the options of `aim.Run`."""
        folder = self.place.folder / "aim"
        folder.mkdir(parents=True, exist_ok=True)
        resumed = {"run_hash": self.place.id} if self.place.resumed else {}
        quiet = {"capture_terminal_logs": False, "system_tracking_interval": None}
        return {"logging_dir": str(folder), **quiet, **resumed}

    @property
    def id(self) -> str:
        """The run's hash, which Aim has given."""
        return str(self.inner.tracker.hash)

    def table(self, table: Table, step: int) -> None:
        """Send a table as text, the form that Aim shows."""
        import aim

        self.inner.tracker.track(aim.Text(as_text(table)), name=table.name, step=step)


def as_text(table: Table) -> str:
    """Return a table as text, a line for each value."""
    parts = [zip(table.columns, row, strict=True) for row in table.rows]
    return "\n\n".join("\n".join(f"{column}: {value}" for column, value in part) for part in parts)


KINDS: dict[str, type[Tracker]] = {
    kind.name: kind for kind in (Wandb, Mlflow, Trackio, Comet, Clearml, Dvclive, Swanlab, Aim)
}
