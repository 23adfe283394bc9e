"""When a difference between two models counts as more than chance."""

CHANCE = 0.05  # a difference whose p is not below it may be chance
