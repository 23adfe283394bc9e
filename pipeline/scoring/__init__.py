"""How answers are scored against their references, how sure a mean score is, and whether two models differ."""
