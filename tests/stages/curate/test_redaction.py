"""Placeholders: consistent, numbered, idempotent, and nothing secret in what is said about them."""

import json
import re
import runpy
import time
from typing import Any
from urllib.parse import quote

import pytest
from curating import RECIPE
from draws import draws
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.chat.rows import BadRow, texts
from pipeline.core.places import PROJECT
from pipeline.stages.curate.rules.redaction import Redactor
from pipeline.stages.curate.rules.secrets import FORMATS

BENCHMARK = runpy.run_path(str(PROJECT / "benchmarks/redaction.py"))
chat = BENCHMARK["chat"]
KEY = "hf_" + "aZ3kQ9xW7bN2vR5tY8uL1pM4cD6fG0hJ"
PEOPLE = "bob@acme.dev, eve@acme.dev, +49 30 901820, 93.184.216.34, DE89370400440532013000, 4111111111111111"


REDACTED: list[tuple[list[str], dict[str, Any], list[str]]] = [
    (  # one placeholder for the same value, and numbers in order
        ["Mail eve@acme.dev and bob@acme.dev.", "To BOB@acme.dev and eve@acme.dev from 93.184.216.34."],
        {},
        ["Mail [EMAIL_1] and [EMAIL_2].", "To [EMAIL_2] and [EMAIL_1] from [IP_1]."],
    ),
    (  # a password told once is hidden everywhere
        ["export DB_PASSWORD=hunter2x", "I put hunter2x into the vault.", "whunter2x hunter2xyz"],
        {},
        ["export DB_PASSWORD=[PASSWORD_1]", "I put [PASSWORD_1] into the vault.", "whunter2x hunter2xyz"],
    ),
    (  # unless it is short
        ["redis://u:pw12x@h pw12x", "redis://u:pw12xy@h pw12xy"],
        {},
        ["redis://u:[URL_PASSWORD_1]@h pw12x", "redis://u:[URL_PASSWORD_2]@h [URL_PASSWORD_2]"],
    ),
    # numbers go on after those that are there
    (["I am [EMAIL_3].", "Mail bob@acme.dev."], {}, ["I am [EMAIL_3].", "Mail [EMAIL_4]."]),
    (  # secrets come before personal data
        ["postgres://app:s3cr3tpw@db.acme.dev:5432/main"],
        {},
        ["postgres://app:[URL_PASSWORD_1]@db.acme.dev:5432/main"],
    ),
    ([f'api_key = "{KEY}"'], {}, ['api_key = "[HUGGINGFACE_TOKEN_1]"']),
    (  # an escape is no letter before a key
        [f'print("a\\n{KEY}\\tb\\n93.184.216.34")'],
        {},
        ['print("a\\n[HUGGINGFACE_TOKEN_1]\\tb\\n[IP_1]")'],
    ),
    (  # names are whole words, as written or in capitals
        ["[Ann Lee met ANN LEE, ann lee, xAnn Lee and Joann Leeds. 张伟说你好. Ann_Lee"],
        {"names": ("Ann Lee", "张伟", " ")},
        ["[[NAME_1] met [NAME_1], ann lee, xAnn Lee and Joann Leeds. [NAME_2]说你好. Ann_Lee"],
    ),
    (  # of two names the longer, to its last letter or beyond
        ["Ann Lee met Ann, Kim L.2021, _kim_ and x_kim_."],
        {"names": ("Ann", "Ann Lee", "Kim L.", "_kim_")},
        ["[NAME_1] met [NAME_2], [NAME_3]2021, [NAME_4] and x_kim_."],
    ),
    (  # of two passwords, one of which begins like the other, both
        ["DB_PASSWORD=hunter2x OLD_PASSWORD=hunter2xy9", "It is hunter2xy9."],
        {},
        ["DB_PASSWORD=[PASSWORD_1] OLD_PASSWORD=[PASSWORD_2]", "It is [PASSWORD_2]."],
    ),
    (
        [f"{KEY} bob@acme.dev 93.184.216.34"],
        {"secrets": "keep", "personal": ("ip",)},
        [f"{KEY} bob@acme.dev [IP_1]"],
    ),
    ([f"{KEY} {PEOPLE}"], {"personal": ()}, [f"[HUGGINGFACE_TOKEN_1] {PEOPLE}"]),
    (  # a password that looks like a placeholder breaks none
        ["password=TOKEN_1", f"[HUGGINGFACE_TOKEN_1] TOKEN_1 {KEY}"],
        {},
        ["password=[PASSWORD_1]", "[HUGGINGFACE_TOKEN_1] [PASSWORD_1] [HUGGINGFACE_TOKEN_2]"],
    ),
]


@pytest.mark.parametrize(("contents", "settings", "expected"), REDACTED)
def test_redacted(contents: list[str], settings: dict[str, Any], expected: list[str]):
    found = Redactor(**settings).rule(chat(*contents), [])
    assert [text for _, text in texts(found)] == expected


def test_every_place_of_a_row_is_reached():
    arguments = {"to": "bob@acme.dev", "headers": [{"x": KEY}], "password": "tr0ub4dor"}
    call = {"id": "call_1", "type": "function", "function": {"name": "send", "arguments": arguments}}
    row = {
        **chat(f"Use {KEY}."),
        "chosen": [
            {"role": "assistant", "content": "", "reasoning_content": "bob@acme.dev?", "tool_calls": [call]}
        ],
        "rejected": [{"role": "assistant", "content": "The password tr0ub4dor works."}],
        "tools": [{"type": "function", "function": {"name": "send", "description": "as eve@acme.dev"}}],
        "segments": [{"text": "bob@acme.dev", "train": True}],
        "answer": KEY,
    }
    changes: list[Any] = []
    new = Redactor().rule(row, changes)
    assert new["messages"][0]["content"] == "Use [HUGGINGFACE_TOKEN_1]."
    assert new["chosen"][0]["reasoning_content"] == "[EMAIL_1]?"
    assert new["chosen"][0]["tool_calls"][0]["function"]["arguments"] == {
        "to": "[EMAIL_1]",
        "headers": [{"x": "[HUGGINGFACE_TOKEN_1]"}],
        "password": "[PASSWORD_1]",
    }
    assert new["rejected"][0]["content"].split()[2] == "[PASSWORD_1]"
    assert new["segments"][0]["text"] == "[EMAIL_1]"
    assert new["tools"][0]["function"]["description"] == "as [EMAIL_2]"
    assert new["answer"] == "[HUGGINGFACE_TOKEN_1]"
    assert {change.place for change in changes} >= {
        "messages 1",
        "chosen 1 tool_calls",
        "rejected 1",
        "tools",
        "answer",
    }


def test_reject_names_the_place_and_the_kind_alone():
    redactor = Redactor(secrets="reject")
    with pytest.raises(BadRow) as error:
        redactor.rule(chat("bob@acme.dev", f"Here: {KEY}"), [])
    assert error.value.code == "secret"
    assert {"messages", "2", "huggingface_token"} <= {*str(error.value).split()}
    assert KEY not in str(error.value)
    assert not redactor.counts
    call = {"type": "function", "function": {"name": "login", "arguments": {"password": "tr0ub4dor"}}}
    row = {**chat("Log in."), "chosen": [{"role": "assistant", "content": "", "tool_calls": [call]}]}
    with pytest.raises(BadRow, match=r"^tool_calls .* password$"):
        redactor.rule(row, [])
    assert redactor.rule(chat("bob@acme.dev"), [])["messages"][0]["content"] == "[EMAIL_1]"


def test_counts_are_occurrences_and_begin_again():
    redactor = Redactor()
    redactor.rule(chat("bob@acme.dev bob@acme.dev", KEY), [])
    redactor.rule(chat("93.184.216.34"), [])
    assert redactor.take_counts() == {"email": 2, "huggingface_token": 1, "ip": 1}
    assert not redactor.take_counts()


def test_a_change_tells_kinds_and_lengths_per_rule():
    changes: list[Any] = []
    Redactor().rule(chat("hello", f"bob@acme.dev {KEY} eve@acme.dev"), changes)
    assert [(change.rule, change.place, change.after) for change in changes] == [
        ("secrets", "messages 2", "[HUGGINGFACE_TOKEN_1]"),
        ("personal", "messages 2", "[EMAIL_1], [EMAIL_2]"),
    ]
    assert [re.findall(r"(\w+), (\d+)", change.before) for change in changes] == [
        [("huggingface_token", "35")],
        [("email", "12")] * 2,
    ]
    Redactor().rule(chat("password=tr0ub4dor"), changes)
    assert changes[-1].rule == "secrets"


def test_a_change_of_many_finds_stays_short():
    changes: list[Any] = []
    Redactor().rule(chat(" ".join(f"p{i}@acme.dev" for i in range(40))), changes)
    shown = re.findall(r"\[EMAIL_(\d+)\]", changes[0].after)
    assert shown == ["1", "2", "3", "4", "5"] and str(40 - len(shown)) in changes[0].after
    assert len(changes[0].before) <= 160
    Redactor().rule(chat(" ".join(f"p{i}@acme.dev" for i in range(5))), changes)
    assert changes[1].after.endswith("[EMAIL_5]")


def test_nothing_secret_is_said_anywhere():
    for _, secret, text in BENCHMARK["planted"](200, seed=11):
        changes: list[Any] = []
        redactor = Redactor(names=("Ann Lee",))
        redactor.rule(chat(text, PEOPLE, "Ann Lee"), changes)
        with pytest.raises(BadRow) as error:
            Redactor(secrets="reject").rule(chat(text), [])
        output = (
            f"{changes} {error.value} {error.value!r} {redactor!r} {redactor.counts} "
            f"{redactor.scrub(text)} {redactor.scrub(json.dumps(chat(text)))}"
        )
        assert not BENCHMARK["leaks"](secret, output)
        assert "Ann" not in output and not any(value in output for value in PEOPLE.split(", "))


PIECES = [text for _, _, text in BENCHMARK["planted"](180, seed=3)] + PEOPLE.split(", ")
PIECES += [
    "bob@acme.dev",
    "+12125550123",
    "password='tr0ub4dor'",
    "password=TOKEN_1",
    "[HUGGINGFACE_TOKEN_1]",
    "[EMAIL_2]",
    "[SECRET]",
    "Ann Lee",
    "EMAIL",
]
PIECES += ["://", "@", "\\n", "\\u0041", "\n", " ", ":", "=", "é", "张"]


@settings(max_examples=draws(300))
@given(
    st.lists(
        st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=6).map("".join),
        min_size=1,
        max_size=3,
    )
)
def test_a_redacted_row_has_nothing_left_to_redact(contents: list[str]):
    redactor = Redactor(names=("Ann Lee", "Email"))
    try:
        once = redactor.rule(chat(*contents), [])
    except BadRow as error:
        assert error.code == "unredactable"
        return
    changes: list[Any] = []
    assert redactor.rule(once, changes) is once
    assert not changes


def test_what_lays_bare_ever_more_is_refused():
    text = "+12125550123" * 11
    with pytest.raises(BadRow) as error:
        Redactor().rule(chat(text), [])
    assert error.value.code == "unredactable"
    assert "555" not in str(error.value)
    assert Redactor().scrub(text) == "[REDACTED]"


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("", ""),
        ('{"a": 1}', '{"a": 1}'),
        ('{"a": "bob@acme.dev\\n' + KEY + '"}', '{"a": "[EMAIL]\\n[HUGGINGFACE_TOKEN]"}'),
        ('{"card": 4111111111111111}', '{"card": [CARD]}'),
        ('{"password": "tr0ub4dor"', '{"password": "[PASSWORD]"'),  # no JSON
        (
            '{"a": "bob\\u0040acme.dev", "b": "caf\\u00e9"}',
            '{"a": "[EMAIL]", "b": "caf\\u00e9"}',
        ),  # what is left stays as written
        (
            '{"a": "redis:\\/\\/u:s3cr3tpw@cache\\/0", "b": 4111111111111111}',
            '{"a": "redis:\\/\\/u:[URL_PASSWORD]@cache\\/0", "b": [CARD]}',
        ),
        ('{"a": "caf\\u00e9"}', '{"a": "caf\\u00e9"}'),
        ("\ud800 bob@acme.dev", "? [EMAIL]"),
        ('"\\ud800 bob@acme.dev"', '"\\ud800 [EMAIL]"'),
        (
            "export DB_PASSWORD=hunter2x # I put hunter2x into the vault",
            "export DB_PASSWORD=[PASSWORD] # I put [PASSWORD] into the vault",
        ),
        ("[" * 100_000 + "\\u0041", "[" * 100_000 + "\\u0041"),
        ("[EMAIL] [NAME] [EMAIL_1]", "[EMAIL] [NAME] [EMAIL_1]"),
    ],
)
def test_scrub(text: str, scrubbed: str):
    redactor = Redactor(secrets="keep", names=("Email", "Name"))
    assert redactor.scrub(text) == scrubbed
    assert redactor.scrub(scrubbed) == scrubbed


EVERYONE = ("Zoë Müller", "𝒜𝒷 Lee")
HIDDEN = [  # value, what is left of it
    ("Zoë Müller", "[NAME]"),
    ("𝒜𝒷 Lee", "[NAME]"),
    ("john@corp.io", "[EMAIL]"),
    ("AKIA" + "IOSF7QNN7ABCDEFG", "[AWS_ACCESS_KEY]"),
    (KEY, "[HUGGINGFACE_TOKEN]"),
    ("93.184.216.34", "[IP]"),
    ("4111111111111111", "[CARD]"),
    ("-----BEGIN PRIVATE KEY-----\n" + "MIIEvQ/+" * 16 + "\n-----END PRIVATE KEY-----", "[PRIVATE_KEY]"),
]


def every_character(value: str, form: str) -> str:
    return "".join(
        form.format(int.from_bytes(unit)) for unit in re.findall(rb"(?s)..", value.encode("utf-16-be"))
    )


ESCAPED = {
    "json": lambda value: json.dumps(value)[1:-1],
    "json twice": lambda value: json.dumps(json.dumps(value))[3:-3],
    "json thrice": lambda value: json.dumps(json.dumps(json.dumps(value)))[7:-7],
    "php": lambda value: json.dumps(value)[1:-1].replace("/", "\\/"),
    "every character": lambda value: every_character(value, "\\u{:04x}"),
    "in capitals, twice": lambda value: every_character(value, "\\\\u{:04X}"),
    "its backslash too": lambda value: every_character(value, "\\u005cu{:04x}"),
    "url": lambda value: quote(value, safe=""),
    "url in lower case": lambda value: re.sub("%..", lambda match: match[0].lower(), quote(value, safe="")),
    "html": lambda value: re.sub(r"\W|[^ -~]", lambda match: f"&#{ord(match[0])};", value),
    "html in hexadecimal": lambda value: "".join(f"&#x{ord(character):x};" for character in value),
    "html by name": lambda value: (
        value.replace("ë", "&euml;").replace("ü", "&uuml;").replace("@", "&commat;")
    ),
}
LINES = [  # around one value
    '{{"a": "caf\\u00e9 {}", "b": 1}}',
    '{{"a": "{}", "b": "unclosed',
    '{{"a": "{}", "a": "{}"}}',
    '{{"a": "see {}, yes"}} {{"b": 2}}',
    "{{'a': '{}'}}",
    "{}",
]


@pytest.mark.parametrize("form", ESCAPED)
@pytest.mark.parametrize("line", LINES)
def test_scrub_knows_a_value_by_its_escaped_form_in_any_line(line: str, form: str):
    redactor = Redactor(names=EVERYONE)
    for value, mark in HIDDEN:
        escaped = ESCAPED[form](value)
        text = line.format(escaped, escaped)
        assert redactor.scrub(text) == line.format(mark, mark), (value, text)


def test_a_row_that_is_cut_is_scrubbed_as_a_whole_one():
    row = json.dumps(
        {"messages": [{"role": "user", "content": "Zoë Müller <john@corp.io> " * 4000}]}
    ).replace("@", "\\u0040")
    shown = Redactor(names=EVERYONE).scrub(row[: 1 << 16])[: -(1 << 13)]
    assert shown.count("[NAME]") == shown.count("[EMAIL]") > 500
    assert not re.search("Zo|ller|john|corp", shown)


@pytest.mark.parametrize(
    "begin", ["eyJhbGciOiJIUzI1NiJ9.eyJ", "ops_eyJ", "ATATT3", "-----BEGIN RSA PRIVATE KEY-----\n"]
)
@pytest.mark.parametrize("form", ["{}", "json", "every character"])
def test_a_long_secret_that_is_cut_leaves_nothing_before_the_last_8_kib(begin: str, form: str):
    secret = ESCAPED.get(form, str)(begin + KEY[3:] * 600)
    for cut in (len(secret), 1 << 16, 20_000, 12_345, 8_200, 5_000):
        shown = Redactor().scrub(f'{{"a": "{secret}'[:cut])
        assert re.fullmatch(r'\{"a": "\[[A-Z_]+\](?:\\(?:u[0-9a-f]{0,3})?)?', shown), (
            cut,
            shown[:200],
        )  # and perhaps half an escape


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        (
            "a -----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n{0}\n{0}",
            "a [PRIVATE_KEY]",
        ),  # headers of RFC 1421
        ('{{"k": "-----BEGIN OPENSSH PRIVATE KEY-----\\n{0}\\n{0}\\nab=", "b": 1', '{{"k": "[PRIVATE_KEY]'),
        ("-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{0}\n-----END PGP PRIVA", "[PRIVATE_KEY]"),
        ("-----BEGIN\\u0020PRIVATE KEY-----\\u000a{0}\\/{0}", "[PRIVATE_KEY]"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE", "[PRIVATE_KEY]"),
        ("{0}\n-----END RSA PRIVATE KEY-----", "{0}\n-----END RSA PRIVATE KEY-----"),
        (
            "-----END PRIVATE KEY----- -----BEGIN PRIVATE KEY-----\n",
            "-----END PRIVATE KEY----- [PRIVATE_KEY]",
        ),
        (
            "-----BEGIN PRIVATE KEY-----\n-- {0} -----BEGIN EC PRIVATE KEY-----\n{0}\n-----END EC PRIVATE "
            "KEY-----\nb",
            "[PRIVATE_KEY][PRIVATE_KEY]\nb",
        ),
        (
            "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY----- {0}",
            "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY----- {0}",
        ),
    ],
)
def test_scrub_hides_a_private_key_without_an_end_to_the_end(text: str, scrubbed: str):
    body = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC" * 2
    assert Redactor().scrub(text.format(body)) == scrubbed.format(body)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("", True),
        ("code-2024_v1.2.jsonl", True),
        ("日本語/数学", True),
        ("caf\\u00e9 100%25 R&amp;D", True),
        ("mail of john@corp.io", False),
        ("john%40corp.io.jsonl", False),
        ("Zo\\u00eb M\\u00fcller", False),
        ("93.184.216.34", True),  # of a kind that the settings leave
        (KEY, False),  # secrets are hidden whatever the settings
        ("-----BEGIN PRIVATE KEY-----", False),
        ("a\ud800", False),
    ],
)
def test_is_clean(text: str, clean: bool):
    redactor = Redactor(secrets="keep", personal=("email",), names=EVERYONE)
    assert redactor.is_clean(text) is clean
    assert not redactor.counts


@settings(max_examples=draws(300))
@given(
    st.lists(
        st.sampled_from([*PIECES, "\\", "u0040", "\\u005c", "%40", "&#64;", "\\ud83d", "\\ude00", "/"])
        | st.text(max_size=8),
        max_size=8,
    )
)
def test_a_scrubbed_text_is_clean(pieces: list[str]):
    redactor = Redactor(names=("Ann Lee", "Email"))
    assert redactor.is_clean(redactor.scrub("".join(pieces)))


@pytest.mark.parametrize(
    "unit",
    [
        "\\u0040",
        "\\",
        "u005c",
        "\\u005c",
        "\\ud83d\\",
        "%40",
        "&",
        "\\/",
        "a\\u0040b.io ",
        "-----BEGIN PRIVATE KEY-----",
        "a@b.",
        "a@",
        "1.1.1.1 ",
        "+1",
        "1-",
        "1 ",
        "AA00 ",
        "2a00:",
        "\\n",
        "[EMAIL_1]",
        '{"a":',
        "4111 1111 1111 1111 ",
        *("Mj", "://", "password=", "eyJ", "sk-", ":AA", "-us", 'secret: "', "glpat-a", "x" * 99),
    ],
)
def test_scrub_takes_no_more_than_linear_time(unit: str):
    start = time.process_time()
    Redactor(names=("Ann Lee",)).scrub(unit * ((1 << 18) // len(unit)))
    assert time.process_time() - start < 2  # 0.4 s at most; what is quadratic takes minutes


def test_no_secret_is_of_a_kind_of_personal_data():
    secrets = {each.kind for each in FORMATS}
    assert len(secrets) > 55
    assert secrets.isdisjoint({*RECIPE["personal"], "name"})
