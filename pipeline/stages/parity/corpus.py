"""Strings on which tokenizers differ: tokens, Unicode blocks, digits, white space, code, emoji, real text."""

import random
import sys
import unicodedata
from collections.abc import Iterator
from itertools import chain, islice, product
from typing import Any

from pipeline.stages.parity.conversations import CONTENTS

ALL = 100_000  # number of strings from which on all tokens and all of Unicode are included
TOGETHER = 4096  # tokens decoded per call
RUN = 8  # neighboring characters of a Unicode block per string
UNSEEN = ("Cn", "Co", "Cs")  # unassigned, private, surrogate: not text
SPACES = (" ", "\t", "\n", "\r\n", "\r", "\u00a0", "\u3000", "\u2003", "\u2028", "\u0085", "\u200b", "\ufeff")
# strings in addition to the contents of conversations
SNIPPETS = (
    "for (int i=0;i<n;++i) { a[i]+=b[i]*0x1F; } // done\n",
    "SELECT * FROM t WHERE a='b' AND c<>1e-5;",
    '<div class="x">&amp;</div>\r\n',
    '{"a": [1, 2.50, -3e+10, true, null], "b": {"c": "\\u00e9\\n"}}',
    "$ git log --oneline | grep -v '^#' > /tmp/x",
    "\\frac{a}{b} \\leq \\sqrt{x^2}",
    "| a | b |\n|---|:-:|\n| 1 | **2** |",
    "https://example.org/a_b?c=d&e=%20f#g",
    "me+you@example.org",
    "C:\\Users\\x\\y.txt",
    "a=b==c===d!=e<=f>=g->h=>i::j...k--l__m",
    "''''\"\"\"\"````~~~~!!!!????....,,,,;;;;::::",
    "==========\n----------\n**********\n##########",
)
WORDS = (
    "I'm you're he'd we'll they've it's don't",
    "I'M YOU'RE HE'D WE'LL THEY'VE IT'S DON'T",
    "'S 'T 'Re 'vE 'M 'lL 'D 'x",
    "o’clock “quoted” ‘single’ – — …",
    "Straße Ärger naïve café Çağrı Łódź",
    "Γειά σου Κόσμε",
    "ខ្មែរ ភាសា",
    "e\u0301 a\u0308\u0323 q\u0307\u0323 Z͑ͫ̓a̴l͌g̶o̷",
    "\u202eRTL\u202c \u2066iso\u2069",
    "½ ① Ⅷ x² H₂O 10℃",
    "𝕬𝖇𝖈 𝟙𝟚𝟛 𐍈 𒀀 𓀀 🄰",
    "camelCaseWord snake_case_word kebab-case SHOUTED MiXeD",
    "supercalifragilisticexpialidocious" * 3,
)
EMOJI = (
    "🙂",
    "👩\u200d💻",
    "👨\u200d👩\u200d👧\u200d👦",
    "🏳️\u200d🌈",
    "🇩🇪🇫🇷",
    "👍🏽",
    "❤️",
    "☎︎",
    "1️⃣",
    "😶\u200d🌫️",
    "🦙🦙",
    "🏴\U000e0067\U000e0062\U000e007f",
)


def strings(tokenizer: Any, texts: list[str], count: int, *, seed: int = 0) -> Iterator[str]:
    """Yield strings in NFC: difficult ones written by hand, all single tokens, all of Unicode, then cuts of
    `texts` and mixtures until there are `count`.

    If `count` is below `ALL`, single tokens and Unicode are thinned in proportion. The result depends only on
    `seed` (and on Python's Unicode version). It is in NFC because stage curate writes all text in NFC and
    llama.cpp does not normalize.
    """
    step = max(1, ALL // count)
    hard = list(by_hand(tokenizer))
    fixed = [
        *hard,
        *islice(single_tokens(tokenizer), 0, None, step),
        *islice(unicode_runs(), 0, None, step),
    ]
    rng = random.Random(seed)  # noqa: S311 (no secret)
    pieces = [*hard, *EMOJI, *SPACES, *(" ", "\n") * 20]
    mixed = (mix(rng, texts, pieces) for _ in range(count - len(fixed)))
    return (unicodedata.normalize("NFC", text) for text in chain(fixed, mixed))


def by_hand(tokenizer: Any) -> Iterator[str]:
    """Yield texts on which pre-tokenizers are known to differ, and the tokenizer's added tokens among
    neighbors.
    """
    yield from (*CONTENTS, *SNIPPETS, *WORDS, *EMOJI)
    for length in range(1, 41):
        digits = "1234567890"[:length] if length <= 10 else "9876543210" * 4
        yield from (
            digits[:length],
            f"a{digits[:length]}b",
            f" {digits[:length]} ",
            f"-{digits[:length]}.{length}",
            f"{int(digits[:length]):,}",
        )
    for space, length in product(SPACES, (1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 100)):
        run = space * length
        yield from (
            run,
            f"{run}a",
            f"a{run}",
            f"a{run}b",
            f"1{run}2",
            f"a{run}\n{run}b",
            f"!{run}!",
            f"{run}\n",
        )
    for token in sorted(tokenizer.get_added_vocab()):
        yield from (
            f"a{token}b",
            f" {token} ",
            f"  {token}  ",
            f"{token}{token}",
            f"\n{token}\n",
            f"1{token}2",
            f"é{token}中",
            f"'{token}s",
            f".{token}.",
            token[:-1],
            token[1:],
            f"{token[:-1]} {token[-1:]}",
            token.upper(),
            f"a\n\n{token}\n\nb",
            f"\t{token}\t",
        )


def single_tokens(tokenizer: Any) -> Iterator[str]:
    """Yield every token of the vocabulary as text. Bytes that are not text by themselves become U+FFFD."""
    backend = tokenizer.backend_tokenizer
    for start in range(0, len(tokenizer), TOGETHER):
        ids = range(start, min(start + TOGETHER, len(tokenizer)))
        yield from backend.decode_batch([[number] for number in ids], skip_special_tokens=False)


def unicode_runs() -> Iterator[str]:
    """Yield every assigned character, `RUN` per string, and one of each run among letters, digits, spaces."""
    assigned = (
        chr(code) for code in range(1, sys.maxunicode + 1) if unicodedata.category(chr(code)) not in UNSEEN
    )
    while run := "".join(islice(assigned, RUN)):
        yield run
        yield f"a{run[0]}1 {run[-1]}b\n{run[0]}"


def mix(rng: random.Random, texts: list[str], pieces: list[str]) -> str:
    """Join two to five parts: cuts of real texts or of generated ones."""
    parts = []
    for _ in range(rng.randint(2, 5)):
        source = rng.choice(texts) if texts and rng.random() < 0.5 else rng.choice(pieces)
        start = rng.randrange(len(source)) if source else 0
        parts.append(source[start : start + rng.randint(1, 40)])
    return "".join(parts)
