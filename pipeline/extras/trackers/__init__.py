"""Trackers of `train.report_to` beside TensorBoard: W&B, MLflow, Trackio and what else accelerate knows.

Each tracker has a process of its own (`follow`), which reads the files of the run, as a watcher would. So a
tracker that is slow, fails or is killed changes nothing in the training.
"""

from pipeline.core.extras import Extra

EXTRA = Extra(page="docs/training.md", observer="observer", settings=("train.report_to",))
