"""A direct-mapped table of things with random numbers: one array access to find, no hashing, O(1) to add and drop.

A new number is drawn at random until its low bits name a free slot, so two live numbers never share a slot, and
doubling the table keeps that true.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import cython

if TYPE_CHECKING:
    import random


class Table:
    """Maps random numbers below `limit` (a power of two) to items. At most half of the slots are in use."""

    def __init__(self, rng: random.Random, limit: int) -> None:
        self.rng = rng
        self.bits = limit.bit_length() - 1
        self.used = 0
        self.mask = 15
        self.numbers = array("q", [-1]) * 16
        self.items: list[Any] = [None] * 16

    def __len__(self) -> int:
        return self.used

    def get(self, number: cython.longlong) -> Any:
        """The item of `number`, or None."""
        slot: cython.longlong = number & self.mask
        if self.numbers[slot] == number:
            return self.items[slot]
        return None

    def add(self, item: object) -> int:
        """Store `item` under a new random number and return it. Number 0 and 1 are never given (QPNs 0 and 1 are
        special)."""
        if 2 * (self.used + 1) > self.mask + 1:
            self._grow()
        while True:
            number = self.rng.getrandbits(self.bits)
            slot = number & self.mask
            if self.numbers[slot] == -1 and number > 1:
                self.numbers[slot] = number
                self.items[slot] = item
                self.used += 1
                return number

    def put(self, number: int, item: object) -> None:
        """Replace the item of a number that is in use."""
        self.items[number & self.mask] = item

    def remove(self, number: int) -> None:
        """Free `number` at once."""
        slot = number & self.mask
        if self.numbers[slot] == number:
            self.numbers[slot] = -1
            self.items[slot] = None
            self.used -= 1

    def values(self) -> list[Any]:
        """All items, in no order that means anything."""
        return [item for number, item in zip(self.numbers, self.items, strict=True) if number != -1]

    def _grow(self) -> None:
        size = 2 * (self.mask + 1)
        numbers = array("q", [-1]) * size
        items: list[Any] = [None] * size
        for number, item in zip(self.numbers, self.items, strict=True):
            if number != -1:
                numbers[number & (size - 1)] = number
                items[number & (size - 1)] = item
        self.mask = size - 1
        self.numbers = numbers
        self.items = items
