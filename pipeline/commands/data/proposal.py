"""Guess `curate.fields`' mapping for a file whose rows fit no format, by its columns' names and contents.

Each guess is tried on the sample by the code that curates. Only guesses that read most of it are proposed.
The user has to choose if two are nearly as good, or if nothing but the lack of others supports the first.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from statistics import fmean
from typing import Any

from pipeline.chat.rows import BadRow, Row
from pipeline.commands.data.classes import classes_of, is_name, labelled, values_of
from pipeline.commands.data.columns import (
    MOST,
    WORDS,
    Column,
    TurnKeys,
    columns_of,
    name_speaks_of,
    turn_keys,
    words_of,
)
from pipeline.commands.data.doubts import doubt
from pipeline.commands.data.series import Choices, choices_of
from pipeline.config.field_sources import LISTS_OF_TURNS, fields_of
from pipeline.core.jsonl import BadLine
from pipeline.intake.files.files import is_table
from pipeline.intake.rows.chats import TOOLS
from pipeline.intake.rows.fields import RowMapper
from pipeline.intake.rows.formats import FORMAT_KEYS, detect, to_row
from pipeline.intake.rows.letter_case import known_names, with_known_keys
from pipeline.intake.rows.markup import is_rendered, parse
from pipeline.intake.rows.turns import MEDIA, ROLES, Turn, is_list
from pipeline.intake.rows.unread import SAYING_KEYS
from pipeline.stages.curate.rules.rendered import Markup

Stated = dict[str, Any]  # mapping as in params.yaml
SURE = 1.0  # lead in points of the best guess over the second
READ = 0.5  # least share of the sample that a guess reads
EXAMPLES = 2
SENTENCE = 3  # words of a text, in the mean, that may be a sentence or a subject
MOST_TEXTS = 6  # longest columns of text that pairs are formed from
LONG_TEXT = 200  # characters of texts that may be documents
# points for evidence of an exchange
NAMED = 2.0
ORDERED = 0.3
ASKS = 0.5
LENGTHS = 0.5
# points of other guesses
OF_TURNS = 6.0
OF_PAIRS = 7.0
OF_CHATS = 7.0  # chats that are rendered to text
OF_CHOICES = 8.0
OF_TEXTS = 1.0
OF_LABELS = 3.0  # NAMED is added if a name supports them
SYSTEM = ("system", "system_prompt")  # keys that are read without a mapping
KEPT_LISTS = SAYING_KEYS.union(TOOLS, ("answers",))
SIDES = ("question", "answer", "system")  # topics that a speaker's name may point to
CUSTOMERS = frozenset(("client", "contact", "customer", "guest", "lead", "requester", "visitor"))
MARKUP = Markup(())


@dataclass(frozen=True)
class Candidate:
    """A mapping to be tried. `labels` has the values of its answers if they are labels, with their counts."""

    fields: Stated
    points: float
    is_certain: bool = True  # False if its points say less than they seem to
    labels: Mapping[str, int] = field(default_factory=dict)
    are_numbers: bool = False  # True if the labels are numbers, true or false


@dataclass(frozen=True)
class Guess:
    """A candidate, with null for keys that prevent reading, and rows of the sample as it reads them. `unread`
    are the columns of sentences that it leaves out, such as a mail's subject.
    """

    fields: Stated
    candidate: Candidate
    rows: tuple[Row, ...]
    unread: tuple[str, ...] = ()


@dataclass(frozen=True)
class Proposal:
    """Guesses for a file: the best, and a second if that is nearly as good."""

    guesses: tuple[Guess, ...]

    @property
    def is_sure(self) -> bool:
        """Return True for the only guess if names or contents support it, and it drops no media or tools."""
        first = self.guesses[0]
        dropped = {key for key, source in first.fields.items() if source is None}
        is_supported = first.candidate.is_certain and first.candidate.points >= NAMED
        return len(self.guesses) == 1 and is_supported and dropped.isdisjoint((*MEDIA, *TOOLS))


def propose(rows: Sequence[Mapping[str, Any]], file: str) -> Proposal | None:
    """Return the guesses for the rows of a file that fit no format. Returns None if there is none, or if each
    would lose a part of what belongs together.
    """
    columns = columns_of(rows)
    if doubt(rows, columns, is_one_object=len(rows) == 1):
        return None
    if len(rows) == 1:
        columns = _not_inside(rows[0], columns)
    return _proposal(_candidates(rows, columns), rows, file)


def propose_labels(rows: Sequence[Mapping[str, Any]], file: str) -> Proposal | None:
    """Return the guesses for rows that are read as texts, if another column classifies these.

    None is certain, since the texts may be meant alone.
    """
    columns = [column for column in columns_of(rows) if column.path != "domain"]
    texts = [column for column in columns if column.path == "text"]
    classes = [
        column
        for column in classes_of(columns, texts, len(rows))
        if column.speaks_of("label") or not (column.is_number or any(map(column.speaks_of, WORDS)))
    ]
    candidates = _labelled(classes, texts, len(rows), {})
    return _proposal((replace(candidate, is_certain=False) for candidate in candidates), rows, file)


def _proposal(
    candidates: Iterable[Candidate], rows: Sequence[Mapping[str, Any]], file: str
) -> Proposal | None:
    guesses: list[Guess] = []
    for candidate in sorted(candidates, key=lambda candidate: -candidate.points):
        if guesses and guesses[0].candidate.points - candidate.points >= SURE:
            break
        if any(guess.candidate.fields == candidate.fields for guess in guesses):
            continue
        guess = _tried(candidate, rows, file)
        if guess is not None:
            guesses.append(guess)
        if len(guesses) == 2:
            break
    return Proposal(tuple(guesses)) if guesses else None


def _not_inside(only: Mapping[str, Any], columns: Sequence[Column]) -> list[Column]:
    """Return the columns of a file's only row without those inside its values, which may be the rows.

    A list of turns stays if there is one, under a name or with the roles that formats know.
    """
    lists = [column for column in columns if column.lists]
    return [
        column
        for column in columns
        if (column in lists and _is_conversation(column, len(lists)))
        or (column.path in only and column not in lists)
    ]


def _is_conversation(column: Column, lists: int) -> bool:
    if column.path in LISTS_OF_TURNS:
        return True
    keys = turn_keys(column.lists)
    if keys is None or keys.user or lists > 1:
        return False
    return all(_role_name(name) in ROLES for name in keys.names)


def _candidates(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> Iterator[Candidate]:
    chats = [column for column in columns if column.texts and _holds_chats(column)]
    for column in chats:
        yield Candidate({"text": column.path}, OF_CHATS)
    texts = [column for column in columns if column.is_text and column not in chats]
    classes = classes_of(columns, texts, len(rows))
    in_order = [column for column in texts if column not in classes]
    texts.sort(key=lambda column: -column.length)
    choices = choices_of(rows, columns)
    if choices is not None:
        yield from _choices(choices, texts)
        return
    for column in columns:
        keys = turn_keys(column.lists) if column.lists else None
        if keys:
            points = OF_TURNS - 0.1 * column.place
            fields = _of_turns(column.path, keys) | _system_of_turns(columns)
            yield Candidate(fields, points, is_certain=not _answers_first(fields, keys))
            if _is_by_order(fields):
                yield Candidate(fields | {"roles": _turned(fields["roles"])}, points - ORDERED)
    accompanying = _accompanying(texts)
    yield from _pairs_of_answers(texts, accompanying)
    beside = [accompanying[what] for what in ("system", "reasoning") if what in accompanying]
    labelled_texts = [column for column in in_order if column not in beside]
    yield from _labelled(classes, labelled_texts, len(rows), _beside(accompanying))
    aside = [*accompanying.values(), *(column for column in classes if not _is_a_side(column, in_order))]
    exchanged = [column for column in texts if column not in aside][:MOST_TEXTS]
    yield from _exchanges(exchanged, accompanying)
    if len(exchanged) == 1 and exchanged[0].length >= LONG_TEXT and not accompanying:
        yield Candidate({"text": exchanged[0].path}, OF_TEXTS)


def _is_a_side(column: Column, texts: Sequence[Column]) -> bool:
    """Return True for a column of few values that may be the answer by its name, or an instruction that is
    applied to one of several texts.
    """
    if column.speaks_of("label"):
        return False
    return column.speaks_of("answer") or (column.speaks_of("question") and len(texts) > 1)


def _labelled(
    classes: Sequence[Column], texts: Sequence[Column], rows: int, beside: Stated
) -> Iterator[Candidate]:
    for number, guess in enumerate(labelled(classes, texts, rows)):
        points = OF_LABELS + NAMED * guess.is_named - 0.1 * number
        fields = {"user": guess.user, "assistant": guess.label.path} | beside
        yield Candidate(fields, points, guess.is_certain, values_of(guess.label), guess.label.is_number)


def _holds_chats(column: Column) -> bool:
    """Return True if nearly all texts of a column are rendered chats, with answers."""
    chats = sum(any(turn["role"] == "assistant" for turn in _rendered(words)) for words in column.texts)
    return chats >= MOST * len(column.texts)


def _rendered(words: str) -> list[Turn]:
    """Return the turns of a rendered chat, or [] for any other text."""
    if not is_rendered(words):
        return []
    try:
        chat = parse(words, "text")
    except BadRow:
        return []
    return chat.turns if chat else []


def _choices(choices: Choices, texts: Sequence[Column]) -> Iterator[Candidate]:
    """Yield a mapping for a question with its choices below it, labelled as the answer names them."""
    others = [column for column in texts if column.path not in (*choices.keys, choices.answer)]
    question = next((column for column in others if column.speaks_of("question")), None)
    if question is None and len(others) == 1:
        question = others[0]
    if question is None:
        return
    context = next(
        (column for column in others if column is not question and column.speaks_of("context")), None
    )
    lines = [f"{{{question.path}}}"]
    if context is not None:
        lines = [f"{{{context.path}}}\n\n{{{question.path}}}"]
    lines += [f"{label}) {{{key}}}" for label, key in zip(choices.labels, choices.keys, strict=True)]
    yield Candidate({"user": "\n".join(lines), "assistant": choices.answer}, OF_CHOICES)


def _of_turns(path: str, keys: TurnKeys) -> Stated:
    fields: Stated = {}
    if path not in LISTS_OF_TURNS or keys.user:
        fields["messages"] = path
    if keys.user:
        return fields | {"user": keys.user, "assistant": keys.assistant}
    if keys.role not in ("role", "from"):
        fields["role"] = keys.role
    if keys.content not in ("content", "value", "text"):
        fields["content"] = keys.content
    roles = _roles_of(keys.names)
    return fields | ({"roles": roles} if roles else {})


def _roles_of(names: Sequence[str]) -> dict[str, str]:
    """Return a role for each name of a speaker that is not the name of its role already."""
    known = {name: ROLES[_role_name(name)] for name in names if _role_name(name) in ROLES}
    roles = {name: "user" for name in names if name not in known and _is_customer(name)}
    if roles and "assistant" not in known.values():
        # Beside its customers, a help desk calls its own people users.
        roles |= {name: "assistant" for name, role in known.items() if role == "user"}
    taken = {role for name, role in known.items() if name not in roles} | set(roles.values())
    free = [side for side in ("user", "assistant") if side not in taken]
    unknown = [name for name in names if name not in known and name not in roles]
    roles |= zip(unknown, _sides(unknown, free or ["user", "assistant"]), strict=True)
    return {name: roles[name] for name in names if name in roles}


def _is_customer(name: str) -> bool:
    return not CUSTOMERS.isdisjoint(words_of(name))


def _role_name(name: str) -> str:
    """Return a role in the form that formats look up."""
    return name.strip().lower().replace("-", "_")


def _sides(names: Sequence[str], free: Sequence[str]) -> list[str]:
    """Return a role for each name: by its words, otherwise the user for the first speaker and the assistant
    for the others.
    """
    sides = []
    for number, name in enumerate(names):
        if name_speaks_of(name, "answer"):
            sides.append("assistant")
        elif name_speaks_of(name, "question"):
            sides.append("user")
        elif name_speaks_of(name, "system"):
            sides.append("system")
        else:
            sides.append(free[min(number, len(free) - 1)])
    return sides


def _is_by_order(fields: Stated) -> bool:
    """Return True if only the order of two speakers tells which is the user."""
    names = list(fields.get("roles", ()))
    return len(names) == 2 and not any(
        _is_customer(name) or any(name_speaks_of(name, what) for what in SIDES) for name in names
    )


def _answers_first(fields: Stated, keys: TurnKeys) -> bool:
    """Return True if the assistant is only who is left, and speaks first."""
    roles = fields.get("roles", {})
    first = next(iter(keys.names), "")
    return len(roles) == 1 and roles.get(first) == "assistant" and not name_speaks_of(first, "answer")


def _turned(roles: Mapping[str, str]) -> dict[str, str]:
    return dict(zip(roles, reversed([*roles.values()]), strict=True))


def _accompanying(texts: Sequence[Column]) -> dict[str, Column]:
    """Return the columns that accompany an exchange: its system text, context and reasoning."""
    accompanying: dict[str, Column] = {}
    for what in ("system", "reasoning", "context"):
        for column in texts:
            is_other = column.speaks_of("answer") or (what == "context" and column.speaks_of("question"))
            if column.speaks_of(what) and not is_other and column not in accompanying.values():
                accompanying.setdefault(what, column)
    if len(texts) - len(accompanying) < 2:  # The context is one of the two texts itself.
        accompanying.pop("context", None)
    return accompanying


def _pairs_of_answers(texts: Sequence[Column], accompanying: Mapping[str, Column]) -> Iterator[Candidate]:
    for better in [column for column in texts if _speaks(column, "chosen")]:
        for worse in [column for column in texts if _speaks(column, "rejected") and column is not better]:
            rest = [column for column in texts if column not in (better, worse, *accompanying.values())]
            question = next((column for column in rest if column.speaks_of("question")), None)
            if question is None and len(rest) == 1:
                question = rest[0]
            if question is not None:
                fields = {"prompt": question.path, "chosen": better.path, "rejected": worse.path}
                yield Candidate(fields | _system(accompanying), OF_PAIRS)


def _speaks(column: Column, what: str) -> bool:
    """Return True if any key of a column's path contains a word for `what`."""
    return any(name_speaks_of(key, what) for key in column.path.split("."))


def _exchanges(texts: Sequence[Column], accompanying: Mapping[str, Column]) -> Iterator[Candidate]:
    longest = sum(column.length for column in texts) or 1.0
    has_answers = any(column.speaks_of("answer") and not column.is_few for column in texts)
    for question, answer in permutations(texts, 2):
        # "source" may be a text to translate, or where a ticket came from.
        is_other_text = any(not other.is_few for other in texts if other not in (question, answer))
        is_class = question.is_few and (is_other_text or not question.speaks_of("question"))
        # "agent" is who answered if another column has the answer.
        is_who_answered = answer.is_few and "." not in answer.path and has_answers
        if is_class or is_who_answered or is_name(question) or is_name(answer):
            continue
        points = NAMED * question.speaks_of("question") + NAMED * answer.speaks_of("answer")
        points -= NAMED * (question.speaks_of("answer") and not question.speaks_of("question"))
        points -= NAMED * (answer.speaks_of("question") and not answer.speaks_of("answer"))
        points -= NAMED * (answer.speaks_of("no text") and not answer.speaks_of("answer"))
        points += ORDERED * (question.place < answer.place)
        points += ASKS * _share(question, "?") - ASKS * _share(answer, "?")
        points += LENGTHS * (question.length + answer.length) / longest
        fields: Stated = {"user": question.path, "assistant": answer.path}
        if "context" in accompanying:
            fields["user"] = f"{{{question.path}}}\n\n{{{accompanying['context'].path}}}"
        yield Candidate(fields | _beside(accompanying), points)


def _system(accompanying: Mapping[str, Column]) -> Stated:
    return {"system": accompanying["system"].path} if "system" in accompanying else {}


def _beside(accompanying: Mapping[str, Column]) -> Stated:
    """Return the mapping of the system text and the reasoning of an exchange."""
    fields = _system(accompanying)
    if "reasoning" in accompanying:
        fields["reasoning_content"] = accompanying["reasoning"].path
    return fields


def _system_of_turns(columns: Sequence[Column]) -> Stated:
    """Return the mapping of the text next to a list of turns that contains instructions or context, if
    formats don't read it under its own name. It may be the same in all rows.
    """
    texts = [column for column in columns if column.texts and not column.others]
    systems = [column for column in texts if column.speaks_of("system")]
    contexts = [column for column in texts if column.words == ["context"]]
    column = next(iter([*systems, *contexts]), None)
    if column is None or "_".join(column.words) in SYSTEM:
        return {}
    return {"system": column.path}


def _share(column: Column, ending: str) -> float:
    return sum(text.rstrip().endswith(ending) for text in column.texts) / max(1, len(column.texts))


def _tried(candidate: Candidate, rows: Sequence[Mapping[str, Any]], file: str) -> Guess | None:
    """Return the guess of a candidate; None if it reads too few rows."""
    fields = candidate.fields
    try:
        fields_of(fields)
    except ValueError:  # The key has braces, for example, so no source can name it.
        return None
    read = _read(fields, rows, file)
    if len(read) < len(rows):
        in_the_way = []
        for key in _doubtful(fields, rows):
            if len(_read(fields | {key: None}, rows, file)) > len(read):
                in_the_way.append(key)
        if in_the_way:
            fields = fields | dict.fromkeys(in_the_way)
            read = _read(fields, rows, file)
    if len(read) < READ * len(rows):
        return None
    return Guess(fields, candidate, tuple(read[:EXAMPLES]), tuple(_unread(fields, rows)))


def _unread(fields: Stated, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the columns of sentences, which differ from row to row, that a mapping does not name."""
    named = " ".join(str(source) for source in fields.values())
    for column in columns_of(rows):
        words = fmean(len(text.split()) for text in column.texts) if column.texts else 0.0
        is_told = column.path in named or column.path in fields
        if words >= SENTENCE and not (is_told or column.is_few or is_name(column)):
            yield column.path


def _doubtful(fields: Stated, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys of the rows that formats read and the mapping does not name. The system text, and keys
    of the request or the answer with lists and objects are excluded, because the user must not lose them.
    """
    keys = list(dict.fromkeys(key for row in rows for key in row))
    named = {str(source).partition(".")[0] for source in fields.values()}
    read = FORMAT_KEYS | SAYING_KEYS | frozenset(MEDIA)
    return [
        key
        for key, known in zip(keys, known_names(keys), strict=True)
        if known in read
        and key not in named
        and key not in fields
        and known not in SYSTEM
        and not (known in KEPT_LISTS and any(_is_structure(row.get(key)) for row in rows))
    ]


def _is_structure(value: Any) -> bool:
    return isinstance(value, dict) or is_list(value)


def _read(fields: Stated, rows: Sequence[Mapping[str, Any]], file: str) -> list[Row]:
    """Return the rows of the sample that can be read with a mapping, as they are read."""
    mapper = RowMapper(fields, "auto", is_table=is_table(file))
    read = []
    for row in rows:
        try:
            value = with_known_keys(mapper.apply(dict(row), Counter()))
            canonical = MARKUP(to_row(value, source=file, domain="", format=detect(value)), [])
        except (BadRow, BadLine):
            continue
        if _says_something(canonical):
            read.append(canonical)
    return read


def _says_something(row: Row) -> bool:
    """Return True if a chat has an answer, as the rule `turns` requires."""
    if row["kind"] != "chat":
        return True
    sides = [turn["role"] for turn in row["messages"] if turn["content"].strip() or turn.get("tool_calls")]
    return "user" in sides and "assistant" in sides
