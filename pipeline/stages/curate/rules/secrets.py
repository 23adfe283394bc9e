"""Detection of keys, tokens and passwords in a text: keys of a known format, and secrets by their context.

One pass of Aho-Corasick searches for the needles of all formats (`ghp_`, `-----BEGIN` …). A regular
expression is tried only at a needle, so a text without any costs microseconds and no text takes more than
linear time.
"""

import re
import string
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from typing import NamedTuple

from ahocorasick_rs import AhoCorasick, Implementation

from pipeline.stages.curate.rules.key_formats import KEY_FORMATS, Format, mixed

PLACEHOLDER = re.compile(r"\[[A-Z][A-Z0-9_]*\]")  # Placeholders of redaction are not part of a secret.
_SWITCH = re.compile(r"[A-Za-z](?=[0-9])|[0-9](?=[A-Za-z])")


def random_looking(value: str) -> bool:
    """Return True if the value looks like a generated key rather than a word, a path or a variable's name."""
    return mixed(value) and len(_SWITCH.findall(value)) > 2


_NO_PASSWORD = re.compile(  # a word, a placeholder of a template, a variable
    r"(?i:pass(?:w(?:or)?d)?\d*|change_?me\w*|test\d*|\w*secret|example\w*|[*x.]+|[<{$%].*)|(?:my|your)[a-z_-]*|(?:MY|YOUR)[A-Z_-]*|(?:My|Your)[A-Za-z]*"
)


def password_looking(value: str) -> bool:
    """Return True if the value looks like a real password, not a word, a template's placeholder, a variable,
    or a call.
    """
    various = re.search(r"[A-Za-z]", value) and re.search(r"[0-9!@#^&*+?]", value)
    return bool(various and len(set(value)) > 4 and url_password(value))


def url_password(value: str) -> bool:
    return len(value) > 2 and not _NO_PASSWORD.fullmatch(value) and not PLACEHOLDER.search(value)


def real_pem(value: str) -> bool:
    return bool(re.search(r"[A-Za-z0-9+/=]{30}", value))


def context(
    kind: str, needles: str, pattern: str, valid: Callable[[str], bool] = random_looking, rank: int = 1
) -> Format:
    """Return the format of a secret that can be recognized only by its context. The pattern begins at the
    needle.
    """
    return Format(
        kind,
        tuple(needles.split("|")),
        re.compile(pattern, re.ASCII),
        "name of a variable, header or field",
        (0,),
        valid,
        rank,
    )


class Span(NamedTuple):
    """Match text[start:end]. Of two that overlap the higher rank wins, then the longer one."""

    start: int
    end: int
    kind: str
    rank: int  # 2: a key of a known format · 1: a secret by its surroundings · 0: personal data


# Text after a telling name: the rest of the name, then `=`, `:` or `=>`; not `token_type=`, `password_file:`
# …
_ASSIGNED = (
    r"(?>(?:s\b|[A-Z0-9_-][\w-]{0,30}+)?)(?<!(?i:id))(?<!(?i:url|uri|dir|len|ids|arn))(?<!(?i:type|name|path|file|size))"
    r"(?<!(?i:field|count|limit|class|label|model))(?<!(?i:length))(?<!(?i:version))[\\\"'`\]]{0,4}+[ "
    r"\t]{0,4}+(?::=|=>|={1,3}+|:)[ \t]{0,4}+"
)
_PEM = (
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:[^-]*+(?>(?:-(?!----)[^-]*+)*)-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: "
    r"BLOCK)?-----|(?>(?:(?>(?:\s|\\[nr]){1,4})[A-Za-z0-9+/=]{20,100}+)*))"
)
_PEM_EDGE = re.compile(r"-----(?:(?P<begin>BEGIN)|END) [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")

FORMATS = (
    *KEY_FORMATS,
    Format("private_key", ("-----BEGIN ",), re.compile(_PEM), "RFC 7468", (0,), real_pem),
    Format(
        "url_password",
        ("://",),
        re.compile(r"://[^\s/?#@:\"'`<>]{0,64}+:(?P<value>[^\s/?#@:\"'`<>]{1,128}+)@"),
        "RFC 3986",
        (0,),
        url_password,
    ),
    context(
        "aws_secret_key",
        "secret|Secret|SECRET",
        r"(?i:secret[_ -]?(?:access)?[_ -]?key)[\\\"'`\]]{0,4}\s{0,4}[:=]>?\s{0,4}[\\\"'`]{0,2}"
        r"(?P<value>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])",
        mixed,
        rank=2,
    ),
    context(
        "bearer_token",
        "uthorization|UTHORIZATION",
        r"(?i:uthorization)[\\\"'`]{0,2}\s{0,3}[:=]\s{0,3}[\\\"'`]{0,2}(?i:bearer|basic|token|key)"
        r"\s{1,3}(?P<value>[\w.~+/=-]{16,}+)",
        mixed,
    ),
    context(
        "npm_token",
        ":_authToken",
        r":_authToken\s{0,2}=\s{0,2}[\"']?(?P<value>[A-Za-z0-9-]{36}+)",
        mixed,
        rank=2,
    ),
    context(
        "password",
        "passw|Passw|PASS|passphrase|Passphrase|_pass|pwd|Pwd|PWD",
        r"(?i:_?pass(?:w(?:or)?d|phrase)?|pwd)"
        + _ASSIGNED
        + r"\\?(?:(?P<q>[\"'`])(?P<quoted>[^\s\"'`\\]{6,128}+)\\?(?P=q)"
        r"|(?P<bare>[^\s\"'`\\<>(){}\[\],;&$|]{6,64}+)(?=[\s,;&\"'`\\|]|$))",
        password_looking,
    ),
    context(
        "secret",
        "secret|Secret|SECRET|token|Token|TOKEN|api_key|apikey|apiKey|ApiKey|API_KEY|APIKEY|api-key|Api-Key|API-Key|api key|API key|"  # noqa: E501
        "access_key|ACCESS_KEY|accessKey|AccessKey|auth_key|AUTH_KEY|authKey|credential|CREDENTIAL",
        r"(?i:secret|token|api[_ -]?key|access_?key|auth_?key|credential)"
        + _ASSIGNED
        + r"[\\\"'`]{0,2}(?P<value>[A-Za-z0-9+/_.~=-]{16,512}+)(?![(\[{$@])",
    ),
)

_WORDS = tuple(dict.fromkeys(needle for each in FORMATS for needle in each.needles))
_OWNERS = tuple(
    tuple(number for number, each in enumerate(FORMATS) if needle in each.needles) for needle in _WORDS
)
_NEEDLES = AhoCorasick(_WORDS, implementation=Implementation.DFA)
_LONGEST = max(map(len, _WORDS))
_IN_WORD = frozenset(string.ascii_letters + string.digits + "_")
_BEFORE = _IN_WORD | {"["}  # The bracket may open a placeholder.
# In JSON and code the `n` of `\nghp_…` is not a letter before the key.
_ESCAPE = re.compile(r"\\(?:[bfnrt]|u[0-9a-fA-F]{4})")
BLOCK = 1 << 18  # characters searched for needles at a time, which bounds the list of hits


def find_secrets(text: str) -> Iterator[Span]:
    """Yield the secrets in a text (without lone surrogates), in linear time. They may overlap."""
    searched = [0] * len(FORMATS)  # end of the last match of each format
    for base in range(0, len(text) or 1, BLOCK):
        block = text if len(text) <= BLOCK else text[base : base + BLOCK + _LONGEST - 1]
        for index, start, _ in _NEEDLES.find_matches_as_indexes(block, overlapping=True):
            at = base + start
            for number in _OWNERS[index]:
                if at >= searched[number]:
                    each = FORMATS[number]
                    for back in each.before:
                        match = each.pattern.match(text, at - back) if at >= back else None
                        if match:
                            searched[number] = match.end()
                            group = match.lastgroup or 0
                            if each.valid(match.group(group)):
                                yield Span(*match.span(group), each.kind, each.rank)
                            break


def find_private_keys(text: str) -> Iterator[Span]:
    """Yield the PEM private keys in a text that may be cut. A key without an end extends to the next one or
    to the end of the text.
    """
    edges = list(_PEM_EDGE.finditer(text)) if "-----BEGIN " in text else []
    for edge, following in zip_longest(edges, edges[1:]):
        if edge["begin"]:
            closed = following is not None and not following["begin"]
            if following is None:
                end = len(text)
            elif closed:
                end = following.end()
            else:
                end = following.start()
            if not closed or real_pem(text[edge.start() : end]):
                yield Span(edge.start(), end, "private_key", 2)


def blanked(text: str) -> str:
    """Return the text with blanks for escapes, as long as before."""
    return _ESCAPE.sub(lambda match: " " * len(match[0]), text) if "\\" in text else text


def repeats_of(content: Iterable[str]) -> Callable[[str], list[Span]]:
    """Return a function that finds, as whole words, those secrets that can't be words. They are secrets
    wherever they are repeated.
    """
    secrets = {
        text[span.start : span.end]: span.kind for text in content for span in find_secrets(blanked(text))
    }
    kinds = {
        value: kind
        for value, kind in secrets.items()
        if len(value) > 5 and not value.isalpha() and not value.isdigit()
    }
    values = AhoCorasick(kinds) if kinds else None

    def find(text: str) -> list[Span]:
        hits = values.find_matches_as_indexes(text, overlapping=True) if values else []
        return [
            Span(start, end, kinds[text[start:end]], 1)
            for _, start, end in hits
            if text[start - 1 : start] not in _BEFORE and text[end : end + 1] not in _IN_WORD
        ]

    return find
