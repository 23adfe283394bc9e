"""The exports that are read, in the order in which they are tried."""

from pipeline.intake.exports import (
    argilla,
    batches,
    chatgpt,
    claude_ai,
    claude_code,
    codex,
    continue_events,
    continue_sessions,
    cursor,
    discord,
    gemini,
    intercom,
    label_studio,
    langchain,
    langsmith,
    librechat,
    lm_studio,
    mbox,
    open_webui,
    side_files,
    silly_tavern,
    slack,
    squad,
    textgen,
    turn_arrays,
    ultrafeedback,
    vercel,
    zendesk,
)
from pipeline.intake.exports.export import Export, Head

EXPORTS: tuple[Export, ...] = (
    chatgpt.EXPORT,
    claude_code.EXPORT,
    codex.EXPORT,
    *side_files.EXPORTS,
    continue_sessions.EXPORT,
    cursor.EXPORT,
    claude_ai.EXPORT,
    gemini.EXPORT,
    open_webui.EXPORT,
    librechat.EXPORT,
    lm_studio.EXPORT,
    batches.EXPORT,
    continue_events.EXPORT,
    langsmith.EXPORT,
    langchain.EXPORT,
    vercel.EXPORT,
    turn_arrays.EXPORT,
    ultrafeedback.EXPORT,
    squad.EXPORT,
    label_studio.EXPORT,
    argilla.EXPORT,
    textgen.EXPORT,
    silly_tavern.EXPORT,
    zendesk.EXPORT,
    intercom.EXPORT,
    slack.EXPORT,
    discord.EXPORT,
    mbox.EXPORT,
)


def export_of(head: Head) -> Export | None:
    """Return the export of a file with this beginning, None for rows in a format of the user's own."""
    return next((export for export in EXPORTS if export.is_head(head)), None)


def may_be_large(beginning: bytes) -> bool:
    """Return True if a file begins like an export that has records longer than a row."""
    return any(export.large_keys and all(key in beginning for key in export.large_keys) for export in EXPORTS)
