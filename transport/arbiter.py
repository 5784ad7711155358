"""Slow down or switch path? One small function, and the table of its answers.

Congestion on a minority of the paths sits in the core of the network: another path avoids it, the window stays.
Congestion on most paths at once sits where all of them meet, the last hop: no path avoids it, the window must answer.
So does congestion that is thinly spread over all paths, where those that stand out do so by chance.

    paths in use   congested        scattered   verdict
    any            0                no          NONE     nothing stands out: marks mean what they always mean
    n              1 to n/2, n > 1  no          SWITCH
    n              more than n/2    no          SLOW     a single path among them: there is nothing to switch to
    any            any              yes         SLOW
"""

from __future__ import annotations

import cython

NONE = 0
SWITCH = 1
SLOW = 2


def arbitrate(active: cython.longlong, congested: cython.longlong, scattered: cython.bint) -> cython.int:
    """The verdict for `congested` of `active` paths; scattered: paths that are not congested bring marks as well."""
    if scattered:
        return 2
    if congested <= 0:
        return 0
    if 2 * congested > active:
        return 2
    return 1
