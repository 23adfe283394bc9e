"""The end of a mail: a closing, a name and address, a signature, a notice of confidentiality.

Lists have the closings of some languages. A file's own texts show the others, and the lines that many end
with.
"""

import re
from collections import Counter
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from itertools import chain

from pipeline.intake.exports.mail_quotes import QUOTATION

Notes = MutableMapping[str, int]
KEPT_BELOW = "kept_below_closings"  # note: texts

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
    r"|\t|\w \| \d|(?:\S+ ){2}\S*[a-zß-ÿ\d][.!?]\s*$",
    re.MULTILINE | re.IGNORECASE,
)
# A notice of confidentiality, which may be a paragraph in one line.
OF_MAIL = (
    r"\b(?:e-?mails?|mails?|messages?|communication|nachricht|courriel|mensaje|messaggio|bericht|wiadomość)\b"
)
CONFIDENTIAL = r"\b(?:confiden[tcz]\w+|vertraulich\w*|vertrouwelijk\w*|privileged|riservat\w+|poufn\w+)\b"
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
# Words of thanks, which are a closing before a name, and lead into another: "Gracias y un saludo".
THANKS = (
    r"(?:(?:many |muchas |muchísimas |mil |vielen |besten |herzlichen |molte |bien |mange |tusen |hartelijk "
    r"|alvast |z góry )?"
    r"(?:thanks|thank you|gracias|danke|dank|merci|grazie|obrigad[oa]|bedankt|tack|takk?|dziękuję)"
    r"(?: (?:a lot|again|in advance|im voraus|de antemano|por adelantado|d'avance|in anticipo|mille|desde já"
    r"|på forhånd|på förhand|z góry))?)"
)
AND = r"(?:,| and| und| y| et| e| en| och| og| i) "
PARAGRAPH = re.compile(r"\n\s*\n(?:[-*_]{3,}\s*\n\s*)?")
CLOSING_WORDS = (
    r"(?:(?:mit )?(?:freundliche|beste|viele|liebe|herzliche|schöne)[mnr]? gr(?:ü(?:ß|ss)en?|uß|uss)|mfg\b"
    r"|mit \w{4,20} grü(?:ß|ss)en"
    r"|(?:kind|best|warm|kindest|warmest|many thanks and kind) regards|best wishes"
    r"|yours (?:sincerely|faithfully|truly)|sincerely(?: yours)?,"
    r"|(?:(?:bien|très) )?cordialement|cdl?t\b|bien à (?:vous|toi)|salutations (?:distinguées|cordiales)"
    r"|(?:je vous prie d['’]|veuillez )(?:agréer|recevoir|croire)\b(?:,[^\n?]{0,40},)?[^\n?]{0,15}"
    r"(?:l['’](?:expression|assurance) de )?(?:mes|nos|ma|notre) (?:\w+ )?(?:salutations|sentiments"
    r"|considération)[^\n.?]{0,40}\.?|(?:meilleures|sincères) salutations"
    r"|(?:have a (?:nice|lovely|great|good|wonderful) (?:day|evening|weekend)|(?:belle|bonne) journée"
    r"|un saludo|saludos|cordialmente)(?=[,.!]?[ \t]*$)"
    r"|cordiali saluti|distinti saluti|un cordiale saluto|(?:un )?cordial saludo|saludos cordiales"
    r"|atentamente|atenciosamente"
    r"|(?:met )?(?:vriendelijke|hartelijke|sportieve) groet(?:en|jes)?|hoogachtend"
    r"|alvast bedankt|bij voorbaat dank"
    r"|(?:med )?(?:vänliga?|venlige?|vennlige?|bästa|varma|hjärtliga|beste|bedste|varme)"
    r" (?:hälsning(?:ar)?|hilsen(?:er)?)"
    r"|(?:\w+ )?(?:hälsningar från|greetings from)|warm wishes|z poważaniem"
    r"|z wyrazami szacunku|z pozdrowieniami|(?:serdecznie )?pozdrawiam serdecznie"
    r"|(?:regards|all the best(?: from [^\W\d]+)?|sincerely|yours in \w+|groet(?:en|jes)?|pozdrawiam"
    r"|saluti|mvh|mvg|vh|freundlichst|warmly|allt gott"
    r"|miłego (?:dnia|wieczoru|weekendu)|pozdr"
    r"|hälsning(?:ar)?|hilsen|vänligen|ha det (?:bra|fint|godt)|ha en (?:bra|fin|god) dag)(?=[,.!]?[ \t]*$))"
)
AFTER_CLOSING = r"(?:[^\n.?]{0,60}|[.!])[ \t]*$"
CLOSING = re.compile(
    rf"(?:^|(?<=[.!?])[ \t]+)[*_]{{0,2}}(?:{THANKS}{AND})?{CLOSING_WORDS}{AFTER_CLOSING}",
    re.MULTILINE | re.IGNORECASE,
)
# A line that may close a mail, whatever it begins with. It is counted, and stays.
MAY_CLOSE = re.compile(rf"[^\n.?!]{{0,40}}\b{CLOSING_WORDS}{AFTER_CLOSING}", re.IGNORECASE)
NAME_WORD = r"(?:[A-ZÀ-ÞĀ-Ž][\w'’-]*|\[NAME_\d+\])"
NAME = rf"{NAME_WORD}(?:\.? {NAME_WORD}){{0,3}}(?:(?<=\b[A-Z])\.)?"
WRITER = re.compile(rf"[/–—-]?[ \t]*{NAME}")  # as the last line of a text
SIGNED = re.compile(rf"[ \t]*/[ \t]*{NAME}[ \t]*\Z")  # as any line: "/Kim"
# Where the writer works, behind the name; lines of an address; a question for a rating at the end.
OFFICE = r"(?:,?[ \t]+(?:vom|von|aus|im|from|of|at|in|the|der|[-–|])[ \t][^\n]{1,60})?"
COMPANY = r"(?:(?<=[A-Z]\.)|(?<=\.l\.)|(?<=Inc\.)|(?<=Ltd\.)|(?<=Co\.))"  # "S.L.", "S.r.l.", "B.V."
ADDRESS = rf"(?:\n[ \t]*(?![-*•>])[^\n]{{1,60}}(?:(?<![.:;?!])|{COMPANY})){{0,6}}"
ASKS_FOR_RATING = (
    r"\b(?i:rate|rating|how did we do|bewert\w*|feedback|survey|umfrage|valor(?:ar|aría|e|ación)|encuesta"
    r"|calific\w+|évalu\w+|enquête|valutazion\w+|sondaggio|beoordel\w+|avaliaç\w+|avalie|pesquisa"
    r"|oceń|ankiet\w+)\b"
)
RATING = rf"(?:\n\s*[^\n]{{0,120}}{ASKS_FOR_RATING}[^\n]{{0,120}}){{0,2}}"
# At a mail's end, before nothing, or a name and an address. Chats end so too: it is no sign of a mail.
SHORT_CLOSING = re.compile(
    rf"^[ \t]*(?:(?i:[lvb]g|mfg|gruß|grüße)[ \t]+{NAME}(?=\s*\Z)"
    rf"|(?i:(?:[lvb]g|cheers|ta|thx|cdl?t|à bientôt|{THANKS}"
    r"|(?:(?:danke|dank) und |(?:mit )?(?:freundliche|beste|liebe)[mrn] |viele |liebe )*gr(?:uß|uss|üße|üsse)"
    rf"|best(?=,|\s*\n))(?:,[ \t]+(?-i:{NAME})(?=\s*\Z)|[,!.]?)))[ \t]*"
    rf"(?:\n\s*(?P<name>{NAME}){OFFICE}[ \t]*{ADDRESS})?{RATING}\s*\Z",
    re.MULTILINE,
)
CLOSING_LINE = re.compile(
    r"[ \t]*(?:[lvb]g|mfg|cheers|many thanks|best wishes|(?:viele |liebe |beste |freundliche )?grüße)[,!.]?"
    r"[ \t]*\Z",
    re.IGNORECASE,
)
# A line that writers close with, if it often stands before a name: two to six words, or one with a comma.
# What ends as a sentence does is what they say.
LEARNABLE = r"(?!\s*>)[^\W\d][^\d\n:;()<>\[\]]{1,38}(?<![.?…])"
BEFORE_NAME = re.compile(
    rf"^[ \t]*(?P<line>{LEARNABLE})\n\s*(?:-- ?\n\s*)?(?P<name>{NAME})(?: ?[,@|(–-][^\n]{{1,60}})?[ \t]*$",
    re.MULTILINE,
)
LEARNED_WORDS = 6  # of such a line, at most
LEARNED_FROM = 5  # texts that it closes, at least
LEARNED_SHARE = 0.8  # of the texts with that line, at least
ALONE_SHARE = 0.1  # of the texts that it closes, at most, that say nothing else
ENDING_SHARE = 0.03  # of all texts, at least, that end with a line which is their company's or a notice
# What a writer adds below the closing, which stays.
POSTSCRIPT = re.compile(
    r"^(?:P\.?(?:P\.?)?[ -]?[SD]\b|p\. ?s\b|Post-?scriptum\b|Pos(?:t)?data\b|N\.? ?B\b)\.?(?: ?:)?\s",
    re.MULTILINE,
)
# A line below a closing that says how the writer is reached, or who the company is.
REACHED_BY = re.compile(
    r"\s*(?:tel|tél|ph|fon|fax|mob|cell|hand|e-?mail|mail|web|internet|sito|url|home|www|skype|whatsapp"
    r"|linkedin|direct|office|büro|zentrale|hotline|support|service|p\.? ?iva|c\.? ?f\b|ust|vat|btw|kvk|siret"
    r"|hrb|reg|nip|sitz|geschäftsf|managing|ceo|director|[tmfp]\b)\w*\.?\s*(?:[:.|]|\+|\d)",
    re.IGNORECASE,
)
# A line that is a telephone number alone; an order's has no spaces, and begins with no 0.
NUMBER = re.compile(r"(?=[+(0]|\d+[ /])[+(]?\d[\d ()/.-]{6,18}\d")
# The first line below a closing, in any letters, also with where the writer works.
NAME_LINE = re.compile(rf"[^\W\d]\S*(?: [^\W\d]\S*){{0,2}}|{NAME}{OFFICE}")
# A line of an address that has digits, with a comma or a postal code beside the city. The street is above.
CITY = re.compile(r",|\b[\d-]{4,6} [A-ZÀ-ÞĀ-Ž]|\b[A-Z]{1,2}\d[A-Z\d]? \d[A-Z]{2}\b")
SENTENCE_WORDS = 4  # words in small letters, at least, of a sentence that gives a number or an address
LITTLE = 3  # letters of a word that a name or an address may have in small letters
# Words that are in small letters in an address.
STREETS = frozenset(
    (
        *("allée", "avenida", "avenue", "boulevard", "calle", "chemin", "cours", "impasse", "place", "plaza"),
        *("quai", "route", "straat", "ulica", "viale"),
    )
)
LAST_LINES = 14  # lines at a text's end in which a closing that is left is looked for
DEVICE = re.compile(
    r"^[ \t]*(?:sent from (?:my \S.{0,30}|\S.{0,30} (?:for|on) \S+)|get outlook for \S+"
    r"|(?:von meinem .{1,30} gesendet|gesendet (?:von meinem|mit) .{1,30})"
    r"|envoyé (?:de mon|depuis|à partir d).{1,40}"
    r"|(?:enviado (?:desde|do|a partir)|inviato da|verzonden (?:vanaf|met)|wysłan[eo] z|skickat från"
    r"|send[te]t? fra) .{1,30}"
    r"|(?:obtener|télécharger|scarica|hol|pobierz(?: aplikację)?) outlook .{1,30})\s*\Z",
    re.MULTILINE | re.IGNORECASE,
)
SHORT_END = 400  # characters of a name and how it is reached
CLOSING_END = 2400  # characters at a text's end in which a closing is looked for
CLOSING_LINES = 8  # lines between it and a notice or the end: a name, an address
LINE = 120  # characters of such a line
PLACEHOLDER = re.compile(r"\[(?!NAME_\d)[^\]\n]*(?:name|title|unterschrift)[^\]\n]*\]", re.IGNORECASE)
GREETING = re.compile(
    r"\s*(?:hallo|hi|hello|dear|moin|liebe[rs]?|guten (?:tag|morgen|abend)|sehr geehrte[rs]?|bonjour|hola"
    r"|beste|geachte|hoi|dag|gentile|buongiorno|estimad[oa]s?|dzień dobry|szanown\w+|hej|hei)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Habits:
    """The usual ends of a file's mails: what finds its own closings, and the lines that many end with."""

    closings: re.Pattern[str] | None = None
    endings: frozenset[str] = frozenset()


UNKNOWN = Habits()


def habits_of(texts: Iterable[str]) -> Habits:
    """Return how mails end, in any language. A closing stands before a name at the end of `LEARNED_FROM`
    texts, and rarely elsewhere or alone: what is all that a mail says is no closing. Endings are at the end
    of as many: a company, its address, a notice.
    """
    closing = Counter[str]()
    alone = Counter[str]()
    last = Counter[str]()
    seen = 0
    for text in texts:
        seen += 1
        last_lines = text.splitlines()[-LAST_LINES:]
        last.update({_folded(line) for line in last_lines})
        end = "\n".join(last_lines)
        before_name = {match["line"] for match in BEFORE_NAME.finditer(end) if _closes(match["line"])}
        closing.update(map(_folded, before_name))
        alone.update(_folded(line) for line in before_name if not says_something(text[: text.rfind(line)]))
    often = max(LEARNED_FROM, ENDING_SHARE * seen)
    endings = frozenset(line for line, count in last.items() if line and count >= often)
    learned = [
        re.escape(line)
        for line, count in closing.items()
        if count >= max(LEARNED_FROM, LEARNED_SHARE * last[line]) and alone[line] <= ALONE_SHARE * count
    ]
    if not learned:
        return Habits(None, endings)
    lines = "|".join(sorted(learned))
    learned_line = rf"^[ \t]*(?:{THANKS}{AND})?(?:{lines})[,.!]?[ \t]*$"
    return Habits(re.compile(learned_line, re.MULTILINE | re.IGNORECASE), endings)


def says_something(text: str) -> bool:
    """Return True unless a text is empty, or nothing but a greeting."""
    lines = [line for line in text.splitlines() if line.strip()]
    is_greeting = len(lines) == 1 and (GREETING.match(lines[0]) or lines[0].rstrip().endswith((",", "!")))
    return bool(lines) and not is_greeting


def _folded(line: str) -> str:
    """Return a line as others write it too: in small letters, without what ends it, and without what a
    link ends with, which may be the ticket's number.
    """
    return re.sub(r"(https?://[^\s/]+)\S*", r"\1", line.strip().rstrip(",.!").lower())


def _closes(line: str) -> bool:
    """Return True for a line that may close a mail: a few words that are no name, or one before a comma."""
    words = line.split()
    if len(words) == 1:
        return line.rstrip().endswith(",") or bool(CLOSING_LINE.match(line))
    return len(words) <= LEARNED_WORDS and not re.fullmatch(NAME, line.strip().rstrip(",.!"))


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


def keeps_closing(text: str, habits: Habits) -> bool:
    """Return True if a line near the end of a text may be a closing still, whatever stands around it, or if
    its last line is a name.
    """
    *above, last = text.strip().splitlines() or [""]
    if above and WRITER.fullmatch(last.strip()):
        return True
    kinds = [kind for kind in (MAY_CLOSE, CLOSING_LINE, SIGNED, habits.closings) if kind]
    return any(kind.match(line) for kind in kinds for line in text.splitlines()[-LAST_LINES:])


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
    signature = SIGNATURE.search(text) if every else signature_of(text, is_sure=True)
    if signature:
        notes["signatures"] += 1
        text = text[: signature.start()].rstrip()
    postscript = POSTSCRIPT.search(text, max(0, len(text) - CLOSING_END))
    end = postscript.start() if postscript else len(text)
    closing = closing_of(text[:end], habits) or short_closing_of(text[:end])
    if postscript and not closing:  # It may stand above the closing.
        end = len(text)
        closing = closing_of(text, habits) or short_closing_of(text)
    # A line that was learned from other texts may be all that this one says.
    if closing and closing.re is habits.closings and not says_something(text[: closing.start()]):
        closing = None
    if closing:
        notes["closings"] += 1
        added = _added_below(text[closing.start() : end], habits)
        if added:
            notes[KEPT_BELOW] += 1
        parts = (text[: closing.start()].rstrip(), added, text[end:])
        text = "\n\n".join(filter(None, parts)).rstrip()
    return text


def _added_below(text: str, habits: Habits) -> str:
    """Return what a writer says below a closing, which is the first line of `text`, and below the name,
    company and address: all from the first line, or paragraph, that is something else, without notices.
    """
    lines = _without_notices(text).splitlines(keepends=True)
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


def _without_notices(text: str) -> str:
    """Return a text without notices of confidentiality: each to the end of its paragraph."""
    paragraphs = re.split(r"(\n[ \t]*\n)", text)
    return "".join(_before_notice(paragraph) for paragraph in paragraphs)


def _is_usual_end(line: str, habits: Habits) -> bool:
    """Return True for a line that many texts of the file end with, that says how the writer is reached, or
    that asks for a rating.
    """
    if _folded(line) in habits.endings or re.search(ASKS_FOR_RATING, line) or NUMBER.fullmatch(line.strip()):
        return True
    is_contact = bool(CONTACT.search(line) or REACHED_BY.match(line))
    return is_contact and not line.rstrip().endswith("?") and not _is_sentence(line)


def _is_sentence(line: str) -> bool:
    """Return True for a line that ends as a sentence does, and has words as one has."""
    words = [word for word in line.split() if word[:1].islower()]
    return line.rstrip().endswith((".", "!")) and len(words) >= SENTENCE_WORDS


def _is_address(lines: list[str]) -> bool:
    """Return True if the first of the lines is a name or a company in capitals, or of an address."""
    line = lines[0].strip()
    if line[-1] in ":?!":
        return False
    if re.search(r"\d", line) and not any(CITY.search(near) for near in lines[:2]):
        return False
    words = [word.strip(".,;:()|–-") for word in line.split()]
    small = [word for word in words if word[:1].islower() and word not in STREETS]
    return all(len(word) <= LITTLE for word in small) and 2 * len(small) <= len(words)


def signature_of(text: str, *, is_sure: bool) -> re.Match[str] | None:
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


def short_closing_of(text: str) -> re.Match[str] | None:
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
