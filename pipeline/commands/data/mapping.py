"""Show the `curate.fields` mappings that `quench data check` proposes, and write them into `params.yaml`."""

import glob
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline.chat.rows import TURN_LISTS, Row
from pipeline.commands.data.file_check import FileCheck
from pipeline.commands.data.proposal import Guess, Proposal
from pipeline.config.overrides import override
from pipeline.config.params_text import as_yaml
from pipeline.core.errors import ConfigError
from pipeline.core.text import one_line, plural, safe

FIELDS = ("curate", "fields")
SHOWN = 120  # characters of a turn
LABELS_SHOWN = 12
Scrub = Callable[[str], str]


@dataclass(frozen=True)
class Proposed:
    """Proposal for one file."""

    file: FileCheck
    proposal: Proposal

    @property
    def glob(self) -> str:
        """Return the pattern that matches only this file."""
        return glob.escape(self.file.name)

    def as_dict(self, scrub: Scrub) -> dict[str, Any]:
        """Return the values that `--json` prints; docs/data-formats.md describes them."""
        first, *others = self.proposal.guesses
        return {
            "file": self.file.shown,
            "proposal": {
                "glob": self.glob,
                "fields": first.fields,
                "sure": self.proposal.is_sure,
                "other": others[0].fields if others and not self.proposal.is_sure else None,
                "labels": {scrub(label): rows for label, rows in first.candidate.labels.items()},
                "examples": [
                    [{"role": side, "text": words} for side, words in _shown_turns(row, scrub)]
                    for row in first.rows
                ],
            },
        }


def sentences(proposed: Sequence[Proposed], scrub: Scrub) -> Iterator[str]:
    """Yield the lines on all proposals. Files with the same guesses are shown once, with all their names."""
    left = list(proposed)
    while left:
        first = left[0]
        alike = [other for other in left if _fields(other) == _fields(first)]
        left = [other for other in left if other not in alike]
        yield ""
        yield from _lines(first, alike, scrub)


def _fields(proposed: Proposed) -> list[dict[str, Any]]:
    return [guess.fields for guess in proposed.proposal.guesses]


def _lines(first: Proposed, alike: Sequence[Proposed], scrub: Scrub) -> Iterator[str]:
    more = f" and {plural(len(alike) - 1, 'more file')}" if len(alike) > 1 else ""
    proposal = first.proposal
    if proposal.is_sure:
        yield f"A mapping for {first.file.shown}{more}, to paste into params.yaml (--write puts it there):"
        yield from _guess_lines(proposal.guesses[0], alike, scrub)
        return
    if len(proposal.guesses) == 1:
        yield (
            f"One guess for {first.file.shown}{more}, which is not certain: if these rows are right, "
            "--write --guess 1 takes it:"
        )
        yield from _guess_lines(proposal.guesses[0], alike, scrub)
        return
    yield f"Two guesses for {first.file.shown}{more}, nearly as good: choose one (--write --guess 1 or 2):"
    for number, guess in enumerate(proposal.guesses, start=1):
        yield f"{number}."
        yield from _guess_lines(guess, alike, scrub)


def _guess_lines(guess: Guess, alike: Sequence[Proposed], scrub: Scrub) -> Iterator[str]:
    yield "  curate:"
    yield "    fields:"
    for other in alike:
        yield f"      {as_yaml(other.glob)}: {as_yaml(guess.fields)}"
    if guess.candidate.labels:
        yield f"  {_labels_sentence(guess, scrub)}"
    if guess.unread:
        source = guess.fields.get("user")
        above = ""
        if isinstance(source, str) and "{" not in source:
            above = f'; user: "{{{guess.unread[0]}}}\\n\\n{{{source}}}" puts the first above {source}'
        yield f"  not read: {scrub(', '.join(guess.unread))}{above}"
    yield from _example_lines(guess, scrub)


def _labels_sentence(guess: Guess, scrub: Scrub) -> str:
    """Return a sentence on the values that answers would have, with their counts in the sample."""
    labels = guess.candidate.labels
    shown = [f"{as_yaml(scrub(label))} {rows:,}" for label, rows in islice(labels.items(), LABELS_SHOWN)]
    if len(labels) > LABELS_SHOWN:
        shown.append(f"{len(labels) - LABELS_SHOWN:,} more")
    source = guess.fields["assistant"]
    sentence = f"{source} has {plural(len(labels), 'value')} in the first {sum(labels.values()):,} rows: "
    sentence += ", ".join(shown)
    if guess.candidate.are_numbers:
        sentence += "; the model would learn to write these, and curate.transform can make words of them"
    return sentence


def _example_lines(guess: Guess, scrub: Scrub) -> Iterator[str]:
    for number, row in enumerate(guess.rows, start=1):
        yield f"  {'a row' if number == 1 else 'another'} as it would be read:"
        yield from (f"    {side}: {words}" for side, words in _shown_turns(row, scrub))


def _shown_turns(row: Row, scrub: Scrub) -> Iterator[tuple[str, str]]:
    """Yield (speaker, text) of a row's turns, shortened and without secrets."""
    for place in TURN_LISTS:
        for turn in row.get(place, ()):
            side = turn["role"] if place == "messages" else place
            yield side, one_line(scrub(turn["content"]), SHOWN)
    for segment in row.get("segments", ()):
        yield "text", one_line(scrub(segment["text"]), SHOWN)
    if "answer" in row:
        yield "answer", one_line(scrub(row["answer"]), SHOWN)


def write(
    file: Path, raw: Path, proposed: Iterable[Proposed], choice: int | None, scrub: Scrub
) -> tuple[list[str], bool]:
    """Write the proposals into a `params.yaml`, before its existing mappings. Return sentences on them, and
    True if any is written.

    Raises `ConfigError` if there is no such file. An unsure guess is written only if it is chosen, and its
    rows are shown again.
    """
    from pipeline.config.params import load_params

    if not file.exists():
        raise ConfigError(
            "Q-COMMANDS-040",
            f"{safe(str(file))} is missing, so there is no project to write a mapping into: run this in a "
            "project's folder, name its file by --params, or paste the lines above into it",
        )
    new: dict[str, Mapping[str, Any]] = {}
    lines = []
    for mapping in proposed:
        checked = mapping.file
        guesses = mapping.proposal.guesses
        number = 1 if mapping.proposal.is_sure else choice
        if number is None or number > len(guesses):
            numbers = " or ".join(f"--guess {place}" for place in range(1, len(guesses) + 1))
            lines.append(f"nothing is written for {checked.shown}, since no guess is certain: add {numbers}")
            continue
        guess = guesses[number - 1]
        new[mapping.glob] = guess.fields
        if not mapping.proposal.is_sure:
            lines += [f"{checked.shown}, guess {number}:", *_example_lines(guess, scrub)]
        if not checked.path.resolve().is_relative_to(raw.resolve()):
            lines.append(f"curate reads {checked.name} below {safe(str(raw))}: put {checked.shown} there")
    if new:
        kept = {name: fields for name, fields in load_params(file).curate.fields.items() if name not in new}
        override(file, {FIELDS: {**new, **kept}})
        lines.insert(0, f"{plural(len(new), 'mapping')} written to curate.fields in {safe(str(file))}")
    return lines, bool(new)
