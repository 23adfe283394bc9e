"""Windows of attention: the layers that attend to the last tokens alone, in config.json and in a header."""

# entries of layer_types in config.json
WINDOWED = "sliding_attention"
FULL = "full_attention"
# Field of a header with the number of tokens.
WINDOW = "attention.sliding_window"


def every(number: int, layers: int) -> list[str]:
    """Return layer_types: layers attend to a window, but every `number`-th attends to all tokens."""
    return [WINDOWED if layer % number else FULL for layer in range(1, layers + 1)]
