"""Scrambling of 64-bit numbers: hashes of switches, order of events at one time, coins of queues.

splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014, section 3).
"""

from __future__ import annotations

import hashlib

import cython


def mix(value: cython.ulonglong) -> cython.ulonglong:
    """A number of 64 bits that depends on every bit of `value`. One-to-one."""
    mask: cython.ulonglong = 0xFFFFFFFFFFFFFFFF
    first: cython.ulonglong = 0xBF58476D1CE4E5B9
    second: cython.ulonglong = 0x94D049BB133111EB
    value = ((value ^ (value >> 30)) * first) & mask
    value = ((value ^ (value >> 27)) * second) & mask
    return value ^ (value >> 31)


class Draws:
    """Random numbers of 64 bits, all from one seed."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def draw(self) -> cython.ulonglong:
        """The next one."""
        golden: cython.ulonglong = 0x9E3779B97F4A7C15
        mask: cython.ulonglong = 0xFFFFFFFFFFFFFFFF
        self.state = (self.state + golden) & mask
        return mix(self.state)


def seed_of(*parts: object) -> int:
    """64 bits out of anything that has a text: the same in every process."""
    text = " ".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
