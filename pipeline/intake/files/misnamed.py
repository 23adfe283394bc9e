"""Files that are named as plain text and hold none: rows as JSON or as a table, which are read as such, and
messages of a chat, which would be trained as prose.

Only what is unambiguous at a file's beginning counts: a document may quote JSON, tables and times.
"""

import csv
import json
import re
from io import BufferedReader, StringIO

from pipeline.core.jsonl import BadLine
from pipeline.intake.rows.formats import FORMAT_KEYS, group_of
from pipeline.intake.rows.letter_case import known_names

BEGINNING = 1 << 16  # bytes by which a file is recognized
NOTE = "rows_in_text"
AS_TEXT = "or name it in curate.documents, if it is to be trained as it stands"
CHAT = "chat"
TABLE = "table"
REFUSED = {
    CHAT: "it seems to hold the messages of a chat (lines of a time, a name and words): write each "
    f'conversation as a JSON line, {{"messages": [{{"role": "user", "content": …}}, …]}}, {AS_TEXT}',
    TABLE: "it seems to hold a table (each line has as many tabs as the first): call it .tsv, so that its "
    f"columns can be mapped, {AS_TEXT}",
}
BEGINS_JSON = re.compile(r'\s*(?:\[\s*)?\{\s*"(?:[^"\\\n]|\\.){1,100}"\s*:')
MANY = 10  # JSON values, after which other text is a broken row
SEPARATORS = {"\t": ".tsv", ",": ".csv", ";": ".csv"}
COLUMN_NAME = re.compile(r"[^\W\d][^.!?\n]{0,39}")  # cell of a header
DATE = r"(?:\d{1,4}[./-] ?\d{1,2}[./-] ?\d{1,4}\.?|\d{4}[年년] ?\d{1,2}[月월] ?\d{1,2}[日일])"
TIME = r"\d{1,2}[:.]\d{2}(?:[:.]\d{2})?"
# Marks and words between date and time, or behind the time: a comma, `klo`, the half of the day.
AROUND = r"[^\d\n\[\]:]{1,12}?"
# A message of WhatsApp (iOS, Android) or KakaoTalk; the program's own notices have no name.
MESSAGE = re.compile(
    rf"[\u200e\u200f]?(?:\[{DATE}{AROUND}{TIME}(?:{AROUND})?\]|{DATE}{AROUND}{TIME}(?:{AROUND})? ?[-–,])"
    r"\s+(?:(?P<name>[^:\n]{1,60}?)\s?:\s)?"
)
# A message copied from Telegram, whose words follow on the next line.
COPIED = re.compile(rf"(?P<name>[^\[\n]{{1,60}}), \[{DATE}{AROUND}{TIME}(?:{AROUND})?\]:?\s*")
LOGGED = re.compile(  # Names in logs of programs, which begin like messages.
    r"(?:.*[^a-z])?(?:alert|crit|critical|debug|emerg|err|error|fatal|info|notice|trace|warn|warning)\W*",
    re.IGNORECASE,
)
LOG_TIME = re.compile(r"\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d")  # as programs write it
MOST_SPEAKERS = 50
FEW_LINES = 4  # A message may go on for some lines, so at least each fourth line begins one.


def kind_inside(file: BufferedReader) -> str:
    """Return what a text file holds by its beginning: `.json`, `.tsv` or `.csv` for rows that are read so, a
    key of `REFUSED`, or "" for a document.
    """
    data = file.read(BEGINNING + 1)
    is_whole = len(data) <= BEGINNING
    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    if not is_whole:
        text = text[: text.rfind("\n") + 1] or text
    if _is_json(text):
        return ".json"
    return _table(text) or (CHAT if _is_chat(text) else "")


def refuse(kind: str) -> BadLine:
    """Return the reason why a file of this kind in `REFUSED` is not read."""
    return BadLine("unknown_container", REFUSED[kind])


def _is_json(text: str) -> bool:
    """Return True for JSON objects, or a list of them, with nothing but a broken one behind them."""
    rest = text.lstrip()
    decoder = json.JSONDecoder()
    values = 0
    while BEGINS_JSON.match(rest):
        try:
            _, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError):  # It is cut off here, or broken.
            return True
        values += 1
        rest = rest[end:].lstrip()
    return values > 0 and (not rest or values >= MANY)


def _table(text: str) -> str:
    """Return the kind of a table with a format's columns, `TABLE` for another one with tabs; otherwise ""."""
    for separator, kind in SEPARATORS.items():
        try:
            rows = [row for row in csv.reader(StringIO(text), delimiter=separator) if any(row)]
        except csv.Error:
            continue
        width = len(rows[0]) if rows else 0
        if len(rows) < 2 or width < 2 or any(len(row) != width for row in rows):
            continue
        names = [name.strip() for name in rows[0]]
        group = group_of(FORMAT_KEYS.intersection(known_names(names)))
        if group is not None and (len(group[0]) > 1 or separator == "\t"):
            return kind
        if separator == "\t" and len(set(names)) == width and all(map(COLUMN_NAME.fullmatch, names)):
            return TABLE
    return ""


def _is_chat(text: str) -> bool:
    """Return True if the lines are messages with times and names, as messengers export them."""
    lines = [line for line in text.splitlines() if line.strip()]
    begins = [MESSAGE.match(line) or COPIED.fullmatch(line) for line in lines]
    messages = [match for match in begins if match]
    if len(messages) < 2 or begins[0] is None or len(messages) * FEW_LINES < len(lines):
        return False
    if LOG_TIME.match(lines[0]):
        return False
    names = [match["name"] for match in messages if match["name"]]
    are_people = not any(map(LOGGED.fullmatch, names))
    return are_people and 2 * len(names) >= len(messages) and 1 < len(set(names)) <= MOST_SPEAKERS
