"""Rules that judge the text of a row: refusals, the answers' language, garbage."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from pipeline.chat.rows import TURN_LISTS, BadRow, Row
from pipeline.core.errors import ConfigError, ToolError
from pipeline.metrics.refusals import LONGEST_REFUSAL, is_refusal
from pipeline.stages.curate.rules.changes import Changes, Rule

# --- refusals ---


def refusals(row: Row, changes: Changes) -> Row:
    """Reject a row whose last answer is nothing but a stock refusal in English.

    Only answers that are trained to be given count: not those with `train: false` or a thumb down.
    """
    field = "chosen" if "chosen" in row else "messages"
    last = row[field][-1] if row[field] else {}
    trained = last.get("train", True) and row.get("label", True) and not last.get("tool_calls")
    if (
        row["kind"] != "prompt"
        and last.get("role") == "assistant"
        and len(last["content"]) <= LONGEST_REFUSAL
        and trained
        and is_refusal(last["content"])
    ):
        raise BadRow("refusal", f"{field} {len(row[field])} is nothing but a stock refusal")
    return row


# --- language ---

FEWEST_LETTERS = 40  # Below this number of letters, a language is a guess.
# Probability from which on another language counts as detected (py3langid's, which are calibrated).
SUREST_DOUBT = 0.6
CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]+`|https?://\S+", re.DOTALL)
NO_LANGUAGE = "zxx"  # ISO 639: no linguistic content


def languages(wanted: tuple[str, ...]) -> Rule:
    """Return the rule that rejects rows with an answer that is surely in no language of `wanted` (ISO 639-1).

    Short texts and code pass. Raises `ToolError` if py3langid is missing, `ConfigError` for a language that
    it doesn't know.
    """
    # py3langid ships 97 languages and code in one file of 5 MB, and needs only numpy.
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier  # type: ignore[import-untyped]
    except ImportError as error:
        raise ToolError(
            "Q-CURATE-010",
            "curate.languages needs the package py3langid: run `make setup`, or set it to []",
        ) from error
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    unknown = sorted(set(wanted) - set(identifier.labels))
    if unknown:
        raise ConfigError(
            "Q-CURATE-011",
            f"curate.languages has {', '.join(unknown)}, which py3langid does not know: choose from "
            f"{', '.join(sorted(identifier.labels))}",
        )

    def rule(row: Row, changes: Changes) -> Row:
        for place, text in answers(row):
            prose = CODE.sub(" ", text)
            if sum(map(str.isalpha, prose)) >= FEWEST_LETTERS:
                code, probability = identifier.classify(prose)
                if code not in (*wanted, NO_LANGUAGE) and probability >= SUREST_DOUBT:
                    raise BadRow(
                        "language", f"{place} is in {code}, curate.languages has {', '.join(wanted)}"
                    )
        return row

    return rule


def answers(row: Row) -> Iterator[tuple[str, str]]:
    """Yield (place, text) to learn: trained assistant turns, chosen answers, trained segments."""
    field = "chosen" if "chosen" in row else "messages"
    for number, turn in enumerate(row[field], start=1):
        if turn["role"] == "assistant" and turn.get("train", True):
            yield f"{field} {number}", turn["content"]
    for number, segment in enumerate(row.get("segments", ()), start=1):
        if segment["train"]:
            yield f"segments {number}", segment["text"]


# --- garbage ---

SHORTEST_JUDGED = 100  # characters; a shorter text can be a table's row or a smiley
RUN = 10  # words, or characters of scripts without spaces
# UTF-8 that was decoded as Windows-1252 or Latin-1: "Ã©", "â€™", "ðŸ˜€", "Ð¿Ñ€", "Â ". The no-break space
# that French sets is left out elsewhere.
_TRAIL = "[\u0080-\u009f¡-ª¬-º¼-¿ŒœŠšŸŽžƒˆ˜–—‘’‚“”„†‡•…‰‹›€™]"
MOJIBAKE = re.compile(f"[ÂÃÄÅÎÏÐÑØÙ]{_TRAIL}|Â[\u00a0«»]|[à-ï]{_TRAIL}{_TRAIL}|ð[Ÿ\u009f]..")
FEWEST_BROKEN = 3  # places; one or two may be “café…”
# Shares of a text.
MOST_REPEATED = 0.6
FEWEST_READABLE = 0.25
MOST_BROKEN = 0.01


def garbage(row: Row, changes: Changes) -> Row:
    """Reject a row if a user's or assistant's text, or a segment, is garbage."""
    for field in (*TURN_LISTS, "segments"):
        for number, part in enumerate(row.get(field, ()), start=1):
            if part.get("role") in ("system", "tool"):
                continue
            reason = garbage_in(part["text"] if field == "segments" else part["content"])
            if reason:
                raise BadRow("garbage", f"{field} {number}: {reason}")
    return row


def garbage_in(text: str) -> str | None:
    """Return the reason why a text is garbage, with the figure and its limit; None if it is not.

    After the rules that MassiveText was filtered by (Rae et al. 2021, arXiv:2112.11446, table A1): the share
    of words with letters, and of repeated n-grams. The limits are far looser, because theirs are for long
    prose, and chats contain code, tables and songs. The check for broken encoding is our own.
    """
    long = len(text) >= SHORTEST_JUDGED
    shares = (
        ("of its characters are broken encoding", _broken(text), MOST_BROKEN, True),
        ("of its characters are letters or digits", _readable(text) if long else 1.0, FEWEST_READABLE, False),
        (
            f"of it stands in runs of {RUN} words that come again and again",
            _repeated(text) if long else 0.0,
            MOST_REPEATED,
            True,
        ),
    )
    for name, share, limit, most in shares:
        if share > limit if most else share < limit:
            return f"{share:.1%} {name}, the {'most' if most else 'least'} is {limit:.0%}"
    return None


def _broken(text: str) -> float:
    if text.isascii():
        return 0.0
    places = [*MOJIBAKE.findall(text), *("\ufffd" * text.count("\ufffd"))]
    return sum(map(len, places)) / len(text) if len(places) >= FEWEST_BROKEN else 0.0


def _readable(text: str) -> float:
    """Return the share of letters, digits and their marks among all characters but white space.

    Indic marks are not letters to Python.
    """
    shown = "".join(text.split())
    return sum(map(str.isalnum, shown)) / len(shown) if shown else 0.0


def _repeated(text: str) -> float:
    """Return the share of words (long words: characters) in runs of `RUN` that occur three times or more."""
    units: Sequence[str] = text.split()
    if len(text) > 20 * len(units):
        units = text
    runs = list(zip(*(units[start:] for start in range(RUN)), strict=False))
    counts = Counter(runs)
    covered = 0
    end = 0
    for start, run in enumerate(runs):
        if counts[run] > 2:
            covered += start + RUN - max(start, end)
            end = start + RUN
    return covered / len(units) if units else 0.0
