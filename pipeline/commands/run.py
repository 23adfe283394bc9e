"""Run the pipeline with settings from the command line: `quench run train train.r=8`.

The same as `snakemake train --config 'train={r: 8}'`: Snakemake's first lines write the settings into
params.yaml.
"""

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.config.overrides import Given, from_words, put

SETTING = re.compile(r"[a-z][\w]*(\.\w+)+=.*", re.DOTALL)  # train.r=8; an option begins with a dash


def main(root: Path, words: Sequence[str]) -> None:
    """Become Snakemake in `root`; `words` are stages, settings and Snakemake's own options. Raises
    `ConfigError` for a key that there is not.
    """
    given = from_words([word for word in words if SETTING.fullmatch(word)])
    rest = [word for word in words if not SETTING.fullmatch(word)]
    command = [sys.executable, "-m", "snakemake", *rest, *_config(given)]
    os.chdir(root)
    os.execv(sys.executable, command)  # noqa: S606 (no shell)


def _config(given: Given) -> list[str]:
    """Snakemake's option for these settings."""
    sections: dict[str, Any] = {}
    for place, value in given.items():
        put(sections, place, value)
    return ["--config", *(f"{name}={json.dumps(keys)}" for name, keys in sections.items())] if given else []
