"""Everything that speaks against a conversion, said at once and before it, for a 7B model takes minutes."""

import json
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import DataError
from pipeline.llamacpp.pretokenizer import PreTokenizer, find_pre_tokenizer
from pipeline.llamacpp.tools import Toolchain
from pipeline.stages.convert.consistency import contradictions

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@dataclass(frozen=True)
class Found:
    """What a conversion goes by: the pre-tokenizers, and what tokenizer's files are not the base's."""

    base: PreTokenizer
    merged: PreTokenizer
    differing: tuple[str, ...]


def preflight(*, base: Path, merged: Path, kind: str, tools: Toolchain) -> Found:
    """Look at both folders before conversion to `kind` (F16 or BF16). Raises `DataError` with all faults."""
    reasons: list[str] = []
    found: list[PreTokenizer] = []
    differing = differing_files(base, merged)
    for folder in (base, merged):
        reasons += [f"{folder.name}: {reason}" for reason in contradictions(folder, kind)]
        try:
            found.append(find_pre_tokenizer(folder, tools))
        except DataError as error:
            which = (
                f" (other than the base's: {', '.join(differing)})" if folder == merged and differing else ""
            )
            reasons.append(f"{error.sentence}{which}")
    if reasons:
        count = "1 reason" if len(reasons) == 1 else f"{len(reasons)} reasons"
        raise DataError("Q-CONVERT-002", f"{merged} can't be converted for {count}: {'; '.join(reasons)}")
    return Found(found[0], found[1], differing)


def differing_files(base: Path, merged: Path) -> tuple[str, ...]:
    """The tokenizer's files that only one folder has or that differ, in JSON by more than its layout."""
    return tuple(name for name in TOKENIZER_FILES if _content(base / name) != _content(merged / name))


def _content(file: Path) -> object:
    if not file.exists():
        return None
    text = file.read_text(encoding="utf-8")
    return json.loads(text) if file.suffix == ".json" else text
