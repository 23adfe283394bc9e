"""The rule for a base on which only texts can be trained."""

from dataclasses import dataclass

from pipeline.chat.rows import Row
from pipeline.core.errors import DataError
from pipeline.stages.curate.rules.changes import Changes


@dataclass(frozen=True)
class OnlyTexts:
    """Rule for a base on which only texts can be trained; `why` gives the reason."""

    why: str

    def __call__(self, row: Row, changes: Changes) -> Row:
        """Return the row, which must be a text. Raises `DataError` for others, which need a template."""
        if row["kind"] == "text":
            return row
        raise DataError(
            "Q-CURATE-026",
            f"{row['source']} in data/raw is a row of kind {row['kind']}, and only plain text can be trained "
            f"on the base ({self.why}): choose an instruct model as base, or keep only text in data/raw",
        )
