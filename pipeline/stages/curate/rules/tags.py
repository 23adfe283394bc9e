"""The rule for pairs of tags around a part of an answer: half a pair means that the answer was cut, or that
something was cut out of it.

`<think>` without `</think>` would be trained as text, because control tokens inside text are broken up. So an
answer with half a pair is rejected for any base. An answer with a thought in its middle, which no template
can show, is rejected for a base that has the tokens. Pairs are `<think>`, and those among the base's added
tokens: `<box>` and `</box>`, `[BOX]` and `[/BOX]`, `<|box_start|>` and `<|box_end|>`. Tags in code, in
backticks, are words. The rule `calls` handles calls that are cut off. The rule `control_tokens` handles
tokens that begin and end turns or texts.
"""

import re
from collections.abc import Iterable

from pipeline.chat.rows import TURN_LISTS, BadRow, Row
from pipeline.stages.curate.rules.changes import Changes

REMEDY = "write the other half or leave the row out; a tag that is a word belongs in backticks"
FOR_ANY_BASE = ("<think>", "</think>")
SLASHED = re.compile(r"(?<=^[<\[])/")
END = re.compile(r"(?<=[<|｜_▁])end(?=[>|｜_▁])")
OF_TURNS = re.compile(r"</?s>|.*(?:im_|turn|header|role|text|sentence|message).*", re.IGNORECASE)
CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)


class Tags:
    """Rule for a tokenizer with these added tokens."""

    def __init__(self, added_tokens: Iterable[str]) -> None:
        tokens = list(added_tokens)
        self.closings = pairs_of([*FOR_ANY_BASE, *tokens])
        self.thinks = set(FOR_ANY_BASE) <= set(tokens)
        tags = [*self.closings, *self.closings.values()]
        self.tag = re.compile("|".join(map(re.escape, sorted(tags, key=len, reverse=True))))

    def __call__(self, row: Row, changes: Changes) -> Row:
        """Return the row. Raises `BadRow` if an answer has half a pair."""
        for field in TURN_LISTS:
            for number, turn in enumerate(row.get(field, ()), start=1):
                if turn["role"] != "assistant":
                    continue
                if self.tag.search(turn["content"]):
                    self.check(turn["content"], f"{field} {number}")
                if "reasoning_content" in turn:
                    self.check(turn["reasoning_content"], f"{field} {number} reasoning_content")
        return row

    def check(self, text: str, place: str) -> None:
        """Raise `BadRow` unless each tag has its other half, and no tag of a thought is left."""
        open_tags: dict[str, bool] = {}  # closing tag → True if its pair is open
        for tag in self.tag.findall(CODE.sub("", text)):
            if self.thinks and tag in FOR_ANY_BASE:
                raise BadRow(
                    "stray_tag", f"{place} holds {tag}, but no thought stands before its answer: {REMEDY}"
                )
            closing = self.closings.get(tag, tag)
            if open_tags.get(closing, False) == (tag in self.closings):
                raise BadRow("stray_tag", f"{place} holds {tag} without its other half: {REMEDY}")
            open_tags[closing] = tag in self.closings
        left = [closing for closing, is_open in open_tags.items() if is_open]
        if left:
            raise BadRow("stray_tag", f"{place} has no {left[0]} behind what it closes: {REMEDY}")


def pairs_of(tokens: Iterable[str]) -> dict[str, str]:
    """Return the pairs among the tokens: opening token → closing token."""
    names = {token for token in tokens if not OF_TURNS.fullmatch(token)}
    pairs = {}
    for token in sorted(names):
        openings = [SLASHED.sub("", token), END.sub("start", token), END.sub("begin", token)]
        pairs.update({opening: token for opening in openings if opening != token and opening in names})
    return pairs
