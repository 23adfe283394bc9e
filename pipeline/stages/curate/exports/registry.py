"""The exports that are read, in the order in which they are tried."""

from pipeline.stages.curate.exports.export import Export, Head

EXPORTS: tuple[Export, ...] = ()


def export_of(head: Head) -> Export | None:
    """Return the export that a file with this beginning is, None for rows in a format of one's own."""
    return next((export for export in EXPORTS if export.is_head(head)), None)
