"""Watch a training: in the terminal, as lines of text, or on a page of the loopback."""
