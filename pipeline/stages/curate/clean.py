"""From a raw line to clean rows: strict reading, one canonical form, the cleaning rules, redaction, the token budget.

Runs in worker processes, on blocks of lines; what a block gives depends on that block alone.
"""

import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pipeline.chat.rows import Row, row_id
from pipeline.config.sections import Curate
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.jsonl import BadLine, dump_line, parse_line
from pipeline.core.strict_yaml import printable, quoted
from pipeline.stages.curate.reading.containers import raw_lines, refusal
from pipeline.stages.curate.reading.formats import detect, to_row
from pipeline.stages.curate.rules.changes import Change, Changes
from pipeline.stages.curate.rules.cleaning import normalise, turns
from pipeline.stages.curate.rules.control_tokens import ControlTokens
from pipeline.stages.curate.rules.heuristics import JUDGES
from pipeline.stages.curate.rules.length import Length
from pipeline.stages.curate.rules.reasoning import reasoning
from pipeline.stages.curate.rules.redaction import Redactor

Value = TypeVar("Value")
SAMPLES = 3  # rejects per reason and changes per rule that a block keeps for the page
WITHHELD = "‹not shown: this row had something to redact›"
KNOWN_DOMAINS = 10_000  # names whose look-up is remembered
SCRUBBED = 1 << 16  # bytes of a rejected line that are looked through for secrets
TEXT_SHOWN = 2000  # characters of a rejected line


class RawLine(NamedTuple):
    """One line, element or record of a raw file."""

    number: int  # from 1
    offset: int | None  # bytes from the start of the (decompressed) file; None for CSV and Parquet
    data: bytes | BadLine


@dataclass(slots=True)
class Block:
    """Neighbouring lines of one file."""

    file: str  # below data/raw
    lines: list[RawLine]


@dataclass
class Tally:
    """Counts that add up over blocks."""

    lines: int = 0
    accepted: int = 0
    rejected: Counter[str] = field(default_factory=Counter)  # by reason
    rejected_by: Counter[str] = field(default_factory=Counter)  # by rule
    changed: Counter[str] = field(default_factory=Counter)  # texts, by rule
    rows_changed: Counter[str] = field(default_factory=Counter)  # rows, by rule
    redactions: Counter[str] = field(default_factory=Counter)  # by kind
    formats: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Tally") -> None:
        """Add another block's counts to these."""
        self.lines += other.lines
        self.accepted += other.accepted
        for mine, theirs in ((getattr(self, name), getattr(other, name)) for name in COUNTERS):
            mine.update(theirs)


COUNTERS = ("rejected", "rejected_by", "changed", "rows_changed", "redactions", "formats")


@dataclass
class Cleaned:
    """What became of a block; the rows, rejects and changes are JSONL in the order of the lines."""

    file: str
    size: int  # bytes of the raw lines
    tally: Tally
    rows: list[bytes]
    ids: list[str]
    domains: list[str]
    kinds: list[str]
    turns: list[int]  # messages without the system's
    scored: list[bool]  # whether they have a reward
    rejects: list[bytes]
    changes: list[bytes]
    samples: dict[str, list[dict[str, Any]]]  # "reject REASON" or "change RULE" → the first few


class Rejected(Exception):
    """No row comes of a line: which rule says so, and why."""

    def __init__(self, rule: str, why: BadLine) -> None:
        super().__init__(rule, why)
        self.rule, self.why = rule, why


class Cleaner:
    """All rules that look at one row, made once per process from the settings."""

    def __init__(self, settings: Curate, added_tokens: tuple[str, ...] | None, base: Path | None, names: tuple[str, ...]) -> None:
        self.settings = settings
        self.redactor = Redactor(settings.secrets, tuple(settings.personal), names)
        rules = {
            "normalise": normalise if settings.normalise else None,
            "secrets": self.redact,  # early, so that no later rule's excerpt holds half a secret
            "reasoning": reasoning(added_tokens or ()),
            "turns": turns(settings.turns),
            **{name: judge.rule(settings) for name, judge in JUDGES.items() if judge.wanted(settings)},
            "control_tokens": ControlTokens(added_tokens, settings.control_tokens) if added_tokens is not None else None,
        }
        self.rules = [(name, rule) for name, rule in rules.items() if rule]
        self.length = Length(base, settings.max_tokens, settings.overlong)
        self.domains: dict[str, bool] = {}

    def fit_for_reports(self, domain: str) -> bool:
        """Whether a domain's name holds nothing to redact, for it goes into the reports as it is."""
        if domain not in self.domains:
            if len(self.domains) >= KNOWN_DOMAINS:
                self.domains.clear()
            self.domains[domain] = self.redactor.is_clean(domain)
        return self.domains[domain]

    def redact(self, row: Row, changes: Changes) -> Row:
        """The redactor's rule; the excerpts of earlier rules are withheld where it found something, for they could hold it."""
        earlier = len(changes)
        redacted = self.redactor.rule(row, changes)
        if redacted is not row:
            changes[:earlier] = [Change(change.rule, change.place, WITHHELD, WITHHELD) for change in changes[:earlier]]
        return redacted

    def clean(self, file: str, line: RawLine, tally: Tally, changes: Changes) -> list[Row]:
        """The rows of one line. Raises `Rejected` where there are none."""
        rule = "read"
        try:
            value = parse_line(_bytes(line.data))
            rule = "format"
            wanted = by_glob(file, self.settings.formats, "auto")
            found = detect(value) if wanted == "auto" else wanted
            tally.formats[found] += 1
            row = to_row(value, source=f"{file}:{line.number}", domain=domain_of(file), format=found)
            if not self.fit_for_reports(row["domain"]):
                row["domain"] = domain_of(file)
            for rule, apply in self.rules:  # noqa: B007
                row = apply(row, changes)
            rule = "length"
            return self.length.parts(row, changes)
        except BadLine as why:
            raise Rejected(rule, why) from None

    def block(self, block: Block) -> Cleaned:
        """Every line of a block, accounted for."""
        tally = Tally(lines=len(block.lines))
        raw = sum(len(line.data) for line in block.lines if isinstance(line.data, bytes))
        done = Cleaned(block.file, raw, tally, [], [], [], [], [], [], [], [], {})
        for line in block.lines:
            changes: Changes = []
            try:
                rows = self.clean(block.file, line, tally, changes)
            except Rejected as rejected:
                self.reject(done, line, rejected)
                continue
            tally.accepted += 1
            for row in rows:
                identity = row_id(row)
                done.rows.append(dump_line({"id": identity, **row}))
                done.ids.append(identity)
                done.domains.append(row["domain"])
                done.kinds.append(row["kind"])
                done.turns.append(sum(turn["role"] != "system" for turn in row["messages"]))
                done.scored.append("reward" in row)
            if changes:
                self.note(done, line, done.ids[-len(rows)], changes)
        tally.redactions.update(self.redactor.take_counts())
        return done

    def reject(self, done: Cleaned, line: RawLine, rejected: Rejected) -> None:
        """Account for a line that gives no row."""
        entry = self.entry(done.file, line, rejected)
        done.tally.rejected[rejected.why.code] += 1
        done.tally.rejected_by[rejected.rule] += 1
        done.rejects.append(dump_line(entry))
        keep_sample(done.samples, f"reject {rejected.why.code}", entry)

    def entry(self, file: str, line: RawLine, rejected: Rejected) -> dict[str, Any]:
        """A line of `data/rejects.jsonl`; its text is scrubbed of secrets."""
        raw = line.data if isinstance(line.data, bytes) else b""
        shown = self.redactor.scrub(raw[:SCRUBBED].decode("utf-8", "replace"))
        if len(raw) > SCRUBBED:
            shown = shown[: -SCRUBBED // 8]  # a key that was cut in two may not be known as one
        text = shown if len(shown) <= TEXT_SHOWN and len(raw) <= SCRUBBED else f"{shown[:TEXT_SHOWN]}… ({len(raw)} bytes)"
        return {"file": file, "line": line.number, "offset": line.offset, "rule": rejected.rule, "reason": rejected.why.code,
                "detail": str(rejected.why), "text": text}  # fmt: skip

    def note(self, done: Cleaned, line: RawLine, identity: str, changes: Changes) -> None:
        """Account for what the rules changed in a row that was accepted."""
        for change in changes:
            entry = {"id": identity, "file": done.file, "line": line.number, "rule": change.rule, "place": change.place,
                     "before": change.before, "after": change.after}  # fmt: skip
            done.changes.append(dump_line(entry))
            done.tally.changed[change.rule] += 1
            keep_sample(done.samples, f"change {change.rule}", entry)
        done.tally.rows_changed.update({change.rule for change in changes})


def cleaner_arguments(root: Path, settings: Curate) -> tuple[Curate, tuple[str, ...], Path | None, tuple[str, ...]]:
    """What a `Cleaner` is made from in the project below `root`. Raises `DataError`."""
    base = root / "models/base"
    return settings, added_tokens(root / "models/base.json"), base if base.is_dir() else None, read_names(root, settings)


def added_tokens(lineage: Path) -> tuple[str, ...]:
    """The tokenizer's added tokens, which no text may hold (they would become control tokens); those of white space alone are harmless."""
    try:
        tokens = json.loads(lineage.read_text(encoding="utf-8"))["added_tokens"]
        return tuple(token for token in tokens if token.strip())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise DataError(
            "Q-CURATE-003",
            f"{lineage} is missing or has no list added_tokens: run `python -m pipeline base` first",
        ) from None


def read_names(root: Path, settings: Curate) -> tuple[str, ...]:
    """The names to redact, one a line of the file that the settings name. Raises `DataError` where it can't be read."""
    if settings.names is None:
        return ()
    path = root / "data/guard" / settings.names
    try:
        text = unicodedata.normalize("NFC", path.read_text(encoding="utf-8-sig"))  # as the rows are, when names are looked for
        return tuple(name.strip() for name in text.splitlines() if name.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            "Q-CURATE-005",
            f"{path}, which curate.names asks for, can't be read ({error}): fix the file, or set "
            "curate.names to null",
        ) from error


def check_file(path: Path, name: str, cleaner: Cleaner, found: Counter[str]) -> Iterator[dict[str, Any]]:
    """The reject entries of one file, as `data/rejects.jsonl` holds them; none if every row can be used as it stands or mended.

    `found` counts: `files`, `unread` and `empty` files, `lines`, `usable` lines, and rows by kind and as `scored` (with a reward).
    """
    found["files"] += 1
    if why := refusal(path):
        found["unread"] += 1
        yield cleaner.entry(name, RawLine(0, None, b""), Rejected("read", why)) | {"line": None}
        return
    before = found["lines"]
    for line in raw_lines(path, name, max_line_bytes=cleaner.settings.max_line_bytes, notes=Counter()):
        found["lines"] += 1
        try:
            rows = cleaner.clean(name, RawLine(*line), Tally(), [])
        except Rejected as rejected:
            yield cleaner.entry(name, RawLine(*line), rejected)
            continue
        found["usable"] += 1
        found.update(row["kind"] for row in rows)
        found["scored"] += sum("reward" in row for row in rows)
    found["empty"] += found["lines"] == before


def by_glob(file: str, values: Mapping[str, Value], default: Value) -> Value:
    """What the settings say for a file below data/raw: the value of the first glob that fits, or the default."""
    return next((value for glob, value in values.items() if fnmatchcase(file, glob)), default)


def check_globs(key: str, globs: Iterable[str], files: Iterable[str]) -> None:
    """Raise `ConfigError` for a glob of setting `key` that decides for none of the `files` below data/raw: it would change nothing."""
    names, before = list(files), list[str]()
    for glob in globs:
        mine = {name for name in names if fnmatchcase(name, glob)}
        if not mine:
            some = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
            raise ConfigError(
                "Q-CURATE-008",
                f"{key} names {quoted(glob)}, which no file below data/raw matches (there: "
                f"{printable(some, 200)}): correct the glob or remove it",
            )
        if all(any(fnmatchcase(name, other) for other in before) for name in mine):
            raise ConfigError(
                "Q-CURATE-009",
                f"{key} names {quoted(glob)}, but globs before it match all its files and the first counts: "
                "put it before them",
            )
        before.append(glob)


def domain_of(file: str) -> str:
    """The domain of rows that don't name their own: the folder below data/raw, or the file's name without endings."""
    folder, slash, _ = file.partition("/")
    return folder if slash else file.partition(".")[0] or file


def blocks(file: str, lines: Iterable[tuple[int, int | None, bytes | BadLine]], size: int) -> Iterator[Block]:
    """Neighbouring lines in blocks of about `size` bytes, never more than 4,096 lines."""
    block, held = Block(file, []), 0
    for line in lines:
        block.lines.append(RawLine(*line))
        held += len(line[2]) if isinstance(line[2], bytes) else 64
        if held >= size or len(block.lines) >= 4096:
            yield block
            block, held = Block(file, []), 0
    if block.lines:
        yield block


def _bytes(data: bytes | BadLine) -> bytes:
    if isinstance(data, BadLine):
        raise data
    return data


def keep_sample(samples: dict[str, list[dict[str, Any]]], key: str, entry: dict[str, Any]) -> None:
    """Keep the first few entries of every key."""
    kept = samples.setdefault(key, [])
    if len(kept) < SAMPLES:
        kept.append(entry)
