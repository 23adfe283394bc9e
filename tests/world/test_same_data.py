"""The same rows as JSONL, Parquet and CSV train the same text, with no null that only a table adds."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from curating import Project

PORT = {"type": "string", "description": "Port"}
LIMIT = {"type": ["integer", "null"]}


def tool(name: str, **properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": sorted(properties)[:1]}
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}}


def calling(name: str, **arguments: Any) -> list[dict[str, Any]]:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return [
        {"role": "user", "content": f"Call {name}."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        {"role": "assistant", "content": f"{name} is done."},
    ]


# rows of two tools, of which a table gives each the other's keys
PADDED = [
    {"messages": calling("tide", port="Brest"), "tools": [tool("tide", port=PORT)]},
    {"messages": calling("sum", terms="6*7"), "tools": [tool("sum", terms={"type": "string"})]},
]
# a null that the model must learn: its type, which is a list, leaves a table no other form than JSON text
DECLARED = [
    {"messages": calling("limit", job=3, limit=None), "tools": [tool("limit", job=PORT, limit=LIMIT)]},
    {"messages": calling("limit", job=4, limit=9), "tools": [tool("limit", job=PORT, limit=LIMIT)]},
]


def as_jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink)
    return sink.getvalue()


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows({key: json.dumps(value) for key, value in row.items()} for row in rows)
    return text.getvalue().encode()


def through_a_table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows as a table exports them: each has all keys."""
    return pyarrow.Table.from_pylist(rows).to_pylist()


def with_text_tools(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "tools": json.dumps(row["tools"])} for row in rows]


@pytest.mark.parametrize(
    ("rows", "forms"),
    [
        (
            PADDED,
            {
                "plain.jsonl": as_jsonl(PADDED),
                "padded.jsonl": as_jsonl(through_a_table(PADDED)),
                "a.parquet": as_parquet(PADDED),
                "plain.csv": as_csv(PADDED),
                "padded.csv": as_csv(through_a_table(PADDED)),
            },
        ),
        (
            DECLARED,
            {
                "plain.jsonl": as_jsonl(DECLARED),
                "a.parquet": as_parquet(with_text_tools(DECLARED)),
                "plain.csv": as_csv(DECLARED),
            },
        ),
    ],
    ids=["padded", "declared"],
)
def test_every_form_of_the_same_rows_trains_the_same_text(
    tmp_path: Path, rows: list[dict[str, Any]], forms: dict[str, bytes]
) -> None:
    for name, data in forms.items():
        project = Project(tmp_path / name, {name: data})
        project.run(drop_duplicates="none")
        kept = [{key: row[key] for key in ("messages", "tools")} for row in project.rows()]
        assert kept == rows, name
