"""What a run of GRPO depends on beside rows, base and settings: the functions that reward, and who draws."""

from pathlib import Path

from pipeline.config.scorers import NAME
from pipeline.config.sections import Training
from pipeline.core.errors import ConfigError
from pipeline.core.hashing import file_hash


def project_of(tokens: Path) -> Path:
    """The project's folder, of data/tokens."""
    return tokens.parent.parent


def reward_hashes(tokens: Path, settings: Training) -> dict[str, str]:
    """sha256 of each file whose functions are rewards. Raises `ConfigError` if one is missing."""
    found = {}
    for spelling in settings.grpo.rewards:
        kind, _, name = spelling.partition(":")
        if kind == "python" and (match := NAME.fullmatch(name)):
            file = project_of(tokens) / "data/evaluation" / match["file"]
            if not file.is_file():
                raise ConfigError(
                    "Q-GRPO-011",
                    f"{file} is missing, and train.grpo.rewards names its function {match['function']}: write "
                    "it, or leave the reward out",
                )
            found[match["file"]] = file_hash(file)
    return found
