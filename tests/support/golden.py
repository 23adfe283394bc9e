"""Pages and terminal output as text files beside their tests, `__snapshots__/TEST_FILE/TEST.txt`.

`pytest --snapshot-update TEST_FILE` writes them again: read the difference as a user would read the page.
"""

from difflib import unified_diff

from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode


class Golden(SingleFileSnapshotExtension):
    """One text file for each comparison: `assert text == snapshot(extension_class=Golden)`."""

    file_extension = "txt"
    _write_mode = WriteMode.TEXT


def changed_lines(before: str, after: str) -> str:
    """The lines that only `before` (-) or only `after` (+) has, to hold a text's change against a file."""
    lines = list(unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))[2:]
    return "".join(f"{line}\n" for line in lines if line[:1] in ("+", "-"))
