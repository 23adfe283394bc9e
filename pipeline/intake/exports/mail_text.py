"""The text that a person wrote in a mail: without quoted mails, signature and closing.

Readers of mailboxes use it for all texts. For texts that may be no mail, `is_mail` says what surely is one.
"""

import re
from collections import Counter
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from itertools import chain

Notes = MutableMapping[str, int]

SIGNATURE = re.compile(r"^-- ?$", re.MULTILINE)
SIGNATURE_LINES = 10
# What a signature has, and code, figures or sources below a line of two hyphens have not.
CONTACT = re.compile(
    r"@|\[(?:EMAIL|PHONE)_|\bwww\.|\+\d[\d /()-]{6,}"
    r"|\b(?:tel|phone|fon|hotline|mobil|gmbh|ltd|inc)\b",
    re.IGNORECASE,
)
# What code and the answers of a help desk have below such a line: amounts, items, columns, sentences.
NO_SIGNATURE = re.compile(
    r"[;{}=]|^--|[€$£]\s?\d|\d\s?(?:€|\$|£|%|(?:euro?s?|usd|gbp|chf|kg|km|cm|mm|gb|mb|stück|pcs)\b)|^\s*(?:[-*•+]|\d+[.)])\s"
    r"|\t|\w \| \d|(?:\S+ ){2}\S*[a-zß-ÿ][.!?]\s*$",
    re.MULTILINE | re.IGNORECASE,
)
# A notice of confidentiality, which may be a paragraph in one line.
OF_MAIL = r"\b(?:e-?mails?|mails?|messages?|communication|nachricht|courriel|mensaje|messaggio|bericht)\b"
CONFIDENTIAL = r"\b(?:confiden[tcz]\w+|vertraulich\w*|vertrouwelijk\w*|privileged|riservat\w+)\b"
NOTICE = re.compile(
    rf"{OF_MAIL}[\s\S]{{0,80}}?\b(?:bestemd voor|destinat\w+|przeznaczon\w+|ausschließlich für)\b"
    rf"|{OF_MAIL}[\s\S]{{0,160}}?{CONFIDENTIAL}|{CONFIDENTIAL}[\s\S]{{0,160}}?{OF_MAIL}"
    r"|\b(?:confidentiality notice|intended recipient|(?:richtige|vorgesehene|bestimmungsgemäße)r? "
    r"(?:adressat|empfänger)|before printing this)\b",
    re.IGNORECASE,
)
# What such a notice says besides, if it is a paragraph that a mail ends with and no question of its writer.
OF_NOTICE = re.compile(
    r"\b(?:intended|addressed|recipients?|disclos\w+|delete|empfängers?|adressat\w*|vernichten|löschen)\b",
    re.IGNORECASE,
)
PARAGRAPH = re.compile(r"\n\s*\n(?:[-*_]{3,}\s*\n\s*)?")
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
# A time, a date in digits or an address, with which no prose introduces a quotation.
DATED = re.compile(r"\d:\d\d|\d[./-]\d{1,2}[./-]\d\d|<\S{1,100}@\S{1,100}>|<\[EMAIL")
# The head of a mail below an answer, as Outlook writes it, with a line above it or not.
FORWARDED = re.compile(
    r"^(-{2,} ?(Original Message|Ursprüngliche Nachricht|Message d'origine|Mensaje original"
    r"|Mensagem original|Messaggio originale|Oorspronkelijk bericht|Wiadomość oryginalna|Oryginalna"
    r" wiadomość) ?-{2,}"
    r"|_{20,}\s*\n(From|Von|De|Da|Van|Od)\s?:.*"
    r"|\W{0,2}(From|Von|De|Da|Van|Od)\s?:.+\n(?:.+\n)?"
    r"\W{0,2}(Sent|Gesendet|Envoyé|Enviad[oa]|Inviato|Verzonden|Wysłano|Data)\s?:.*)$",
    re.MULTILINE | re.IGNORECASE,
)
UNDERLINE = re.compile(r"\n\s*_{5,}\s*\Z")  # Outlook's, above the head of a mail
CLOSING = re.compile(
    r"(?:^|(?<=[.!?])[ \t]+)[*_]{0,2}"
    r"(?:(?:mit )?(?:freundliche|beste|viele|liebe|herzliche|schöne)[mnr]? gr(?:ü(?:ß|ss)en?|uß|uss)|mfg\b"
    r"|(?:kind|best|warm|kindest|warmest|many thanks and kind) regards|best wishes"
    r"|yours (?:sincerely|faithfully|truly)|sincerely(?: yours)?,"
    r"|(?:(?:bien|très) )?cordialement|bien à (?:vous|toi)|salutations (?:distinguées|cordiales)"
    r"|(?:(?:belle|bonne) journée|un saludo|saludos|cordialmente)(?=[,.!]?[ \t]*$)"
    r"|cordiali saluti|distinti saluti|un cordiale saluto|saludos cordiales|atentamente|atenciosamente"
    r"|(?:met )?(?:vriendelijke|hartelijke|sportieve) groet(?:en|jes)?|hoogachtend"
    r"|alvast bedankt|bij voorbaat dank"
    r"|(?:med )?(?:vänliga?|venlige?|vennlige?) (?:hälsning(?:ar)?|hilsen(?:er)?)|z poważaniem"
    r"|z wyrazami szacunku"
    r"|(?:regards|all the best|yours in \w+|groet(?:en|jes)?|pozdrawiam|saluti|mvh|mvg)(?=[,.!]?[ \t]*$))"
    r"[^\n.?]{0,60}$",
    re.MULTILINE | re.IGNORECASE,
)
NAME_WORD = r"(?:[A-ZÀ-ÞĀ-Ž][\w'’-]*|\[NAME_\d+\])"
NAME = rf"{NAME_WORD}(?:\.? {NAME_WORD}){{0,3}}(?:(?<=\b[A-Z])\.)?"
# Where the writer works, behind the name; lines of an address; a question for a rating at the end.
OFFICE = r"(?:,?[ \t]+(?:vom|von|aus|im|from|of|at|in|the|der|[-–|])[ \t][^\n]{1,60})?"
ADDRESS = r"(?:\n[ \t]*(?![-*•>])[^\n]{1,60}(?<![.:;?!])){0,6}"
ASKS_FOR_RATING = r"\b(?i:rate|rating|how did we do|bewert\w*|feedback|survey|umfrage)\b"
RATING = rf"(?:\n\s*[^\n]{{0,120}}{ASKS_FOR_RATING}[^\n]{{0,120}}){{0,2}}"
# At a mail's end, before nothing, or a name and an address. Chats end so too: it is no sign of a mail.
SHORT_CLOSING = re.compile(
    r"^[ \t]*(?i:(?:[lvb]g|cheers|thanks|many thanks|thank you|danke|(?:vielen|besten) dank"
    r"|(?:(?:danke|dank) und |(?:mit )?(?:freundliche|beste|liebe)[mrn] |viele |liebe )*gr(?:uß|uss|üße|üsse)"
    rf"|best(?=,|\s*\n))(?:,[ \t]+(?-i:{NAME})(?=\s*\Z)|[,!.]?))[ \t]*"
    rf"(?:\n\s*(?P<name>{NAME}){OFFICE}[ \t]*{ADDRESS})?{RATING}\s*\Z",
    re.MULTILINE,
)
CLOSING_LINE = re.compile(
    r"[ \t]*(?:[lvb]g|mfg|cheers|many thanks|best wishes|(?:viele |liebe |beste |freundliche )?grüße)[,!.]?"
    r"[ \t]*\Z",
    re.IGNORECASE,
)
# A line that writers close with, if it often stands before a name: two to six words, or one with a comma.
LEARNABLE = r"(?!\s*>)[^\W\d][^\d\n:;()<>\[\]]{1,38}"
BEFORE_NAME = re.compile(
    rf"^[ \t]*(?P<line>{LEARNABLE})\n\s*(?P<name>{NAME})(?:,[^\n]{{1,60}})?[ \t]*$", re.MULTILINE
)
LEARNED_WORDS = 6  # of such a line, at most
LEARNED_FROM = 5  # texts that it closes, at least
LEARNED_SHARE = 0.8  # of the texts with that line, at least
ENDING_SHARE = 0.03  # of all texts, at least, that end with a line which is their company's or a notice
# What a writer adds below the closing, which stays.
POSTSCRIPT = re.compile(r"^(?:P\.?[ -]?S\b|Post-?scriptum\b|N\.? ?B\b)\.?(?: ?:)?\s", re.MULTILINE)
# A line below a closing that says how the writer is reached, or who the company is.
REACHED_BY = re.compile(
    r"\s*(?:tel|tél|ph|fon|fax|mob|cell|hand|e-?mail|mail|web|internet|sito|url|home|www|skype|whatsapp"
    r"|linkedin|direct|office|büro|zentrale|hotline|support|service|p\.? ?iva|c\.? ?f\b|ust|vat|btw|kvk|siret"
    r"|hrb|reg|nip|sitz|geschäftsf|managing|ceo|director)\w*\.?\s*(?:[:.|]|\+|\d)",
    re.IGNORECASE,
)
# The first line below a closing, in any letters, also with where the writer works.
NAME_LINE = re.compile(rf"[^\W\d]\S*(?: [^\W\d]\S*){{0,2}}|{NAME}{OFFICE}")
CITY = re.compile(r",|\b[\d-]{4,6} [A-ZÀ-ÞĀ-Ž]")  # in a line of an address that has digits
STREET = re.compile(
    r"\s*[^\d\n]{3,40} \d{1,4}\w?\s*\n\s*[\d-]{4,6} [A-ZÀ-ÞĀ-Ž]"
)  # above the line of the city
LITTLE = 3  # letters of a word that a name or an address may have in small letters
LAST_LINES = 14  # lines at a text's end in which a closing that is left is looked for
DEVICE = re.compile(
    r"^[ \t]*(?:sent from (?:my \S.{0,30}|outlook for \S+)|get outlook for \S+"
    r"|(?:von meinem .{1,30} gesendet|gesendet (?:von meinem|mit) .{1,30})|envoyé de mon .{1,30})\s*\Z",
    re.MULTILINE | re.IGNORECASE,
)
SHORT_END = 400  # characters of a name and how it is reached
CLOSING_END = 2400  # characters at a text's end in which a closing is looked for
CLOSING_LINES = 8  # lines between it and a notice or the end: a name, an address
LINE = 120  # characters of such a line
PLACEHOLDER = re.compile(r"\[(?!NAME_\d)[^\]\n]*(?:name|title|unterschrift)[^\]\n]*\]", re.IGNORECASE)
# Words of a customer above a quoted mail that may be about it.
SPEAKS_OF_QUOTED = re.compile(
    r"\b(?:phishing|spam|scam|below|unten\w*|ci-dessous|hieronder|onderstaand\w*|poniż\w*|sotto|abajo|abaixo"
    r"|weitergeleitet\w*|forwarded|suivante?|seguente|siguiente)\b"
    rf"|{OF_MAIL}"
    r"|\b(?:this|that|these|das|dies\w*|ceci|cela|ça|esto|eso|questo)\b[^.!?\n]{0,40}\?",
    re.IGNORECASE,
)
# The beginning of a quotation or of a forwarded mail.
QUOTATION = re.compile(
    rf"^(?:>|-{{3,}} ?\S.{{0,60}}-{{3,}}|{FORWARDED.pattern[1:-1]}|(?:{'|'.join(BEGINNINGS)})[^\n]{{0,200}}"
    rf"{WROTE}\b[^\n]{{0,100}}:\s*$)",
    re.MULTILINE | re.IGNORECASE,
)
GREETING = re.compile(
    r"\s*(?:hallo|hi|hello|dear|moin|liebe[rs]?|guten (?:tag|morgen|abend)|sehr geehrte[rs]?|bonjour|hola"
    r"|beste|geachte|hoi|dag|gentile|buongiorno|estimad[oa]s?|dzień dobry|szanown\w+|hej|hei)\b",
    re.IGNORECASE,
)
# A greeting that is a line of its own.
GREETING_LINE = re.compile(rf"{GREETING.pattern}[^\n.?]{{0,60}}[,!][ \t]*\n", re.IGNORECASE)


# In small letters. A text with none of these has nothing that the expressions above find.
SIGNS = (
    *("\n--", "\n__", "from:", "von:", "de:", "de :", "da:", "van:"),
    *("wrote", "writes", "schrieb", "schreibt", "a écrit", "escribió", "ha scritto", "skrev", "schreef"),
    *("\n>", "escreveu", "napisał", "napsal", "írta", "kirjoitti", "od:"),
    *("grüße", "grüsse", "gruß", "gruss", "mfg", "regards", "best wishes", "yours ", "sincerely"),
    *("cordial", "distinti saluti", "atentamente", "atenciosamente", "groet", "bien à ", "salutations"),
    *("journée", "saludo", "saluti", "hoogachtend", "alvast", "voorbaat", "hälsning", "hilsen", "mvh", "mvg"),
    *("pozdrawiam", "poważaniem", "szacunku", "all the best", "yours in"),
)


def may_be_mail(text: str) -> bool:
    """Return False for a text that surely is no mail. It is quick, since most texts are none."""
    folded = text.lower()
    if any(sign in folded for sign in SIGNS):
        return True
    end = text[-SHORT_END:]
    return bool(SHORT_CLOSING.search(end) or BEFORE_NAME.search(end))


@dataclass(frozen=True)
class Habits:
    """How the mails of a file end: what finds its own closings, and the lines that many texts end with."""

    closings: re.Pattern[str] | None = None
    endings: frozenset[str] = frozenset()


UNKNOWN = Habits()


def habits_of(texts: Iterable[str]) -> Habits:
    """Return how mails end, in any language. A closing stands before a name at the end of `LEARNED_FROM`
    texts, and rarely elsewhere. Endings are at the end of as many: a company, its address, a notice.
    """
    closing = Counter[str]()
    last = Counter[str]()
    seen = 0
    for text in texts:
        seen += 1
        last_lines = text.splitlines()[-LAST_LINES:]
        last.update({_folded(line) for line in last_lines})
        end = "\n".join(last_lines)
        closing.update(
            {_folded(match["line"]) for match in BEFORE_NAME.finditer(end) if _closes(match["line"])}
        )
    often = max(LEARNED_FROM, ENDING_SHARE * seen)
    endings = frozenset(line for line, count in last.items() if line and count >= often)
    learned = [
        re.escape(line)
        for line, count in closing.items()
        if count >= LEARNED_FROM and count >= LEARNED_SHARE * last[line]
    ]
    if not learned:
        return Habits(None, endings)
    lines = "|".join(sorted(learned))
    return Habits(re.compile(rf"^[ \t]*(?:{lines})[,.!]?[ \t]*$", re.MULTILINE | re.IGNORECASE), endings)


def _folded(line: str) -> str:
    """Return a line as others write it too: in small letters, without what ends it."""
    return line.strip().rstrip(",.!").lower()


def _closes(line: str) -> bool:
    """Return True for a line that may close a mail: a few words that are no name, or one before a comma."""
    words = line.split()
    if len(words) == 1:
        return line.rstrip().endswith(",")
    return len(words) <= LEARNED_WORDS and not re.fullmatch(NAME, line.strip().rstrip(",.!"))


def own_words(text: str, notes: Notes) -> str:
    """Return a mail's text without quotations, and without its signature."""
    text = text.replace("\r\n", "\n")
    signature = SIGNATURE.search(text)
    if signature:
        notes["signatures"] += 1
        text = text[: signature.start()]
    return without_quotes(text, notes, every=True)


def without_quotes(
    text: str,
    notes: Notes,
    *,
    every: bool,
    is_question: bool = False,
    habits: Habits = UNKNOWN,
) -> str:
    """Return the text without quoted mails and what introduces them. `habits` are those of its file.

    Not `every` line with `>` is one if the text may hold prompts or Markdown: then only those are that an
    introduction with a date precedes, and those at the text's end. A mail stays that the own words announce
    with a colon, or that a question may be about ("Is this mail phishing?").
    """
    quotation = QUOTATION.search(text)
    if not every and quotation:
        own = without_end(text[: quotation.start()].rstrip(), Counter(), every=False, habits=habits)
        if own.endswith(":") or (is_question and SPEAKS_OF_QUOTED.search(own)):
            return text
    begin = _quoted_from(text)
    is_quoted = begin is not None
    lines = text[:begin].split("\n")
    is_reply = every or _introduction(text) is not None
    last = 0 if is_reply else _last_quotation(lines)
    kept: list[str] = []
    for number, line in enumerate(lines):
        if number < last or not line.startswith(">"):
            kept.append(line)
        elif not is_quoted or (kept and kept[-1].strip()):
            is_quoted = True
            _drop_introduction(kept)
    notes["quotes"] += is_quoted
    words = "\n".join(kept).strip()
    return UNDERLINE.sub("", words) if is_quoted else words


def _before_quoted(text: str) -> str:
    """Return the words before the first head or dated introduction of a mail; "" if there is none."""
    introduction = _introduction(text)
    places = [place for place in (_quoted_from(text), introduction and introduction[0]) if place is not None]
    return text[: min(places, default=0)].rstrip()


def _last_quotation(lines: list[str]) -> int:
    """Return the number of the first line of the quotation that ends a text; if none does, that of all lines.

    Prompts of Python (`>>> `) are no quotation, and one below a colon ("The rule says:") is the text's own.
    """
    first = len(lines)
    for number in range(len(lines) - 1, -1, -1):
        line = lines[number]
        if line.startswith(">") and not line.startswith(">>> "):
            first = number
        elif line.strip():
            # A date or an address introduces a mail in any language.
            is_introduction = INTRODUCES.search(line) or DATED.search(line)
            is_announced = line.rstrip().endswith(":") and not is_introduction
            return len(lines) if is_announced else first
    return first


def _quoted_from(text: str) -> int | None:
    """Return where a mail begins that is quoted without `>`; None if there is none."""
    forwarded = FORWARDED.search(text)
    introduction = _introduction(text)
    places = [forwarded.start()] if forwarded else []
    if introduction and not text[introduction[1] :].lstrip().startswith(">"):
        places.append(introduction[0])
    return min(places, default=None)


def _introduction(text: str) -> tuple[int, int] | None:
    """Return where the first dated introduction of a quotation begins and ends; None if there is none."""
    for match in BEGINNING.finditer(text):
        lines = text[match.start() : match.start() + INTRODUCTION].split("\n")
        for count in range(1, INTRODUCTION_LINES + 1):
            words = "\n".join(lines[:count])
            if INTRODUCES.search(words) and DATED.search(words):
                return match.start(), match.start() + len(words)
    return None


def _drop_introduction(kept: list[str]) -> None:
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
    if kept and (INTRODUCES.search(kept[-1]) or (kept[-1].rstrip().endswith(":") and DATED.search(kept[-1]))):
        kept.pop()


def without_end(text: str, notes: Notes, *, every: bool, habits: Habits = UNKNOWN) -> str:
    """Return a mail's text without the line that a telephone adds, its signature, its closing (also by
    the `habits` of its file), and a notice of confidentiality below them.

    Not `every` signature is one if the text may hold code below two hyphens.
    """
    text = _without_closing(text, notes, every=every, habits=habits)
    paragraph = _last_paragraph(text)
    if paragraph is None or not _is_notice(text[paragraph.end() :]):
        return text
    notes["signatures"] += 1
    return _without_closing(text[: paragraph.start()].rstrip(), notes, every=every, habits=habits)


def _last_paragraph(text: str) -> re.Match[str] | None:
    """Return the blank lines before the last paragraph; None if there is only one."""
    return max(PARAGRAPH.finditer(text), key=re.Match.start, default=None)


def _is_notice(paragraph: str) -> bool:
    """Return True for a notice of confidentiality that asks nothing."""
    return bool(NOTICE.search(paragraph) and OF_NOTICE.search(paragraph)) and "?" not in paragraph


def _without_closing(text: str, notes: Notes, *, every: bool, habits: Habits) -> str:
    """Return a mail's text without what `without_end` takes, except for a notice that stands alone. What the
    writer says below the closing stays.
    """
    device = DEVICE.search(text)
    if device:
        notes["signatures"] += 1
        text = text[: device.start()].rstrip()
    signature = SIGNATURE.search(text) if every else _signature(text, is_sure=True)
    if signature:
        notes["signatures"] += 1
        text = text[: signature.start()].rstrip()
    postscript = POSTSCRIPT.search(text, max(0, len(text) - CLOSING_END))
    end = postscript.start() if postscript else len(text)
    closing = closing_of(text[:end], habits) or _short_closing(text[:end])
    if closing:
        notes["closings"] += 1
        added = _added_below(text[closing.start() : end], habits)
        parts = (text[: closing.start()].rstrip(), added, text[end:])
        text = "\n\n".join(filter(None, parts)).rstrip()
    return text


def _added_below(text: str, habits: Habits) -> str:
    """Return what a writer says below a closing, which is the first line of `text`, and below the name,
    company and address: all from the first line, or paragraph, that is something else, to a notice.
    """
    lines = _before_notice(text).splitlines(keepends=True)
    below = next((number for number, line in enumerate(lines) if number and line.strip()), len(lines))
    if below < len(lines) and NAME_LINE.fullmatch(lines[below].strip()):
        below += 1
    # An address that is only this writer's stands in one paragraph with the name.
    paragraph = below
    for number in range(below, len(lines)):
        if not lines[number].strip():
            paragraph = number + 1
        elif not (
            _is_usual_end(lines[number], habits) or (paragraph == below and _is_address(lines[number:]))
        ):
            first = number if paragraph == below else paragraph
            kept = (line for line in lines[first:] if not line.strip() or _folded(line) not in habits.endings)
            return "".join(kept).strip()
    return ""


def _is_usual_end(line: str, habits: Habits) -> bool:
    """Return True for a line that many texts of the file end with, that says how the writer is reached, or
    that asks for a rating.
    """
    if _folded(line) in habits.endings or re.search(ASKS_FOR_RATING, line):
        return True
    return bool(CONTACT.search(line) or REACHED_BY.match(line)) and not line.rstrip().endswith("?")


def _is_address(lines: list[str]) -> bool:
    """Return True if the first of the lines is a name or a company in capitals, or of an address."""
    line = lines[0].strip()
    if STREET.match("".join(lines)):
        return True
    if line[-1] in ":?!" or (re.search(r"\d", line) and not CITY.search(line)):
        return False
    words = [word.strip(".,;:()|–-") for word in line.split()]
    small = [word for word in words if word[:1].islower()]
    return all(len(word) <= LITTLE for word in small) and 2 * len(small) <= len(words)


def _signature(text: str, *, is_sure: bool) -> re.Match[str] | None:
    """Return the line above the signature; None if there is none.

    In what is not surely a mail, a signature gives a contact or a notice.
    """
    signature = SIGNATURE.search(text)
    if not signature or len(text) - signature.end() > CLOSING_END or _is_announced(text, signature):
        return None
    below = text[signature.end() :]
    contact = _before_notice(below)
    if contact.count("\n") > SIGNATURE_LINES:
        return None
    if contact != below:
        return signature
    # The space that mail programs write is what Markdown and lists of options have not.
    is_signature = CONTACT.search(below) or (is_sure and signature[0] == "-- ")
    return signature if is_signature and not NO_SIGNATURE.search(below) else None


def closing_of(text: str, habits: Habits = UNKNOWN) -> re.Match[str] | None:
    """Return the closing that a text ends with, before a name, an address or a notice; None if it has none.
    The `habits` of its file count too.

    A closing with a place to fill in belongs to a letter that somebody is to send.
    """
    kinds = [kind for kind in (CLOSING, habits.closings) if kind]
    begin = max(0, len(text) - CLOSING_END)
    for match in chain.from_iterable(kind.finditer(text, begin) for kind in kinds):
        below = _before_notice(text[match.end() :]).strip().splitlines()
        after = [line for line in below if _folded(line) not in habits.endings]
        is_short = len(after) <= CLOSING_LINES and all(len(line) <= LINE for line in after)
        is_end = is_short and not QUOTATION.search(text, match.end()) and not _is_announced(text, match)
        if is_end:
            return None if PLACEHOLDER.search(text, match.start()) else match
    return None


def _short_closing(text: str) -> re.Match[str] | None:
    """Return the short closing that a mail ends with, or None; above a notice it needs a name."""
    begin = max(0, len(text) - CLOSING_END)
    above = SHORT_CLOSING.search(text[:begin] + _before_notice(text[begin:]))
    closing = above if above and above["name"] else SHORT_CLOSING.search(text)
    return None if closing and _is_announced(text, closing) else closing


def _is_announced(text: str, closing: re.Match[str]) -> bool:
    """Return True for an example of a mail's end, or an item of a list: a colon ends the line above it,
    another line of its paragraph, or the paragraph above the one that it is in.
    """
    above = text[: closing.start()]
    if above.rstrip().endswith(":"):
        return True
    *earlier, own = re.split(r"\n[ \t]*\n", above)
    if any(line.rstrip().endswith(":") for line in own.split("\n")):
        return True
    return bool(own.strip() and earlier) and earlier[-1].endswith(":") and not GREETING.match(earlier[-1])


def _before_notice(text: str) -> str:
    """Return the lines before the one in which a notice begins, or all."""
    notice = NOTICE.search(text)
    return text[: text.rfind("\n", 0, notice.start()) + 1] if notice else text


def is_mail(text: str) -> bool:
    """Return True for a text that has what only mails have: a quoted mail below own words that greet or
    close, a signature with a contact or a notice, or both a greeting and a closing.
    """
    own = _before_quoted(text)
    if GREETING_LINE.match(own) or _ends_with_closing(own) or _signature(own, is_sure=False):
        return True
    return bool(_signature(text, is_sure=False)) or bool(GREETING.match(text) and closing_of(text))


def ends_as_mail(text: str, habits: Habits) -> bool:
    """Return True if a text ends with a closing (also by the `habits` of its file), or surely is a mail."""
    return _ends_with_closing(text, habits) or is_mail(text)


def _ends_with_closing(text: str, habits: Habits = UNKNOWN) -> bool:
    """Return True if a text ends with a closing. Chats end with short ones too, but not with a name."""
    short = _short_closing(text)
    return bool(closing_of(text, habits) or (short and short["name"]))


def keeps_quotation(text: str) -> bool:
    """Return True if a text holds a quoted mail still."""
    return bool(FORWARDED.search(text) or _introduction(text))


def keeps_closing(text: str, habits: Habits) -> bool:
    """Return True if a line near the end of a text is a closing still, whatever stands below it."""
    kinds = [kind for kind in (CLOSING, CLOSING_LINE, habits.closings) if kind]
    return any(kind.match(line) for kind in kinds for line in text.splitlines()[-LAST_LINES:])
