"""Personal data: what is found, what is left alone, and which spellings are one value."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from curating import RECIPE, chat, of_rows

from pipeline.stages.curate.rules.personal import find_personal

KINDS = RECIPE["personal"]


def redacted(root: Path, texts: Sequence[str], kinds: Sequence[str] = KINDS) -> list[str]:
    """Return what the stage leaves of texts, each in a row of its own."""
    project = of_rows(root, [chat(text) for text in texts])
    project.run(drop_duplicates="none", secrets="keep", personal=list(kinds))
    return [row["messages"][0]["content"] for row in project.rows()]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("email", "bob.smith+lists@mail.acme.co.uk"),
        ("email", "info@müller-söhne.de"),
        ("email", "12345@163.com"),
        ("phone", "+49 30 901820"),
        ("phone", "+1 (212) 555-0123"),
        ("phone", "+8613800138000"),
        ("phone", "+33 1 23 45 67 89"),
        ("phone", "(212) 555-0123"),
        ("phone", "212-555-0123"),
        ("phone", "1-800-356-9377"),
        ("phone", "212.555.0123"),
        ("ip", "93.184.216.34"),
        ("ip", "2a00:1450:4001:80b::200e"),
        ("ip", "2606:2800:220:1:248:1893:25c8:1946"),
        ("iban", "DE89 3704 0044 0532 0130 00"),
        ("iban", "GB29NWBK60161331926819"),
        ("iban", "NL91-ABNA-0417-1643-00"),
        ("iban", "NO9386011117947"),
        ("card", "4111 1111 1111 1111"),
        ("card", "5500-0000-0000-0004"),
        ("card", "378282246310005"),
        ("card", "3782 822463 10005"),
        ("card", "6011111111111117"),
    ],
)
def test_found_in_any_surroundings(tmp_path: Path, kind: str, value: str):
    forms = ["{}", "({})", '{{"a": "{}"}}', "It is {}.", "它是{}。", "{}: x", "a\n{}\nb", "x={}, y"]
    texts = [form.format(value) for form in forms]
    assert redacted(tmp_path / "all", texts) == [form.format(f"[{kind.upper()}_1]") for form in forms]
    others = [other for other in KINDS if other not in (kind, "phone")]
    assert redacted(tmp_path / "others", texts, others) == texts


@pytest.mark.parametrize(
    "text",
    [
        "Tel. {}0171 2345678{}",
        "Tel.: {}040 3001020{} oder per Mail",
        "Telefon {}030/2093 1234{}, danke",
        "Phone: {}0049 171 2345678{}",
        "please call {}020 7946 0958{}.",
        "unter der Telefonnummer {}089 12345678{}",
    ],
)
def test_a_number_without_its_country_is_found_after_a_word_for_it(tmp_path: Path, text: str) -> None:
    assert redacted(tmp_path, [text.format("", "")]) == [re.sub(r"\{\}.*\{\}", "[PHONE_1]", text)]


PLAIN = [
    "Auftrag 0171 2345678, Ticket: 00123456789, Fax 05, Tel. 05.03.2027",
    "bob@example.com, eve@mail.example.org, a@b.test, root@localhost, x@host.invalid",  # RFC 2606
    "git clone git@github.com:acme/x.git",
    "scp a.txt bob@acme.dev:/tmp/; rsync -a x 'bob@acme.dev:~/y'",
    "backup to bob@acme.dev:/tmp and eve@acme.dev:~/y",
    *(f"{tool} -p 22 bob@acme.dev uptime" for tool in ("ssh", "scp", "sftp", "rsync", "mosh")),
    "@dataclass a @ b, npm i left-pad@1.3.0, icon@2x.png, pi@192.168.1.PI",
    "10.0.0.1 192.168.1.20 172.16.3.4 127.0.0.1 0.0.0.0 255.255.255.0 "
    "169.254.1.1",  # private, loopback, link-local
    "192.0.2.7 198.51.100.3 203.0.113.9 2001:db8::1 ::1 fe80::1 fd00::1",  # documentation, local
    "ping 8.8.8.8 or 1.1.1.1",
    "version 9.1.2.3, v93.184.216.34, Chrome/93.184.216.34, pip install x==93.184.216.34, "
    "foo-93.184.216.34.jar",
    "OID 1.3.6.1.4.1.311 and 2.5.29.19, 256.1.2.3, 01.02.03.04.05",
    "12:34:56, 00:1a:2b:3c:4d:5e, std::vector<int>, a::b, 2024::x",
    "call 555-0123, 2024-01-15, 2024-01-15T12:00:00, 123-45-6789, 123-456-7890",
    "1600000000000 and 1234567812345678, 4111111111111112, 0.4111111111111111",
    "48+24=72, 12+34567=34579, +12 points, +1 234, a+441234567890, +999 123 456 789",
    "DE89 3704 0044 0532 0130 01, ZZ89370400440532013000, GB29, DE89370400440532013000X, no",
    "3.14159265358979, 6.02214076e23, 100,000,000,000, $1,234,567.89",
]


def test_left_alone(tmp_path: Path):
    assert redacted(tmp_path, PLAIN) == PLAIN


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("+44 20 7946 0018 2024 12", ["+44 20 7946 0018"]),
        ("+33 1 23 45 67 89/+33 6 12 34 56 78", ["+33 1 23 45 67 89", "+33 6 12 34 56 78"]),
        ("+44 20 7946 0018 12 men", ["+44 20 7946 0018"]),
        ("DE89 3704 0044 0532 0130 00 USD 500", ["DE89 3704 0044 0532 0130 00"]),
        ("2a00:1450:4001:: is a network", ["2a00:1450:4001::"]),
        ("ssh to it; mail bob@acme.dev", ["bob@acme.dev"]),
    ],
)
def test_a_number_that_runs_into_the_next(tmp_path: Path, text: str, values: list[str]):
    (found,) = redacted(tmp_path, [text])
    for value in values:
        text = text.replace(value, "#")
    assert re.sub(r"\[[A-Z]+_\d\]", "#", found) == text


def test_the_same_digits_of_two_countries(tmp_path: Path):
    assert redacted(tmp_path, ["475-512-3456, +47 55 12 34 56"]) == ["[PHONE_1], [PHONE_2]"]


def test_one_value_in_many_spellings(tmp_path: Path):
    """Also one that the text has in another order; another value has another number."""
    spellings = {
        "EMAIL": ["Bob@Acme.dev", "bob@acme.dev", "eve@acme.dev"],
        "PHONE": ["+1 (212) 555-0123", "212-555-0123", "1-212-555-0123", "+45 32 12 34 56"],
        "IBAN": ["DE89 3704 0044 0532 0130 00", "DE89370400440532013000", "GB29NWBK60161331926819"],
        "CARD": ["4111 1111 1111 1111", "4111-1111-1111-1111", "378282246310005"],
        "IP": ["2A00:1450:0:0::200e", "2a00:1450::200e", "93.184.216.34"],
    }
    assert redacted(tmp_path, ["\n".join(values) for values in spellings.values()]) == [
        "\n".join([f"[{kind}_1]"] * (len(values) - 1) + [f"[{kind}_2]"]) for kind, values in spellings.items()
    ]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("Meine Handynummer lautet 0178 3835967.", "0178 3835967"),
        ("Rückruf bitte auf 041/597258", "041/597258"),
        ("So erreicht ihr mich unter 0170-98567557!", "0170-98567557"),
        ("Please ring 020 7488 2008 in the morning.", "020 7488 2008"),
        ("My mobile number is 07089 686488", "07089 686488"),
        ("Bitte rufen Sie mich an: 0171 2345678", "0171 2345678"),
        ("The workshop answers questions on 020 7231 1547.", "020 7231 1547"),
        ("Sie wohnt in Hamburg, 0049 40 27610960", "0049 40 27610960"),
        ("Ruf an, die Kundennummer ist 0171 2345678", None),
        ("Vous pouvez me joindre au 06.38.28.81.42.", "06.38.28.81.42"),
        ("Fixe : 01-84-75-12-30", "01-84-75-12-30"),
        ("Rappelez-moi avant le 06.05.2024 au guichet", None),
        ("Call us by 01.02.2027", None),
        ("It was built on 01 02 2027", None),
    ],
)
def test_a_number_without_its_country_is_known_by_its_sentence(text: str, number: str | None) -> None:
    found = [text[span.start : span.end] for span in find_personal(text, ("phone",))]
    assert found == ([number] if number else [])
