"""Reorder the value heads of gated delta nets (arXiv:2412.06464), whose order is another in llama.cpp.

More than one value head may share a key head. transformers puts those of one key head side by side. The
converter puts the first of every key head first, then the second ones, so that llama.cpp repeats all keys at
once.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

INSIDE = ".linear_attn."
BY_WIDTH = ("in_proj_z",)  # rows: those of each value head
BY_HEAD = ("in_proj_a", "in_proj_b", "A_log", "dt_bias")  # rows: one for each value head
BEHIND_KEYS = ("in_proj_qkv", "conv1d")  # rows: queries and keys, then those of each value head
COLUMNS = ("out_proj",)


@dataclass(frozen=True)
class DeltaHeads:
    """Numbers of heads of queries (and keys) and of values, and the width of one."""

    keys: int
    values: int
    key_width: int
    value_width: int

    def rows(self, parameter: str) -> Any:
        """Return transformers' row number of each row in the file; None if the order is the same."""
        part = self._part(parameter)
        if part in BY_HEAD:
            return self._order(1)
        if part in BY_WIDTH:
            return self._order(self.value_width)
        if part not in BEHIND_KEYS:
            return None
        before = 2 * self.keys * self.key_width
        return np.concatenate([np.arange(before), before + self._order(self.value_width)])

    def columns(self, parameter: str) -> Any:
        """Return transformers' column number of each column in the file; None if the order is the same."""
        return self._order(self.value_width) if self.grid(parameter) else None

    def grid(self, parameter: str) -> tuple[int, int] | None:
        """Return the number of key heads and of value heads of each, by which the columns of a parameter are
        ordered; None if the order is the same.
        """
        return (self.keys, self.values // self.keys) if self._part(parameter) in COLUMNS else None

    def _part(self, parameter: str) -> str:
        """Return a parameter's linear, or other part, in a delta net; empty if nothing moves."""
        if self.keys == self.values:
            return ""
        return parameter.partition(INSIDE)[2].removesuffix(".weight")

    def _order(self, width: int) -> Any:
        places = np.arange(self.values * width).reshape(self.keys, -1, width)
        return places.transpose(1, 0, 2).reshape(-1)


def to_file(values: Any, grid: tuple[int, int]) -> Any:
    """Return a tensor (…, C), all value heads' columns, in the file's order; see `DeltaHeads.grid`."""
    return values.unflatten(-1, (*grid, -1)).transpose(-3, -2).flatten(-3)


def from_file(values: Any, grid: tuple[int, int]) -> Any:
    """Return a tensor (…, C) of the file in transformers' order: the inverse."""
    return to_file(values, (grid[1], grid[0]))
