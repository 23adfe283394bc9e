"""ROUGE-L (Lin 2004) by the library `rouge-score`, with words of every script."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from pipeline.scoring.score import Score

# the library's own tokens are a-z and 0-9 alone, so that Chinese against Chinese would score 0; for ASCII both are the same.
# Han and Kana are written without spaces: a character each
HAN = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
WORD = re.compile(f"[{HAN}]|[^\\W_{HAN}]+")


class Words:
    """The tokenizer that `rouge-score` asks for."""

    def tokenize(self, text: str) -> list[str]:
        """Words in small letters."""
        return WORD.findall(text.lower())


def rouge_l(reference: str, answer: str, row: Mapping[str, Any]) -> Score:
    """F1 of the longest common subsequence of words, 0 to 1."""
    if not WORD.search(reference):
        raise ValueError("the reference has no words")
    return Score(float(_library().score(reference, answer)["rougeL"].fmeasure), bool(answer.strip()))


@cache
def _library() -> Any:
    from rouge_score.rouge_scorer import RougeScorer  # type: ignore[import-untyped]

    return RougeScorer(["rougeL"], tokenizer=Words())
