"""Damaged files of every container: no traceback, no hang, no growth, and every row accounted for.

    python tests/faults/test_reader.py SEED COUNT     # the same in this process, with its figures as JSON

Each case is a file of good rows that is damaged (bytes flipped, cut, put in, doubled, taken from elsewhere),
before it is packed or after, then read as `curate` reads it. `SEED` and the case's number give the same file
again.
"""

import csv
import gzip
import io
import json
import random
import re
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from pipeline.core.jsonl import BadLine, dump_line, parse_line
from pipeline.intake.files.containers import raw_lines
from pipeline.intake.files.files import content_of, layout_of
from pipeline.intake.rows.formats import to_row

MAX_LINE_BYTES = 20_000  # small, so that damage reaches it
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"town": "Köln", "days": [1, 2.5e0]}'},
}
SAY = {"role": "assistant", "content": "4 🙂"}
ASK = {"role": "user", "content": '2 + 2?\n"Why" \\ \t{}'}
ROWS: list[dict[str, Any]] = [
    {"messages": [{"role": "system", "content": "Be brief."}, ASK, SAY]},
    {
        "messages": [
            ASK,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "no"},
            {"role": "assistant", "content": "No.", "reasoning_content": "Dry."},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "weather",
                    "parameters": {"type": "object", "properties": {"town": {"type": "string"}}},
                },
            }
        ],
    },
    {
        "conversations": [
            {"from": "human", "value": "Grüße – schön"},
            {"from": "gpt", "value": "«Ça va»\u2028"},
        ],
        "system": "",
        "domain": "small talk",
    },
    {"instruction": "Add.", "input": "1, 2", "output": "3", "history": [["Hi", "Hello"]]},
    {"prompt": "Once", "completion": " upon a time"},
    {"query": "Why?", "response": "Because."},
    {"prompt": [ASK], "chosen": [SAY], "rejected": [{"role": "assistant", "content": "c"}]},
    {"prompt": "a", "completion": "b", "label": True},
    {"messages": [ASK, SAY], "reward": -0.5},
    {"prompt": "6 * 7", "answer": "42"},
    {"segments": [{"label": False, "text": "<s>"}, {"label": True, "text": "x"}]},
    {"text": "plain text " * 20, "source": "book"},
]
NASTY = [
    *(bytes([byte]) for byte in b'"\\{}[]:,\n\r\t\x00\x7f\x80\xc2\xed\xff'),
    *(
        b"\\u0000",
        b"\\ud800",
        b"\xef\xbb\xbf",
        b"\r\n",
        b"\n\n",
        b'""',
        b"NaN",
        b"1e999",
        b"9" * 30,
        b"-",
        b"null",
        b'"a":1,"a":1',
        b"[[[[",
        b"PAR1",
    ),
]
ZSTD = zstandard.ZstdCompressor(level=1, write_checksum=True)


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO(newline="")
    names = sorted({key for row in rows for key in row})
    table = csv.writer(text)
    table.writerow(names)
    for row in rows:
        cells = (row.get(name, "") for name in names)
        table.writerow(cell if isinstance(cell, str) else json.dumps(cell) for cell in cells)
    return text.getvalue().encode()


def as_table(rows: list[dict[str, Any]]) -> pyarrow.Table:
    as_they_are = (
        "conversations",
        "history",
        "reward",
        "label",
    )  # other columns hold text in one row and lists in the next
    plain = [
        {
            key: value if key in as_they_are or isinstance(value, str) else json.dumps(value)
            for key, value in row.items()
        }
        for row in rows
    ]
    names = dict.fromkeys(key for row in plain for key in row)
    return pyarrow.Table.from_pylist([{name: row.get(name) for name in names} for row in plain])


def as_parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(as_table(rows), sink, row_group_size=3)
    return sink.getvalue()


def as_arrow(rows: list[dict[str, Any]]) -> bytes:
    """A stream, or of other numbers of rows a file."""
    sink = io.BytesIO()
    table = as_table(rows)
    with (pyarrow.ipc.new_stream if len(rows) % 2 else pyarrow.ipc.new_file)(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return sink.getvalue()


def as_tar(rows: list[dict[str, Any]]) -> bytes:
    """Of a file in lines, one packed and one in columns."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        lines = PLAIN[".jsonl"](rows)
        for name, data in (
            ("a.jsonl", lines),
            ("b/c.jsonl.gz", gzip.compress(lines)),
            ("d.csv", as_csv(rows)),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return sink.getvalue()


Make = Callable[[list[dict[str, Any]]], bytes]
PLAIN: dict[str, Make] = {
    ".jsonl": lambda rows: b"".join(map(dump_line, rows)),
    ".json": lambda rows: json.dumps(rows, indent=random.Random(len(rows)).choice([None, 1])).encode(),  # noqa: S311
    ".ndjson": lambda rows: json.dumps(rows[0], indent=2).encode(),
    ".csv": as_csv,
    ".parquet": as_parquet,
    ".arrow": as_arrow,
    ".tar": as_tar,
}
UNPACKED = (".parquet", ".arrow")  # packed inside
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": lambda data: gzip.compress(data, 1),
    ".zst": ZSTD.compress,
}


@cache
def good(suffix: str, variant: int) -> bytes:
    """A file of one to six rows."""
    chance = random.Random(variant)  # noqa: S311
    return PLAIN[suffix](chance.sample(ROWS, chance.randrange(1, 7)))


def damaged(data: bytes, other: bytes, chance: random.Random) -> bytes:
    """The bytes after one to four mutations; `other` is a file to take pieces from."""
    for _ in range(chance.choice((1, 1, 2, 4))):
        at, end = sorted(chance.randrange(len(data) + 1) for _ in range(2))
        some = slice(at, min(end, at + chance.choice((1, 4, 200, 1 << 30))))
        match chance.randrange(6):
            case 0 if data:  # a byte becomes another
                at = min(at, len(data) - 1)
                data = data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]
            case 1:  # cut off, or out
                data = data[:at] + data[chance.choice((some.stop, len(data))) :]
            case 2:  # put in
                data = data[:at] + chance.choice(NASTY) * chance.choice((1, 1, 1, 40, 3000)) + data[at:]
            case 3:  # doubled, or more
                data = (
                    data[: some.stop]
                    + data[some]
                    * min(chance.choice((1, 1, 2, 500)), 1 + 200_000 // (some.stop - some.start + 1))
                    + data[some.stop :]
                )
            case 4:  # taken from elsewhere
                cut = chance.randrange(len(other) + 1)
                data = data[:at] + other[cut : cut + chance.choice((1, 20, 1 << 30))] + data[some.stop :]
            case _:  # a nasty one in place of others
                data = data[:at] + chance.choice(NASTY) + data[some.stop :]
    return data


def case(seed: int, number: int) -> tuple[str, bytes]:
    """(name, bytes) of one damaged file."""
    chance = random.Random(f"{seed} {number}")  # noqa: S311
    suffix = chance.choice((".jsonl", ".jsonl", ".json", ".ndjson", ".csv", ".parquet", ".arrow", ".tar"))
    packing = "" if suffix in UNPACKED else chance.choice(("", "", ".gz", ".zst"))
    data, other = (good(suffix, chance.randrange(40)) for _ in range(2))
    if packing and chance.random() < 0.5:
        return f"a{suffix}{packing}", damaged(PACK[packing](data), PACK[packing](other), chance)
    return f"a{suffix}{packing}", PACK[packing](damaged(data, other, chance))


def read(path: Path, data: bytes) -> Counter[str]:
    """Read a file as `curate` does; its reasons ("" for a good row); asserts that no row is unaccounted."""
    reasons: Counter[str] = Counter()
    path.write_bytes(data)
    last = -1
    number = 0
    row = 0
    for line in raw_lines(path, path.name, max_line_bytes=MAX_LINE_BYTES, notes=Counter()):
        # the next record, or the next row of the same
        assert (line.number, line.row) in ((number + 1, 0), (number + 1, 1), (number, row + 1))
        number = line.number
        row = line.row
        raw = line.data
        if line.offset is not None:
            assert line.offset > last
            last = line.offset
        try:
            if isinstance(raw, BadLine):
                raise raw
            value = parse_line(raw)
            assert parse_line(dump_line(value)) == value
            dump_line(to_row(value, source=line.source(path.name), domain="any"))
            reasons[""] += 1
        except BadLine as why:
            assert why.code and str(why)
            reasons[why.code] += 1
    if (
        path.suffix == ".jsonl"
        and layout_of(content_of(path, path.name), MAX_LINE_BYTES, Counter()) == "lines"
    ):
        assert reasons.total() == data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    return reasons


def survive(seed: int, count: int) -> dict[str, Any]:
    """Read `count` damaged files and give the figures; whatever fails says which case it was."""
    figures: dict[str, Any] = {"files": count, "slowest_s": 0.0}
    reasons: Counter[str] = Counter()
    containers: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            name, data = case(seed, number)
            start = time.process_time()
            try:
                reasons += read(Path(folder, name), data)
            except Exception as error:
                raise AssertionError(f"case({seed}, {number}), {name}: {error!r}") from error
            figures["slowest_s"] = max(figures["slowest_s"], time.process_time() - start)
            containers[name] += 1
    figures |= {
        "rows": reasons.total(),
        "accepted": reasons.pop(""),
        "rejected": dict(reasons.most_common()),
        "containers": dict(containers),
    }
    return figures | {"peak_mib": peak_kib() >> 10}


def peak_kib() -> int:
    """Most memory this process ever had; getrusage would count its parent's, of which it is a fork."""
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def figures_of(seed: int, count: int) -> dict[str, Any]:
    """`survive` in a process of its own, whose memory is its own and which may crash."""
    done = subprocess.run(
        [sys.executable, __file__, str(seed), str(count)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def check(figures: dict[str, Any]) -> None:
    assert figures["slowest_s"] < 2
    assert figures["peak_mib"] < 1024
    assert figures["rows"] == figures["accepted"] + sum(figures["rejected"].values())


def test_no_damage_is_read_whole(tmp_path: Path) -> None:
    """The ground that the others stand on."""
    for suffix, make in PLAIN.items():
        for packing, pack in PACK.items() if suffix not in UNPACKED else [("", bytes)]:
            count = {".ndjson": 1, ".tar": 3 * len(ROWS)}.get(suffix, len(ROWS))
            assert read(tmp_path / f"a{suffix}{packing}", pack(make(ROWS)))[""] == count, suffix


@pytest.mark.slow
def test_3000_damaged_files() -> None:
    figures = figures_of(seed=1, count=3000)
    check(figures)
    # the damage is neither total nor dull
    assert figures["accepted"] > 1000 and len(figures["rejected"]) > 15


@pytest.mark.exhaustive
def test_100000_damaged_files() -> None:
    check(figures_of(seed=2, count=100_000))


if __name__ == "__main__":
    print(json.dumps(survive(int(sys.argv[1]), int(sys.argv[2]))))
