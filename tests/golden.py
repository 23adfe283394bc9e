"""Pages and terminal output as text files beside their tests, `__snapshots__/TEST_FILE/TEST.txt`.

`pytest --snapshot-update TEST_FILE` writes them again: read the difference as a user would read the page.
"""

from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode


class Golden(SingleFileSnapshotExtension):
    """One text file for each comparison: `assert text == snapshot(extension_class=Golden)`."""

    file_extension = "txt"
    _write_mode = WriteMode.TEXT
