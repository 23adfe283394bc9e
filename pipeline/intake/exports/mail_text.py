"""The text that a person wrote in a mail: without quoted mails, signature and closing.

Readers of mailboxes use it for all texts. For texts that may be no mail, `is_mail` says what surely is one.
"""

import re
from collections import Counter
from collections.abc import Iterable, MutableMapping

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
WROTE = r"(?:wrote|writes|schrieb|schreibt|a écrit|escribió|ha scritto|skrev|schreef)"
# A line that introduces a quotation: "On Monday, Kim wrote:", "Am 1. Mai schrieb Kim:".
INTRODUCES = re.compile(rf"{WROTE}\b.*:\s*$", re.IGNORECASE)
BEGINNINGS = ("On ", "Am ", "Le ", "El ", "Il ", "Den ", "Op ")
BEGINNING = re.compile(f"^(?:{'|'.join(BEGINNINGS)})", re.MULTILINE)
INTRODUCTION_LINES = 3  # A long introduction is broken into lines.
INTRODUCTION = 300  # characters
# A time, a date in digits or an address, with which no prose introduces a quotation.
DATED = re.compile(r"\d:\d\d|\d[./-]\d{1,2}[./-]\d\d|<\S{1,100}@\S{1,100}>|<\[EMAIL")
# The head of a mail below an answer, as Outlook writes it, with a line above it or not.
FORWARDED = re.compile(
    r"^(-{2,} ?(Original Message|Ursprüngliche Nachricht|Message d'origine|Mensaje original) ?-{2,}"
    r"|_{20,}\s*\n(From|Von|De|Da|Van|Od)\s?:.*"
    r"|\W{0,2}(From|Von|De|Da|Van)\s?:.+\n(?:.+\n)?\W{0,2}(Sent|Gesendet|Envoyé|Enviado|Inviato|Verzonden)\s?:.*)$",
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
# What a writer adds below the closing, which stays.
POSTSCRIPT = re.compile(r"^(?:P\.?[ -]?S\b|Post-?scriptum\b|N\.? ?B\b)\.?(?: ?:)?\s", re.MULTILINE)
# Below a closing, unlike a name, an address and how the writer is reached: an amount, an item, a sentence, a
# label with its value, the address of a page.
REACHED_BY = (
    r"(?:tel|tél|ph|fon|fax|mob|cell|hand|e-?mail|mail|web|internet|sito|url|home|www|skype|whatsapp|linkedin"
    r"|direct|office|büro|zentrale|hotline|support|service|p\.? ?iva|c\.? ?f\b|ust|vat|btw|kvk|siret|hrb|reg"
    r"|sitz|geschäftsf|managing|ceo|director)"
)
SAYS = re.compile(
    r"[€$£]\s?\d|\d\s?(?:[€$£%]|(?:euro?s?|usd|gbp|chf|pounds|dollars)\b)|^\s*(?:[-*•+]|\d+[.)])\s"
    r"|(?:\S+ ){2}\S*[a-zß-ÿ][.!?]\s*$|(?:\S+ ){4}\S+[.!?]\s*$|\?\s*$"
    rf"|^\s*(?!{REACHED_BY})[^\W\d][^\n:]{{1,60}}: ?\S|https?://[^\s/]+/\S",
    re.IGNORECASE,
)
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


def learned_closings(texts: Iterable[str]) -> re.Pattern[str] | None:
    """Return what finds the lines that the writers of mails close with, in any language: each stands before a
    name at the end of `LEARNED_FROM` texts, and rarely elsewhere. None if there is no such line.
    """
    closing = Counter[str]()
    everywhere = Counter[str]()
    for text in texts:
        last_lines = text.splitlines()[-LAST_LINES:]
        everywhere.update({_folded(line) for line in last_lines})
        end = "\n".join(last_lines)
        closing.update(
            {_folded(match["line"]) for match in BEFORE_NAME.finditer(end) if _closes(match["line"])}
        )
    learned = [
        re.escape(line)
        for line, count in closing.items()
        if count >= LEARNED_FROM and count >= LEARNED_SHARE * everywhere[line]
    ]
    if not learned:
        return None
    return re.compile(rf"^[ \t]*(?:{'|'.join(sorted(learned))})[,.!]?[ \t]*$", re.MULTILINE | re.IGNORECASE)


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
    learned: re.Pattern[str] | None = None,
) -> str:
    """Return the text without quoted mails and what introduces them. `learned` finds the file's own closings.

    Not `every` line with `>` is one if the text may hold prompts or Markdown: then only those are that an
    introduction with a date precedes, and those at the text's end. A mail stays that the own words announce
    with a colon, or that a question may be about ("Is this mail phishing?").
    """
    quotation = QUOTATION.search(text)
    if not every and quotation:
        own = without_end(text[: quotation.start()].rstrip(), Counter(), every=False, learned=learned)
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
            is_announced = line.rstrip().endswith(":") and not INTRODUCES.search(line)
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
    if kept and INTRODUCES.search(kept[-1]):
        kept.pop()


def without_end(text: str, notes: Notes, *, every: bool, learned: re.Pattern[str] | None = None) -> str:
    """Return a mail's text without the line that a telephone adds, its signature, its closing (also one of
    those `learned`), and a notice of confidentiality below them.

    Not `every` signature is one if the text may hold code below two hyphens.
    """
    text = _without_closing(text, notes, every=every, learned=learned)
    paragraph = _last_paragraph(text)
    if paragraph is None or not _is_notice(text[paragraph.end() :]):
        return text
    notes["signatures"] += 1
    return _without_closing(text[: paragraph.start()].rstrip(), notes, every=every, learned=learned)


def _last_paragraph(text: str) -> re.Match[str] | None:
    """Return the blank lines before the last paragraph; None if there is only one."""
    return max(PARAGRAPH.finditer(text), key=re.Match.start, default=None)


def _is_notice(paragraph: str) -> bool:
    """Return True for a notice of confidentiality that asks nothing."""
    return bool(NOTICE.search(paragraph) and OF_NOTICE.search(paragraph)) and "?" not in paragraph


def _without_closing(text: str, notes: Notes, *, every: bool, learned: re.Pattern[str] | None) -> str:
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
    closing = closing_of(text[:end], learned) or _short_closing(text[:end])
    if closing:
        notes["closings"] += 1
        added = _added_below(text[closing.start() : end])
        parts = (text[: closing.start()].rstrip(), added, text[end:])
        text = "\n\n".join(filter(None, parts)).rstrip()
    return text


def _added_below(text: str) -> str:
    """Return what a writer says below a closing, which is the first line of `text`, and its name and address:
    all from the first line that says something, or from the paragraph that it is in, to a notice.
    """
    lines = _before_notice(text).splitlines(keepends=True)
    saying = (number for number, line in enumerate(lines) if number and _says(line))
    first = next(saying, None)
    if first is None:
        return ""
    begin = first
    while begin and lines[begin - 1].strip():
        begin -= 1
    if not begin:  # The name stands above it in the same paragraph.
        begin = first
    return "".join(lines[begin:]).strip()


def _says(line: str) -> bool:
    """Return True for a line below a closing that is more than a name, an address or a wish to be rated."""
    return bool(SAYS.search(line)) and not re.search(ASKS_FOR_RATING, line)


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


def closing_of(text: str, learned: re.Pattern[str] | None = None) -> re.Match[str] | None:
    """Return the closing that a text ends with, before a name, an address or a notice; None if it has none.
    Those `learned` from a file's texts count too.

    A closing with a place to fill in belongs to a letter that somebody is to send.
    """
    begin = max(0, len(text) - CLOSING_END)
    for match in (found for kind in (CLOSING, learned) if kind for found in kind.finditer(text, begin)):
        after = _before_notice(text[match.end() :]).strip().splitlines()
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


def ends_as_mail(text: str, learned: re.Pattern[str] | None) -> bool:
    """Return True if a text ends with a closing (also one of those `learned`), or surely is a mail."""
    return _ends_with_closing(text, learned) or is_mail(text)


def _ends_with_closing(text: str, learned: re.Pattern[str] | None = None) -> bool:
    """Return True if a text ends with a closing. Chats end with short ones too, but not with a name."""
    short = _short_closing(text)
    return bool(closing_of(text, learned) or (short and short["name"]))


def keeps_quotation(text: str) -> bool:
    """Return True if a text holds a quoted mail still."""
    return bool(FORWARDED.search(text) or _introduction(text))


def keeps_closing(text: str, learned: re.Pattern[str] | None) -> bool:
    """Return True if a line near the end of a text is a closing still, whatever stands below it."""
    kinds = [kind for kind in (CLOSING, CLOSING_LINE, learned) if kind]
    return any(kind.match(line) for kind in kinds for line in text.splitlines()[-LAST_LINES:])
