"""Which token each log-probability of llama-server belongs to.

Its list of probabilities leaves out tokens that end inside a UTF-8 character (`process_token` adds none until
the character is whole), so it is shorter than its list of tokens. The entries carry ids and keep their order.
"""

from collections.abc import Sequence


def aligned(tokens: Sequence[int], entries: Sequence[tuple[int, float]]) -> list[float | None]:
    """The log-probability of each of `tokens` from `entries`, (id, log-probability) of some of them in order.

    None where there is none, and where the entry could as well be another token's: an entry's place is
    certain if it is the same in the leftmost and in the rightmost alignment. Raises `ValueError` if
    `entries` are not among the tokens.
    """
    first = _leftmost(tokens, [token for token, _ in entries])
    last = _leftmost(tokens[::-1], [token for token, _ in entries[::-1]])
    found: list[float | None] = [None] * len(tokens)
    for number, (_, value) in enumerate(entries):
        if first[number] == len(tokens) - 1 - last[-1 - number]:
            found[first[number]] = value
    return found


def _leftmost(tokens: Sequence[int], wanted: Sequence[int]) -> list[int]:
    places, place = [], -1
    for token in wanted:
        place = next((i for i in range(place + 1, len(tokens)) if tokens[i] == token), -1)
        if place < 0:
            raise ValueError(f"token {token} has a probability, and is not among the tokens")
        places.append(place)
    return places
