"""Slow down or switch path? One small function.

Congestion on a minority of the paths sits in the core of the network: another path avoids it; the window stays.
Congestion on most paths at once sits where all of them meet, the last hop: no path avoids it, so the window must
answer.

    paths in use   congested   verdict
    any            0           NONE
    1              1           SLOW     there is nothing to switch to
    n              <= n/2      SWITCH
    n              >  n/2      SLOW
"""

from __future__ import annotations

import cython

NONE = 0
SWITCH = 1
SLOW = 2


def arbitrate(active: cython.longlong, congested: cython.longlong) -> cython.int:
    """The verdict for `congested` of `active` paths; see the table above."""
    if congested <= 0:
        return 0
    if active <= 1 or 2 * congested > active:
        return 2
    return 1
