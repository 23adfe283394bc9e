"""N generated chats of which 20 % are near-duplicates whose truth is known.

A chat has 2 to 6 turns and some 140 words drawn from a Zipf vocabulary of pseudo-words. A planted row is a
copy of an earlier original with one or two edits: 1 to 4 words replaced, case, punctuation or white space
changed, a sentence appended or dropped, a greeting added, or nothing at all. Same arguments, same chats;
streamed, so any N fits in memory.
"""

import random
from collections.abc import Iterator

import numpy as np

PLANTED = 0.2  # share of the rows that are copies
POOL = 4096  # originals a copy may be made from; each new original takes the place of a random one
BLOCK = 4000  # rows drawn at a time
VOCABULARY = 20_000
GREETINGS = ["Hi! ", "Hello there, ", "Good morning. ", "Hey, quick question: "]
ENDS = [".", ".", ".", "?", "!"]

Chat = list[str]  # texts of the turns: user, assistant, user, …


def vocabulary(rng: np.random.Generator) -> list[str]:
    """`VOCABULARY` different pseudo-words of one to four syllables, shortest first (as in any language)."""
    syllables = [c + v for c in ["br", "st", "tr", *"bcdfgklmnprstvz"] for v in ["ai", "ou", *"aeiou"]]
    words: dict[str, None] = {}
    while len(words) < VOCABULARY:
        words.setdefault(
            "".join(syllables[i] for i in rng.integers(len(syllables), size=1 + rng.integers(4)))
        )
    return sorted(words, key=len)


def forms(words: list[str]) -> np.ndarray:
    """Each word plain, capitalized, before a comma, ending sentences: object array (3 + ENDS, VOCABULARY)."""
    return np.array(
        [
            words,
            [w.capitalize() for w in words],
            [w + "," for w in words],
            *([w + end for w in words] for end in ENDS),
        ],
        dtype=object,
    )


def originals(rng: np.random.Generator, words: list[str], rows: int) -> Iterator[Chat]:
    """`rows` chats with nothing in common but the language's frequent words."""
    ranks = 1 / (np.arange(VOCABULARY) + 2.7)  # Zipf-Mandelbrot
    draw = np.repeat(
        np.arange(VOCABULARY), np.maximum(1, np.round(ranks / ranks.sum() * (1 << 20))).astype(int)
    )
    spelled = forms(words)
    while rows > 0:
        chats = min(rows, BLOCK)
        turns = rng.choice([2, 4, 6], p=[0.6, 0.3, 0.1], size=chats)
        lengths = np.clip(rng.lognormal(np.log(135), 0.45, size=chats), 24, 600)
        # the assistant says three times as much
        asked = np.repeat(lengths / turns, turns) * np.tile([0.5, 1.5], turns.sum() // 2)
        sizes = np.maximum(3, rng.poisson(asked))
        stops = np.cumsum(sizes)
        ends = rng.random(stops[-1]) < 1 / 12
        ends[stops - 1] = True
        form = np.where(rng.random(stops[-1]) < 0.05, 2, 0)
        form[1:][ends[:-1]] = 1
        form[0] = 1
        form[ends] = 3 + rng.integers(len(ENDS), size=ends.sum())
        tokens = spelled[form, draw[rng.integers(len(draw), size=stops[-1])]].tolist()
        texts = [
            " ".join(tokens[stop - size : stop])
            for stop, size in zip(stops.tolist(), sizes.tolist(), strict=True)
        ]
        lasts = np.cumsum(turns).tolist()
        yield from (texts[last - count : last] for last, count in zip(lasts, turns.tolist(), strict=True))
        rows -= chats


def edited(chat: Chat, random: random.Random, words: list[str]) -> Chat:
    """A near-duplicate of `chat`: its copy after no, one or two edits."""
    chat = list(chat)
    for edit in random.sample(
        [_replace, _surface, _append, _drop, _greet], random.choice([0, 1, 1, 1, 1, 2, 2, 2])
    ):
        edit(chat, random, words)
    return chat


def _replace(chat: Chat, random: random.Random, words: list[str]) -> None:
    for _ in range(random.randint(1, 4)):
        turn = random.randrange(len(chat))
        tokens = chat[turn].split(" ")
        tokens[random.randrange(len(tokens))] = random.choice(words)
        chat[turn] = " ".join(tokens)


def _surface(chat: Chat, random: random.Random, words: list[str]) -> None:
    how = random.randrange(4)
    for i, text in enumerate(chat):
        if how == 0:
            chat[i] = text.lower()
        elif how == 1:
            chat[i] = text.replace("!", ".").replace(",", "")
        elif how == 2:
            chat[i] = text.replace(". ", ".  ") + "\n"
        else:
            chat[i] = text.replace(". ", ".\n\n")


def _append(chat: Chat, random: random.Random, words: list[str]) -> None:
    chat[-1] += " " + " ".join(random.choices(words, k=random.randint(4, 12))).capitalize() + "."


def _drop(chat: Chat, random: random.Random, words: list[str]) -> None:
    cut = chat[-1].find(". ") + 2
    chat[-1] = chat[-1][cut:] if 2 <= cut < 120 else chat[-1]


def _greet(chat: Chat, random: random.Random, words: list[str]) -> None:
    chat[0] = random.choice(GREETINGS) + chat[0]


def chats(rows: int, seed: int) -> Iterator[tuple[int, Chat]]:
    """(cluster, turns) of every row; rows of one cluster are near-duplicates of each other."""
    rng, dice = np.random.default_rng(seed), random.Random(seed)  # noqa: S311 (no secret is drawn)
    words = vocabulary(rng)
    fresh = originals(rng, words, rows)
    pool: list[tuple[int, Chat]] = []
    for cluster in range(rows):
        if pool and dice.random() < PLANTED:
            first, chat = dice.choice(pool)
            yield first, edited(chat, dice, words)
            continue
        chat = next(fresh)
        if len(pool) < POOL:
            pool.append((cluster, chat))
        else:
            pool[dice.randrange(POOL)] = (cluster, chat)
        yield cluster, chat


def pairwise_f1(truth: np.ndarray, found: np.ndarray) -> float:
    """F1 over all pairs of rows: a pair counts as found if both rows have the same label."""

    def pairs(*labels: np.ndarray) -> int:
        _, counts = np.unique(np.stack(labels), axis=1, return_counts=True)
        return int((counts * (counts - 1) // 2).sum())

    both = pairs(truth, found)
    return 2 * both / max(pairs(truth) + pairs(found), 1)
