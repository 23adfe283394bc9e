"""Detection of personal data: e-mail addresses, phone numbers, IP addresses, IBANs, payment card numbers.

A regular expression proposes, a library decides: `phonenumbers`, `ipaddress`, and the checksums of `stdnum`.
Values that identify no person stay: private, loopback, link-local and documentation addresses (RFC 6890),
public resolvers, mail to a reserved domain (RFC 2606), `user@host` of ssh, scp and git.
"""

import ipaddress
import re
from collections.abc import Callable, Iterator
from functools import lru_cache, partial

import phonenumbers
from stdnum import iban, luhn, numdb

from pipeline.stages.curate.rules.secrets import Span

KINDS = ("email", "phone", "ip", "iban", "card")
# Phone numbers checked in one text, 50 µs each. Any later match of the pattern counts as one.
ENOUGH = 10_000

_ALNUM = "A-Za-z0-9À-ɏ"  # \w is not used, because Chinese has no space before an address.
_EMAIL = re.compile(
    rf"(?<![{_ALNUM}.%+_-])[{_ALNUM}.%+_-]{{1,64}}@((?:[{_ALNUM}](?:[{_ALNUM}-]{{0,61}}[{_ALNUM}])?\.){{1,8}}[A-Za-zÀ-ɏ]{{2,24}})(?![{_ALNUM}_])"
)
_RESERVED = re.compile(
    r"(?:^|\.)(?:example\.(?:com|net|org)|example|test|invalid|localhost)$|^\dx\.(?:png|jpe?g|gif|webp|svg)$|^\d+\.\d+\.",
    re.I,
)  # icon@2x.png
_LOGIN = re.compile(r"\b(?:ssh|scp|sftp|rsync|ssh-copy-id|mosh)\b[^\n|;]*$")
# These begin with a character that `re` can search for, and look back from there. That is twice as fast as a
# lookbehind that comes first.
_INTERNATIONAL = re.compile(r"\+(?<![\w+.-]\+)[1-9](?:[ \u00a0().\-/]{0,3}\d){6,14}(?![.,]?\d)", re.A)
_AMERICAN = re.compile(r"(?<![\w+.$-])(?:1[ .-])?(?:\(\d{3}\) ?|\d{3}[.-])\d{3}[.-]\d{4}(?![\w-]|\.\d)", re.A)
# A number without its country, after a word of the same sentence that says what it is.
_LABELLED = re.compile(
    r"(?:\b(?:tel|telefon\w*|telephone|phone|fon|mobil\w*|handy\w*|fax|call|ring|dial|text me|reach\w*|sms"
    r"|whatsapp|(?:an)?ruf\w*|r.ckruf\w*|zur.ckrufen|erreich\w*|my (?:\w+ )?number|meine (?:\w+ )?nummer"
    r"|t.l|mob|mon num.ro|mi n.mero|joindre|rappele[rz]|contacte[rz]|fixe|port|ligne directe"
    r"|mi(?:tt|n) (?:\w+ )?n(?:umm?e|umme)r|numret|n.s p|n. (?:mig|oss) p|ringa?|ring(?:e|er)|mobilnumm?er"
    r"|t.l.phone|portable|appel\w*|tel.fono|m.vil|ll.m\w*|cellulare|chiam\w*|bel\w{0,3}|bereik\w*)\b"
    r"(?P<between>[^\d\n+]{0,60}?)|\b(?:unter|on|at) )"
    # no date; a number in groups of two begins like one and goes on
    r"(?!\d\d?(?P<mark>[./-])\d\d?(?P=mark)\d\d(?:\d\d)?(?!\d|(?P=mark)\d))"
    r"(?P<number>\(?0(?:[ \u00a0().\-/]{0,3}\d){6,14})(?![.,]?\d)",
    re.I | re.A,
)
# Words between the two by which the number is another one.
_OF_OTHER_NUMBERS = re.compile(
    r"order|invoice|bestell|rechnung|kunden|vertrag|artikel|ticket|account|konto|z.hler|serial|serien|tracking"
    r"|sendung|vorgang|customer|contract|reference|commande|facture|pedido",
    re.I,
)
# A line that has nothing but a number, as in a signature.
_OWN_LINE = re.compile(
    r"^[ \t]*(?:[TMF][.:]?[ \t]+)?(?P<number>\(?0(?:[ \u00a0().\-/]{0,3}\d){8,12})[ \t]*$", re.A | re.M
)
_DOUBLE_ZERO = re.compile(
    r"(?<![\w+.,/-])00(?P<number>[1-9]\d(?:[ \u00a0().\-/]{0,3}\d){6,12})(?![.,]?\d)", re.A
)
# Countries whose numbers begin with 0 at home.
_AT_HOME = ("DE", "AT", "CH", "GB", "FR", "NL", "BE", "SE", "IE", "AU", "IN")
_LAST_GROUP = re.compile(r"[ \u00a0()/]+\d[\d.\-]*$")
_IPV4 = re.compile(r"\d(?<![\w.]\d)\d{0,2}(?:\.\d{1,3}){3}(?!\w|\.\d|-[A-Za-z])", re.A)
# 2000::/3: global unicast.
_IPV6 = re.compile(r"[23][0-9A-Fa-f]{3}(?<![\w:.]....)(?::[0-9A-Fa-f]{0,4}){1,7}(?!\w)", re.A)
# Text in front of other dotted numbers.
_NO_ADDRESS = re.compile(r"(?:[A-Za-z][/-]|[=<>~!]=|\bv|version|ver\.?|release|section)[\s:=]*$", re.I)
_X500 = ("2.5.4.", "2.5.29.")  # object identifiers of certificates
_RESOLVERS = (
    "8.8.8.8",
    "8.8.4.4",
    "1.1.1.1",
    "1.0.0.1",
    "9.9.9.9",
    "208.67.222.222",
    "208.67.220.220",
    "2001:4860:4860::8888",
    "2001:4860:4860::8844",
    "2606:4700:4700::1111",
    "2606:4700:4700::1001",
)
_IBAN = re.compile(r"[A-Z]{2}\d{2}(?<![A-Za-z0-9]....)(?:[ -]?[A-Z0-9]){11,30}", re.A)
_CARD = re.compile(
    r"\d{4}(?<![\w.,/-]\d{4})(?:\d{10,15}|([ -])\d{4}\1\d{4}\1\d{4}(?:\1\d{3})?|([ "
    r"-])\d{6}\2\d{4,5})(?![\w-]|[.,]\d)",
    re.A,
)
# First digits of each issuer (ISO/IEC 7812), and the lengths of their numbers: Visa, Mastercard, Amex,
# Diners, Discover, JCB, UnionPay.
_ISSUED = re.compile(
    r"4(?:\d{15}|\d{18})|(?:5[1-5]|2[2-7])\d{14}|3[47]\d{13}|3(?:0[0-5]|[68]\d)\d{11}|(?:6011|64[4-9]\d|65\d\d|35\d\d|62\d\d)\d{12,15}"
)

# Most texts contain no such number. These patterns find that out in a microsecond: `re` searches for their
# first character as fast as memchr.
_MAYBE_AMERICAN = tuple(re.compile(rf"{mark}\d{{4}}(?<=\d{{3}}{mark}\d{{4}})", re.A) for mark in ("-", r"\."))
_MAYBE_LABELLED = re.compile(r"(?:^|[.: \u00a0\n])\(?0\d")
_MAYBE_IPV4 = re.compile(r"\.\d{1,3}\.\d{1,3}\.\d", re.A)
_MAYBE_IPV6 = re.compile(r":[0-9A-Fa-f]{0,4}:")
_DIGITS_TO_0 = bytes(ord("0") if byte in b"0123456789" else byte for byte in range(256))


def find_personal(text: str, kinds: tuple[str, ...] = KINDS) -> Iterator[Span]:
    """Yield the personal data of these kinds in a text (without lone surrogates). They may overlap."""
    for kind, possible, find in FINDERS:
        if kind in kinds and possible(text):
            yield from find(text)


def identity(kind: str, value: str) -> str:
    """Return one spelling for all spellings of the same value, so that they get the same placeholder."""
    match kind:
        case "email" | "name":
            return value.casefold()
        case "phone":
            digits = re.sub(r"\D", "", value)
            return digits if value.startswith("+") or len(digits) > 10 else f"1{digits}"
        case "iban" | "card":
            return re.sub(r"[ -]", "", value).upper()
        case "ip":
            return str(ipaddress.ip_address(value))
    return value


def _emails(text: str) -> Iterator[Span]:
    shell = any(word in text for word in ("ssh", "scp", "sftp", "rsync", "mosh"))
    for match in _EMAIL.finditer(text):
        start, end = match.span()
        path = text[end : end + 1] == ":" and (
            text[end + 1 : end + 2] in tuple("/~.\"'") or match[0].startswith("git@")
        )
        if not (
            path or _RESERVED.search(match[1]) or (shell and _LOGIN.search(text[max(0, start - 80) : start]))
        ):
            yield Span(start, end, "email", 0)


def _phones(text: str, pattern: re.Pattern[str], region: str | None) -> Iterator[Span]:
    checks = 0
    for match in pattern.finditer(text):
        value = match[0]
        while value:
            checks += 1
            if checks > ENOUGH or _is_phone(value, region):
                yield Span(match.start(), match.start() + len(value), "phone", 0)
                break
            shorter = _LAST_GROUP.sub("", value)  # The match may have continued into the next number.
            value = shorter if shorter != value and region is None else ""


def _labelled_phones(text: str) -> Iterator[Span]:
    for match in (*_LABELLED.finditer(text), *_OWN_LINE.finditer(text)):
        between = match.groupdict().get("between") or ""
        value = "" if _OF_OTHER_NUMBERS.search(between) else match["number"]
        while value:
            if any(_is_phone(value, region) for region in _AT_HOME):
                start = match.start("number")
                yield Span(start, start + len(value), "phone", 0)
                break
            shorter = _LAST_GROUP.sub("", value)  # The match may have continued into the next number.
            value = shorter if shorter != value else ""


def _phones_after_double_zero(text: str) -> Iterator[Span]:
    for match in _DOUBLE_ZERO.finditer(text):
        if _is_phone(f"+{match['number']}", None):
            yield Span(*match.span(), "phone", 0)


@lru_cache(4096)
def _is_phone(value: str, region: str | None) -> bool:
    try:
        return phonenumbers.is_valid_number(phonenumbers.parse(value, region))
    except phonenumbers.NumberParseException:
        return False


def _addresses(text: str, pattern: re.Pattern[str]) -> Iterator[Span]:
    for match in pattern.finditer(text):
        start = match.start()
        value = match[0] if match[0].endswith("::") else match[0].removesuffix(":")
        if _is_public(value) and not _NO_ADDRESS.search(text, max(0, start - 12), start):
            yield Span(start, start + len(value), "ip", 0)


@lru_cache(4096)
def _is_public(value: str) -> bool:
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        return False
    return (
        address.is_global
        and not address.is_multicast
        and value.lower() not in _RESOLVERS
        and not value.startswith(_X500)
    )


def _ibans(text: str) -> Iterator[Span]:
    for match in _IBAN.finditer(text):
        length = _iban_length(match[0][:2])
        end = match.start()
        for _ in range(length):
            end += 1 + (text[end : end + 1] in (" ", "-"))
        if (
            length
            and end <= match.end()
            and not text[end : end + 1].isalnum()
            and iban.is_valid(text[match.start() : end])
        ):
            yield Span(match.start(), end, "iban", 0)


@lru_cache
def _iban_length(country: str) -> int:
    """Return the length of an IBAN of this country in characters, from stdnum's copy of SWIFT's registry; 0
    if the country has none.
    """
    pattern = numdb.get("iban").info(country)[0][1].get("bban", "")
    return 4 + sum(map(int, re.findall(r"(\d+)!", pattern))) if pattern else 0


def _cards(text: str) -> Iterator[Span]:
    for match in _CARD.finditer(text):
        digits = re.sub(r"[ -]", "", match[0])
        if _ISSUED.fullmatch(digits) and luhn.is_valid(digits):
            yield Span(*match.span(), "card", 0)


def _many_digits(text: str) -> bool:
    """Return True if ten digits have only blanks and hyphens between them: no IBAN and no card has fewer."""
    return b"0000000000" in text.encode().translate(_DIGITS_TO_0, b" -")


# (kind, check that a text may contain it, which takes a microsecond, search for its places)
FINDERS: tuple[tuple[str, Callable[[str], object], Callable[[str], Iterator[Span]]], ...] = (
    ("email", lambda text: "@" in text, _emails),
    ("phone", lambda text: "+" in text, partial(_phones, pattern=_INTERNATIONAL, region=None)),
    (
        "phone",
        lambda text: any(each.search(text) for each in _MAYBE_AMERICAN),
        partial(_phones, pattern=_AMERICAN, region="US"),
    ),
    ("phone", _MAYBE_LABELLED.search, _labelled_phones),
    ("phone", lambda text: "00" in text, _phones_after_double_zero),
    ("ip", _MAYBE_IPV4.search, partial(_addresses, pattern=_IPV4)),
    ("ip", _MAYBE_IPV6.search, partial(_addresses, pattern=_IPV6)),
    ("iban", _many_digits, _ibans),
    ("card", _many_digits, _cards),
)
