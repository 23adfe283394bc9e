"""What a completion is worth beside the others of its group, and the seed that it was drawn with.

The advantage is that of GRPO (arXiv:2402.03300, section 4.1.2): reward minus the group's mean, divided by the
group's standard deviation (n − 1, as TRL does). Without that division it is Dr. GRPO's (arXiv:2503.20783),
which doesn't favour questions that are nearly always, or nearly never, answered right.
"""

import hashlib
import math
import statistics
from collections.abc import Sequence

EPSILON = 1e-4  # TRL's, added to the standard deviation
SAME = 1e-8  # TRL's (`torch.isclose`): a smaller standard deviation is none


def advantages(rewards: Sequence[float], *, scaled: bool) -> list[float]:
    """The advantage of each completion of a group of G ≥ 2; `scaled` divides by the standard deviation."""
    mean = statistics.fmean(rewards)
    divisor = deviation(rewards) + EPSILON if scaled else 1.0
    return [(reward - mean) / divisor for reward in rewards]


def deviation(rewards: Sequence[float]) -> float:
    """The standard deviation of a group's rewards, with n − 1."""
    mean = statistics.fmean(rewards)
    return math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1))


def teaches(rewards: Sequence[float]) -> bool:
    """Whether a group's rewards differ: if not, each advantage is 0, and nothing is learned from it."""
    return deviation(rewards) > SAME


def seed_of(seed: int, step: int, row: int, member: int) -> int:
    """The sampler's seed, 31 bits, of completion `member` of `row`'s group in the round before `step`."""
    digest = hashlib.sha256(f"{seed} {step} {row} {member}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
