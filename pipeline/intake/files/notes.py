"""Sentences for the terminal on the notes of files: exports, archives and workbooks."""

from collections.abc import Mapping
from typing import NamedTuple

from pipeline.core.text import plural
from pipeline.intake.exports import side_files
from pipeline.intake.exports.mail_ends import KEPT_BELOW
from pipeline.intake.files.members import NOT_READ, Unread, members_sentences
from pipeline.intake.files.misnamed import NOTE as IN_TEXT
from pipeline.intake.files.workbooks import sheets_sentences

EXPORT = "export_"  # prefix of the export's name
SHEETS = "sheets_not_read"
MAILS_LEFT = "mails_left"
CLOSINGS_LEFT = "closings_left"
NAMES_GREETED = "names_greeted"
QUOTES_LEFT = "quotes_left"
BESIDE = {export.name for export in side_files.EXPORTS}  # names of files without conversations
# Notes on the form of a file, which mean that nothing is left out.
HARMLESS = ("bom", "crlf", "description", "form_feeds", "index_column", "mapped")


class Words(NamedTuple):
    """The sentence on a note: what it begins with for one, and for `several`, and the `rest`."""

    one: str
    several: str
    rest: str


# Notes that have a sentence of their own.
SAID = {
    IN_TEXT: Words(
        "file is",
        "files are",
        " named as plain text and read as the rows inside: curate.documents reads text there",
    ),
    MAILS_LEFT: Words(
        "text is a mail",
        "texts are mails",
        ", and whole, because few rows around look like a help desk's (curate.mail: always would cut the "
        "mails of all files, and letters that were asked for)",
    ),
    QUOTES_LEFT: Words(
        "text keeps",
        "texts keep",
        " what may be a quoted mail, or one that is passed on and asked about (curate.mail: always takes out "
        "more, also what is passed on)",
    ),
    CLOSINGS_LEFT: Words(
        "text keeps",
        "texts keep",
        " a line near the end that may be a closing or a writer's name, and what is below it (curate.mail: "
        "always takes out those that stand before a name in five texts of the file, and rarely elsewhere; a "
        "function in curate.transform any)",
    ),
    KEPT_BELOW: Words(
        "text keeps",
        "texts keep",
        " what stands below a closing: the writer's own words, or an address that is not recognized",
    ),
    NAMES_GREETED: Words(
        "answer greets",
        "answers greet",
        " by a name that went from the question with its closing, so the model learns to make names up (a "
        "function in curate.transform can take the greeting out; curate.names makes a placeholder of each "
        "name that its file lists)",
    ),
}


def why_no_row(is_empty: bool, notes: Mapping[str, int]) -> str:
    """Return the reason why a file gives no row and a remedy; "" for a file that is not meant to give any.

    `is_empty` is True if it has no byte.
    """
    exports = _exports(notes)
    if notes.get("description") or (exports and exports.keys() <= BESIDE):
        return ""
    if exports:
        return f"an export ({', '.join(sorted(exports))}) without a conversation that is read: see its notes"
    if is_empty:
        return "it is empty: export or download it again, or move it away"
    return "a list, a table or lines without a row: export it again, or move it away"


def _exports(notes: Mapping[str, int]) -> dict[str, int]:
    """Return the number of files of each export, by its name."""
    return {name.removeprefix(EXPORT): n for name, n in notes.items() if n and name.startswith(EXPORT)}


def notes_sentences(notes: Mapping[str, int], archives: Mapping[str, Unread]) -> list[str]:
    """Return sentences on the exports that were read, and on everything that was left out on purpose.

    `archives` has the members that are not read.
    """
    exports = _exports(notes)
    others = {
        name: count
        for name, count in sorted(notes.items())
        if count and name not in (*HARMLESS, *SAID, SHEETS, NOT_READ) and not name.startswith(EXPORT)
    }
    sentences = [*sheets_sentences(notes.get(SHEETS, 0)), *members_sentences(archives)]
    sentences += [
        f"{plural(notes[name], words.one, words.several)}{words.rest}"
        for name, words in SAID.items()
        if notes.get(name)
    ]
    if exports:
        names = ", ".join(f"{name} ({plural(count, 'file')})" for name, count in sorted(exports.items()))
        sentences.append(f"read as exports: {names}")
    if others:
        counted = ", ".join(f"{count:,} {name}" for name, count in others.items())
        sentences.append(f"left out or decided (docs/exports.md explains each): {counted}")
    return sentences
