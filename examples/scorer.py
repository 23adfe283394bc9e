#!/usr/bin/env python3
"""An external scorer (docs/rewards.md): 1 for the right answer, less a little for every word around it.

echo '{"id": "1", "prompt": [], "completions": ["4", "It is 4"], "answer": "4"}' | examples/scorer.py
"""

import json
import sys


def reward(completion: str, answer: str) -> float:
    """1 for the answer alone, 0.9 with one more word … 0 without it, or with ten more."""
    words = completion.split()
    return max(0.0, 1.1 - 0.1 * len(words)) if answer in words else 0.0


for line in sys.stdin:
    request = json.loads(line)
    rewards = [reward(one, request.get("answer", "")) for one in request["completions"]]
    print(json.dumps({"id": request["id"], "rewards": rewards}), flush=True)
