"""Keys and tokens: what is found, what is left alone, and that no text takes long."""

import re
import runpy
from collections import Counter

import pytest

from pipeline.core.places import PROJECT
from pipeline.stages.curate.rules.secrets import BLOCK, FORMATS, find_private_keys, find_secrets

BENCHMARK = runpy.run_path(str(PROJECT / "benchmarks/redaction.py"))
# 32 characters that look random; whole keys are put together here, never written out
A = "aZ3kQ9xW7bN2vR5tY8uL1pM4cD6fG0hJ"


def kinds_of(text: str) -> list[str]:
    return [span.kind for span in find_secrets(text)]


def values_of(text: str) -> list[str]:
    return [text[span.start : span.end] for span in find_secrets(text)]


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
def test_a_secret_by_its_surroundings(text: str, value: str):
    assert value in values_of(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
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
    ],
)
def test_no_secret(text: str):
    assert kinds_of(text) == []


def test_a_key_is_hidden_to_its_end():
    key = "sk_" + "live_" + A * 3  # the rule of detect-secrets stops after 24 characters
    assert values_of(f"key {key}.") == [key]


def test_a_private_key_whose_end_is_missing():
    begin, body = "-----BEGIN PRIVATE KEY-----", "\n".join([A * 2] * 3)
    assert values_of(f"{begin}\n{body}\n\nIs this safe to post?") == [f"{begin}\n{body}"]


def test_no_pattern_of_ours_has_a_possessive_group():
    """Python 3.11.2 (Debian's) loses its place where a round of `(...)*+` fails half-way, and hid no key with
    a header: `(?>(...)*)` says the same.
    """
    possessive = re.compile(r"\)(?:[*+?]|\{[0-9,]+\})\+")
    files = [
        file for file in (PROJECT / "pipeline").rglob("*.py") if possessive.search(file.read_text("utf-8"))
    ]
    assert files == []


def test_private_keys_of_a_text_that_may_be_cut():
    begin, end, body = (
        "-----BEGIN RSA PRIVATE KEY-----\n",
        "-----END RSA PRIVATE KEY-----",
        "Proc-Type: 4,ENCRYPTED\n\n" + A * 2 + "\n",
    )
    whole, cut, example = begin + body + end, begin + body, begin + "...\n" + end
    for text, blocks in [
        (f"a {whole} b", [whole]),
        (f"a {cut}", [cut]),
        (f"{cut}{whole}{example}{cut}", [cut, whole, cut]),
        (f"{end} {example} {begin}", [begin]),
        (body + end, []),
    ]:
        assert [text[span.start : span.end] for span in find_private_keys(text)] == blocks
        assert {(span.kind, span.rank) for span in find_private_keys(text)} <= {("private_key", 2)}


def test_the_structured_format_is_named_where_the_surroundings_tell_it_too():
    assert Counter(kinds_of(f"api_key = hf_{A}")) == Counter(["secret", "huggingface_token"])


def test_a_needle_across_two_blocks():
    key = "hf_" + A
    text = " " * (BLOCK - 1) + key + " " * BLOCK + key
    assert values_of(text) == [key, key]
