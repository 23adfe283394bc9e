"""`quench data check` on rows of a table in which a cell is empty."""

from pathlib import Path

from make import quench


def test_the_empty_column_and_the_record_are_named(tmp_path: Path) -> None:
    file = tmp_path / "desk.csv"
    rows = [
        f'"Where is parcel {n}?\nIt is late.",It is on its way to you now,yes we have looked'
        for n in range(3)
    ]
    half = [f"Where is my refund {n} please?,,we have looked at it twice" for n in range(3)]
    file.write_text("\n".join(["question,answer,note", *rows, *half]) + "\n")
    shown = quench("data", "check", file, "--root", tmp_path).stdout
    assert "record 4: unknown_format: 3 of 6 rows" in shown
    assert "answer is missing or empty" in shown


def test_a_label_as_a_column_s_name_is_a_row_and_no_mapping_is_guessed(tmp_path: Path) -> None:
    file = tmp_path / "desk.csv"
    labels = ["billing", "harbour", "billing", "harbour"]
    rows = [f"{label},where does boat {number} lie today" for number, label in enumerate(labels)]
    file.write_text("\n".join(rows) + "\n")
    shown = quench("data", "check", file, "--root", tmp_path).stdout
    assert "if the first line is a row, write a line of names above it" in shown
    assert "curate:" not in shown
