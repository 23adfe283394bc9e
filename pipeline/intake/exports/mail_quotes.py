"""Mails that are quoted in another: where they begin, and what introduces them in several languages."""

import re

WROTE = (
    r"(?:wrote|writes|schrieb|schreibt|a écrit|escribió|ha scritto|skrev|schreef|escreveu|napisał(?:a|\(a\))?"
    r"|napsal(?:a|\(a\))?|írta|kirjoitti)"
)
# A line that introduces a quotation: "On Monday, Kim wrote:", "Am 1. Mai schrieb Kim:".
INTRODUCES = re.compile(rf"{WROTE}\b.*:\s*$", re.IGNORECASE)
BEGINNINGS = ("On ", "Am ", "Le ", "El ", "Il ", "Den ", "Op ", "Em ", "A ", "W dniu ", "Dnia ", "Dne ")
BEGINNING = re.compile(f"^(?:{'|'.join(BEGINNINGS)})", re.MULTILINE)
INTRODUCTION_LINES = 3  # A long introduction is broken into lines.
INTRODUCTION = 300  # characters
# A time, a date or an address, with which no prose introduces a quotation.
DATED = re.compile(
    r"\d:\d\d|\d[./-]\d{1,2}[./-]\d\d|<\S{1,100}@\S{1,100}>|<\[EMAIL"
    r"|\b\d{1,2}\.? [^\W\d]{3,12}\.? \d{4}\b|\b[^\W\d]{3,12}\.? \d{1,2},? \d{4}\b"
)
# The head of a mail below an answer, as Outlook writes it, with a line above it or not.
SENDER = r"(?:From|Von|De|Da|Van|Od|Från|Fra)"
SENT = r"(?:Sent|Gesendet|Envoyé|Enviad[oa]|Inviato|Verzonden|Wysłano|Data|Skickat|Sendt)"
ORIGINAL = (
    r"(?:Original Message|Ursprüngliche Nachricht|Message d'origine|Mensaje original|Mensagem original"
    r"|Messaggio originale|Oorspronkelijk bericht|Wiadomość oryginalna|Oryginalna wiadomość"
    r"|Ursprungligt meddelande|Originalmeddelande|Opprinnelig melding|Oprindelig meddelelse)"
)
# The line above a mail that somebody passes on, which is what the mail is about.
PASSED_ON = re.compile(
    r"^\W{0,12}(?:(?:begin )?forwarded (?:message|mail)"
    r"|(?:anfang der )?weitergeleiteten? (?:nachricht|e-?mail)"
    r"|(?:début du )?message (?:transféré|réexpédié)|mensaje reenviado|mensagem encaminhada"
    r"|messaggio inoltrato|doorgestuurd bericht|vidarebefordrat (?:meddelande|brev)"
    r"|videresend?t (?:besked|meddelelse|melding)|wiadomość przekazana)\b",
    re.MULTILINE | re.IGNORECASE,
)
# Other programs' heads, in any language: a line with an address in angle brackets above one with a date or a
# time. Forms that customers fill in have no such address.
HEAD_LINE = r"\W{0,2}[^\W\d]\w{1,14}\s?:"
ADDRESSED = (
    rf"{HEAD_LINE}.*<(?:[^<>\s]+@|\[EMAIL)[^<>]*>.*\n(?:.+\n)?{HEAD_LINE}.*(?:\d:\d\d|\d[./-]\d|\b\d{{4}}\b)"
)
FORWARDED = re.compile(
    rf"^(-{{2,}} ?{ORIGINAL} ?-{{2,}}"
    rf"|_{{20,}}\s*\n{SENDER}\s?:.*"
    rf"|\W{{0,2}}{SENDER}\s?:.+\n(?:.+\n)?\W{{0,2}}{SENT}\s?:.*"
    rf"|{ADDRESSED}.*)$",
    re.MULTILINE | re.IGNORECASE,
)
# What may be a quoted mail in a language or form that is not known: three such lines, of which one has a
# time; words between hyphens; lines with `>`.
MAY_BE_QUOTED = re.compile(
    rf"^(?=(?:{HEAD_LINE}.*\n){{2}}{HEAD_LINE})(?:.*\n){{0,2}}.*\d:\d\d"
    r"|^-{4,} ?[^\W\d][^\n-]{3,40}-{4,}$"
    r"|^>(?!>> ).*\n>",
    re.MULTILINE,
)
UNDERLINE = re.compile(r"\n\s*_{5,}\s*\Z")  # Outlook's, above the head of a mail
# The beginning of a quotation or of a forwarded mail.
QUOTATION = re.compile(
    rf"^(?:>|-{{3,}} ?\S.{{0,60}}-{{3,}}|{FORWARDED.pattern[1:-1]}|(?:{'|'.join(BEGINNINGS)})[^\n]{{0,200}}"
    rf"{WROTE}\b[^\n]{{0,100}}:\s*$)",
    re.MULTILINE | re.IGNORECASE,
)


def keeps_quotation(text: str) -> bool:
    """Return True if a text may hold a quoted mail still, in any language."""
    if any(kind.search(text) for kind in (FORWARDED, PASSED_ON, MAY_BE_QUOTED)) or introduction_of(text):
        return True
    return any(line.rstrip().endswith(":") and DATED.search(line) for line in text.splitlines())


def before_quoted(text: str) -> str:
    """Return the words before the first head or dated introduction of a mail; "" if there is none."""
    introduction = introduction_of(text)
    head = quoted_from(text, introduction)
    places = [] if head is None else [head]
    if introduction:
        places.append(introduction[0])
    return text[: min(places, default=0)].rstrip()


def quoted_from(text: str, introduction: tuple[int, int] | None) -> int | None:
    """Return where a mail begins that is quoted without `>`; None if there is none. `introduction` is what
    `introduction_of` returns.
    """
    forwarded = FORWARDED.search(text)
    places = [forwarded.start()] if forwarded else []
    if introduction and not text[introduction[1] :].lstrip().startswith(">"):
        places.append(introduction[0])
    return min(places, default=None)


def introduction_of(text: str) -> tuple[int, int] | None:
    """Return where the first dated introduction of a quotation begins and ends; None if there is none."""
    for match in BEGINNING.finditer(text):
        lines = text[match.start() : match.start() + INTRODUCTION].split("\n")
        for count in range(1, INTRODUCTION_LINES + 1):
            words = " ".join(lines[:count])  # as long as with their line breaks
            if INTRODUCES.search(words) and DATED.search(words):
                return match.start(), match.start() + len(words)
    return None


def last_quotation(lines: list[str]) -> int:
    """Return the number of the first line of the quotation that ends a text; if none does, that of all lines.

    Prompts of Python (`>>> `) are no quotation, and one below a colon ("The rule says:") is the text's own.
    """
    first = len(lines)
    for number in range(len(lines) - 1, -1, -1):
        line = lines[number]
        if line.startswith(">") and not line.startswith(">>> "):
            first = number
        elif line.strip():
            is_announced = line.rstrip().endswith(":") and not _introduces(line)
            return len(lines) if is_announced else first
    return first


def drop_introduction(kept: list[str]) -> None:
    """Remove the lines that introduce the quotation that follows, if there are any."""
    while kept and not kept[-1].strip():
        kept.pop()
    for count in range(1, INTRODUCTION_LINES + 1):
        lines = kept[-count:]
        if not lines or not all(map(str.strip, lines)):
            break
        if lines[0].startswith(BEGINNINGS) and INTRODUCES.search(" ".join(lines)):
            del kept[-count:]
            return
    if kept and _introduces(kept[-1]):
        kept.pop()


def _introduces(line: str) -> bool:
    """Return True for a line that introduces a quotation: by its words, or in any language by a date or an
    address before a colon.
    """
    return bool(INTRODUCES.search(line) or (line.rstrip().endswith(":") and DATED.search(line)))
