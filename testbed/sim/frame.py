"""What travels through a simulated fabric: a Packet with what switches and links note about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transport.packet import Packet

if TYPE_CHECKING:
    from testbed.sim.pfc import Ingress


class Frame:
    """size: bytes on a link. flow: hash of the 5-tuple. edge, slot: the destination's switch, and its port there. data:
    it is in the data class. arrives: at the end of its link; tail: when its last bit does, which is later where
    switches cut through. ingress: whose bytes it counts for in the switch that holds it, with PFC. following: the next
    one in the queue or on the link that it is in."""

    def __init__(self) -> None:
        self.packet: Packet = None  # type: ignore[assignment]
        self.size = 0
        self.flow = 0
        self.edge = 0
        self.slot = 0
        self.data = False
        self.arrives = 0
        self.tail = 0
        self.ingress: Ingress | None = None
        self.following: Frame | None = None


class Frames:
    """Frames to be used again."""

    def __init__(self) -> None:
        self.spare: Frame | None = None
        self.made = 0

    def take(self) -> Frame:
        """One that nobody uses. Whoever takes it sets every field but `ingress` and `following`, which are None."""
        frame = self.spare
        if frame is None:
            self.made += 1
            return Frame()
        self.spare = frame.following
        frame.following = None
        return frame

    def give(self, frame: Frame) -> None:
        """It has arrived, or was lost."""
        frame.packet = None  # type: ignore[assignment]
        frame.ingress = None
        frame.following = self.spare
        self.spare = frame


class Queue:
    """Frames in order. size: their bytes."""

    def __init__(self) -> None:
        self.first: Frame | None = None
        self.last: Frame | None = None
        self.size = 0

    def push(self, frame: Frame) -> None:
        if self.first is None:
            self.first = frame
        else:
            last: Frame = self.last  # type: ignore[assignment]
            last.following = frame
        self.last = frame
        self.size += frame.size

    def pop(self) -> Frame:
        """The first; there must be one."""
        frame: Frame = self.first  # type: ignore[assignment]
        self.first = frame.following
        frame.following = None
        self.size -= frame.size
        return frame
