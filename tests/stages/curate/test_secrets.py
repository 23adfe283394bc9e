"""Keys and tokens: what is found, what is left alone, and that no text takes long."""

import re
import runpy
from collections.abc import Sequence
from pathlib import Path

import pytest
from curating import chat, of_rows

from pipeline.core.places import PROJECT
from pipeline.stages.curate.rules.secrets import FORMATS

BENCHMARK = runpy.run_path(str(PROJECT / "benchmarks/redaction.py"))
# 32 characters that look random; whole keys are put together here, never written out
A = "aZ3kQ9xW7bN2vR5tY8uL1pM4cD6fG0hJ"


def redacted(root: Path, texts: Sequence[str]) -> list[str]:
    """Return what the stage leaves of texts, each in a row of its own, if it looks for secrets alone."""
    project = of_rows(root, [chat(text) for text in texts])
    project.run(drop_duplicates="none", personal=[])
    return [row["messages"][0]["content"] for row in project.rows()]


def with_marks(text: str) -> str:
    return re.sub(r"\[[A-Z_]+_\d+\]", "#", text)


def test_500_planted_secrets_of_more_than_25_kinds_are_hidden():
    total, hidden, named = BENCHMARK["recall"](500, seed=7)
    assert total.total() == 500
    assert len(total) >= 25
    assert hidden.total() >= 0.99 * 500, total - hidden
    assert named.total() >= 0.99 * 500, total - named


def test_every_kind_with_a_form_of_its_own_is_planted():
    planted = {kind for kind, _, _ in BENCHMARK["planted"](100, seed=0)}
    assert {each.kind for each in FORMATS} - planted == {"adobe_secret", "password", "secret"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('password = "Tr0ub4dor&3"', "Tr0ub4dor&3"),
        ("DB_PASSWORD=s3cr3tpw99", "s3cr3tpw99"),
        ("db_pass: hunter2x,", "hunter2x"),
        ('{"password": "Tr0ub4dor"}', "Tr0ub4dor"),
        ('"{\\"password\\": \\"Tr0ub4dor\\"}"', "Tr0ub4dor"),
        ("spring.datasource.password=Qw3rty-9z", "Qw3rty-9z"),
        ("MYSQL_PWD='Qw3rty9z'", "Qw3rty9z"),
        (f"api_key={A}", A),
        (f"?token={A}&page=2", A),
        (f'const apiKey = "{A}";', A),
        (f"X-API-Key: {A}", A),
        (f"client_secret: '{A}'", A),
        (f"Authorization: Bearer {A}", A),
        (f'"Authorization": "token {A}"', A),
        ("postgresql://bob:pw1@db/main", "pw1"),
        ("password = 'ab123ab1'", "ab123ab1"),
        ("api_key = abcdefgh1ijklmno2", "abcdefgh1ijklmno2"),
        ("ghp_" + "abcd" * 9, "ghp_" + "abcd" * 9),
        ("mongodb+srv://bob:b%40dpw@cluster0.acme.dev/x", "b%40dpw"),
    ],
)
def test_a_secret_by_its_surroundings(tmp_path: Path, text: str, value: str):
    (found,) = redacted(tmp_path, [text])
    assert with_marks(found) == text.replace(value, "#")


PLAIN = [
    "Pass the salt; the password is in the vault, the token in the drawer.",
    'password = "password"',
    "password = correcthorsebattery, password = 271828182, password = 'ab12ab12'",
    'password = "your_password"',
    "--password=password",
    "password = getpass.getpass()",
    "password = os.environ['DB_PASSWORD']",
    "PASSWORD=$DB_PASSWORD",
    "PASSWORD=${SECRET_9}",
    "password: str | None = None",
    "password: <your-password-1>",
    'password = "[PASSWORD_1]"',
    "if password == confirmation1(x): pass",
    'tokenizer = "bert-base-uncased-v2-256k"',
    'token_type = "aB1cD2eF3gH4iJ5kL6"',
    "secret_name: prod/2024/db1/creds2/app3",
    "token = tokens[i1 + 2]",
    "api_key = 'xxxxxxxxxxxxxxxxxxxxxxxx'",
    "api_key = abcdefgh1ijklmnop, token = a1a1a1a1a1a1a1a1a1",
    "ghp_" + "abc" * 12,
    "AKIA" + "IOSFODNN7" + "EXAMPLE",  # AWS's documentation
    "task-" + "a1b2c3d4" * 8,  # no sk- key
    "postgres://user:password@localhost/db, postgres://user:p1@localhost/db",
    "https://localhost:8080/a@b",
    "http://user@host/path",
    "-----BEGIN RSA PRIVATE KEY-----\n...\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN CERTIFICATE-----\n" + A * 4 + "\n-----END CERTIFICATE-----",
    "sha256:" + "0123456789abcdef" * 4,
    "commit 3b18e512dba79e4c8300dd08aeb37f8e728b8dad",
    "eyJhbGciOiJIUzI1NiJ9 is the header of a JWT",
    "find . -name 'sk-*' -o -name '*.key-old'",
]


def test_no_secret(tmp_path: Path):
    assert redacted(tmp_path, PLAIN) == PLAIN


def test_a_key_is_hidden_to_its_end(tmp_path: Path):
    key = "sk_" + "live_" + A * 3  # the rule of detect-secrets stops after 24 characters
    begin, body = "-----BEGIN PRIVATE KEY-----", "\n".join([A * 2] * 3)  # its end is missing
    texts = [f"key {key}.", f"{begin}\n{body}\n\nIs this safe to post?"]
    assert [*map(with_marks, redacted(tmp_path, texts))] == ["key #.", "#\n\nIs this safe to post?"]


def test_no_pattern_of_ours_has_a_possessive_group():
    """Python 3.11.2 (Debian's) loses its place where a round of `(...)*+` fails half-way, and hid no key with
    a header: `(?>(...)*)` says the same.
    """
    possessive = re.compile(r"\)(?:[*+?]|\{[0-9,]+\})\+")
    files = [
        file for file in (PROJECT / "pipeline").rglob("*.py") if possessive.search(file.read_text("utf-8"))
    ]
    assert files == []


def test_a_needle_across_two_blocks(tmp_path: Path):
    key, block = "hf_" + A, 1 << 18  # characters that are looked through at a time
    text = "x" + " " * (block - 2) + key + " " * block + key
    assert redacted(tmp_path, [text]) == [text.replace(key, "[HUGGINGFACE_TOKEN_1]")]
