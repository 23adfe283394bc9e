"""Cursor's conversations in its database, `globalStorage/state.vscdb` (SQLite), which is only read.

Cursor does not publish the schema. The one read here is that of versions 0.45 to 2.4 (`composerData` of `_v`
3 to 14, bubbles of `_v` 2 and 3; 2025-02 to 2026-10), as public readers describe it (michaeldhood/chatrxiv
`docs/cursor/storage-reference.md`, pppp606/cursor-efficiency `docs/vscdbRelation.md`). Table `cursorDiskKV`
has a key `composerData:ID` for each conversation, with its bubbles inside (`conversation`) or named in order
(`fullConversationHeadersOnly`) and stored at `bubbleId:ID:BUBBLE`.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from pipeline.core.jsonl import BadLine, lax_text, object_in, parse_lax
from pipeline.intake.exports.view import View

COMPOSERS = (
    "SELECT key, value FROM cursorDiskKV WHERE key >= 'composerData:' AND key < 'composerData;' ORDER BY key"
)
BUBBLE = "SELECT value FROM cursorDiskKV WHERE key = ?"
MISSING = "missing"  # key of a bubble that is named, but missing in the database
GLOBAL = "Cursor keeps conversations in globalStorage/state.vscdb"


def composer_rows(path: Path) -> Iterator[bytes | BadLine]:
    """Yield each conversation of the database as the JSON of an object with `composerId` and `conversation`.

    Raises `BadLine` if the file is not such a database.
    """
    log = path.with_name(f"{path.name}-wal")
    if log.is_file() and log.stat().st_size:
        raise BadLine(
            "broken_container",
            f"{log.name} beside it holds what is not in the database yet: quit Cursor, then copy it again",
        )
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            tables = {
                name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            }
            if "cursorDiskKV" not in tables:
                raise BadLine("unknown_container", f"a database without the table cursorDiskKV: {GLOBAL}")
            is_empty = True
            for key, value in database.execute(COMPOSERS):
                is_empty = False
                yield _composer(database, str(key), value)
            if is_empty:
                raise BadLine("unknown_format", f"the database holds no conversation: {GLOBAL}")
    except sqlite3.Error as error:
        raise BadLine("broken_container", f"SQLite can't read the database ({error})") from None


def _composer(database: sqlite3.Connection, key: str, value: Any) -> bytes | BadLine:
    try:
        parsed = parse_lax(_stated(value))
    except BadLine as why:
        return BadLine(why.code, f"{key[:60]}: {why}")
    if not isinstance(parsed, dict):
        return BadLine("not_json", f"{key[:60]} is no JSON object")
    identity = key.removeprefix("composerData:")
    composer = View(parsed)
    bubbles = composer.objects("conversation")
    if not composer.array("conversation"):
        headers = composer.objects("fullConversationHeadersOnly")
        bubbles = [_stored(database, identity, header) for header in headers]
    kept = [_bubble(bubble) for bubble in bubbles]
    try:
        return lax_text({"composerId": identity, "conversation": kept}).encode("utf-8", "replace")
    except BadLine as why:
        return BadLine(why.code, f"{key[:60]}: {why}")


def _stored(database: sqlite3.Connection, composer: str, header: View) -> View:
    """Return the bubble that a header names."""
    stored = database.execute(BUBBLE, (f"bubbleId:{composer}:{header.get('bubbleId')}",)).fetchone()
    bubble = object_in(_stated(stored[0])) if stored else None
    return View({"type": header.get("type"), MISSING: True} if bubble is None else bubble)


# Keys of a bubble that a row needs. In addition it may contain tens of megabytes of files.
OF_BUBBLE = ("type", "text", "thinking", "toolFormerData", "images", MISSING)
OF_TOOL = ("name", "rawArgs", "params", "result", "status", "toolCallId", "userDecision")


def _bubble(bubble: View) -> dict[str, Any]:
    kept = {key: bubble[key] for key in OF_BUBBLE if bubble.get(key) is not None}
    if bubble.has("toolFormerData", dict):
        tool = bubble.object("toolFormerData")
        kept["toolFormerData"] = {key: tool[key] for key in OF_TOOL if tool.get(key) is not None}
    return kept


def _stated(value: Any) -> str | bytes:
    """Return the JSON in a cell of the table, which is text or bytes; an empty text for any other cell."""
    return value if isinstance(value, str | bytes) else ""
