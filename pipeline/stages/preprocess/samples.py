"""A sequence for the eye: its tokens as text, which of them are trained and which are control tokens."""

from typing import Any

from pipeline.chat.tokens import IGNORED
from pipeline.stages.preprocess.tables import Written

LONGEST = 600  # tokens that are shown of a sequence


def sample(kind: str, name: str, written: Written, plain: Any) -> dict[str, Any]:
    """The sequence of this name in a file that was read back: kind, name, counts and its pieces, of which the first `LONGEST` tokens' are given."""
    found = written.take(name)
    assert found is not None, name
    ids, labels = (part.tolist() for part in found)
    trained = [label != IGNORED for label in labels]
    return {"kind": kind, "row": name, "tokens": len(ids), "trained": sum(trained), "pieces": pieces(ids[:LONGEST], trained[:LONGEST], plain)}


def pieces(ids: list[int], trained: list[bool], plain: Any) -> list[dict[str, Any]]:
    """{"text", "trained", "special", "tokens"} of each token, or of several neighbours that only together are characters (an emoji)."""
    special = set(plain.get_added_tokens_decoder())
    found, start = [], 0
    for end in range(1, len(ids) + 1):
        text: str = plain.decode(ids[start:end], skip_special_tokens=False)
        whole = end == len(ids) or trained[end] != trained[start] or ids[end] in special or "\N{REPLACEMENT CHARACTER}" not in text
        if whole:
            found.append({"text": text, "trained": trained[start], "special": ids[start] in special, "tokens": end - start})
            start = end
    return found
