"""The text that a person wrote in a mail: without quoted mails, signature and closing.

Readers of mailboxes use it for all texts. For texts that may be no mail, `is_mail` says what surely is one.
"""

import re
from collections import Counter

from pipeline.intake.exports.mail_ends import (
    BEFORE_NAME,
    GREETING,
    SHORT_CLOSING,
    SHORT_END,
    SIGNATURE,
    UNKNOWN,
    WRITER,
    Habits,
    Notes,
    closing_of,
    short_closing_of,
    signature_of,
    without_end,
)
from pipeline.intake.exports.mail_quotes import (
    PASSED_ON,
    QUOTATION,
    UNDERLINE,
    before_quoted,
    drop_introduction,
    introduction_of,
    last_quotation,
    quoted_from,
)

# Words of a customer above a quoted mail that may be about it.
SPEAKS_OF_QUOTED = re.compile(
    r"\b(?:phishing|spam|scam|below|unten\w*|ci-dessous|hieronder|onderstaand\w*|poniż\w*|sotto|abajo|abaixo"
    r"|weiter(?:ge)?leit\w*|leite\b|forward\w*|fyi|zur (?:info|kenntnis)|transf[ée]r\w*|réexpédi\w*"
    r"|reenv[ií]\w*|inoltr\w*|door(?:ge)?stu\w*|vidarebefordr\w*|videresend\w*"
    r"|(?:nachricht|antwort) (?:vom|von|der|des)(?= [^\d])|suivante?|seguente|siguiente)\b"
    r"|\b(?:e-?mails?|mails?|courriels?)\b"
    # "Is this genuine?", "stimmt das?"; but not "Is this covered by the warranty?"
    r"|\b(?:this|that|these|das|dies\w*|ceci|cela|ça|esto|eso|questo)\b"
    r"(?:[^.!?\n]{0,40}\b(?:real|genuine|legit\w*|true|safe|yours|from you|mean\w*|correct|right|echt"
    r"|von (?:euch|ihnen)|betrug|seriös|stimmt|richtig|bedeute\w*|heißt|vrai|authentique|de vous|dire"
    r"|verdader[oa]|significa|vero)\b[^.!?\n]{0,20}|\s*)\?",
    re.IGNORECASE,
)
# A greeting that is a line of its own.
GREETING_LINE = re.compile(rf"{GREETING.pattern}[^\n.?]{{0,60}}[,!][ \t]*\n", re.IGNORECASE)
# In small letters. A text with none of these has nothing that the expressions above find.
SIGNS = (
    *("\n--", "\n__", "from:", "von:", "de:", "de :", "da:", "van:", "från:", "fra:"),
    *("wrote", "writes", "schrieb", "schreibt", "a écrit", "escribió", "ha scritto", "skrev", "schreef"),
    *("\n>", "escreveu", "napisał", "napsal", "írta", "kirjoitti", "od:"),
    *("grüße", "grüsse", "gruß", "gruss", "mfg", "regards", "best wishes", "yours ", "sincerely", "have a "),
    *("cordial", "distinti saluti", "atentamente", "atenciosamente", "groet", "bien à "),
    *("journée", "saludo", "saluti", "hoogachtend", "alvast", "voorbaat", "hälsning", "hilsen"),
    *("mvh", "mvg", "vänligen", "pozdrawiam", "poważaniem", "szacunku", "all the best", "yours in"),
    *("enviado d", "sent from", "ha det", "ha en", "greetings from", "cdlt", "cdt", "agréer"),
    *("envoyé", "get outlook", "salutations", "veuillez recevoir", "freundlichst"),
    *("warmly", "warm wishes", "allt gott", "miłego", "pozdr", "pobierz", "poufn"),
)


def may_be_mail(text: str) -> bool:
    """Return False for a text that surely is no mail. It is quick, since most texts are none."""
    folded = text.lower()
    if any(sign in folded for sign in SIGNS):
        return True
    end = text[-SHORT_END:]
    above, _, last = end.rstrip().rpartition("\n")
    if above and WRITER.fullmatch(last.strip()):
        return True
    return bool(SHORT_CLOSING.search(end) or BEFORE_NAME.search(end))


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
    with a colon, or that a question may be about ("Is this mail phishing?") or passes on.
    """
    quotation = QUOTATION.search(text)
    introduction = introduction_of(text)
    if not every and quotation:
        first = min(quotation.start(), introduction[0]) if introduction else quotation.start()
        own = without_end(text[:first].rstrip(), Counter(), every=False, habits=habits)
        is_about_it = bool(SPEAKS_OF_QUOTED.search(own) or PASSED_ON.search(text))
        if own.endswith(":") or (is_question and is_about_it):
            return text
    begin = quoted_from(text, introduction)
    is_quoted = begin is not None
    lines = text[:begin].split("\n")
    is_reply = every or introduction is not None
    last = 0 if is_reply else last_quotation(lines)
    kept: list[str] = []
    for number, line in enumerate(lines):
        if number < last or not line.startswith(">"):
            kept.append(line)
        elif not is_quoted or (kept and kept[-1].strip()):
            is_quoted = True
            drop_introduction(kept)
    notes["quotes"] += is_quoted
    words = "\n".join(kept).strip()
    return UNDERLINE.sub("", words) if is_quoted else words


def is_mail(text: str) -> bool:
    """Return True for a text that has what only mails have: a quoted mail below own words that greet or
    close, a signature with a contact or a notice, or both a greeting and a closing.
    """
    own = before_quoted(text)
    if GREETING_LINE.match(own) or _ends_with_closing(own) or signature_of(own, is_sure=False):
        return True
    return bool(signature_of(text, is_sure=False)) or bool(GREETING.match(text) and closing_of(text))


def ends_as_mail(text: str, habits: Habits) -> bool:
    """Return True if a text ends with a closing (also by the `habits` of its file), or surely is a mail."""
    return _ends_with_closing(text, habits) or is_mail(text)


def _ends_with_closing(text: str, habits: Habits = UNKNOWN) -> bool:
    """Return True if a text ends with a closing. Chats end with short ones too, but not with a name."""
    short = short_closing_of(text)
    return bool(closing_of(text, habits) or (short and short["name"]))
