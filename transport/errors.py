"""Errors say whose fault it is: ours, the peer's, or the device's."""

from __future__ import annotations


class PolyroceError(Exception):
    """Base of every error this project raises on purpose."""


class ConfigError(PolyroceError, ValueError):
    """A value the user gave is not allowed. The text names the field, the value and what is allowed."""


class LocalProtocolError(PolyroceError):
    """The caller asked for something the state does not allow. Nothing was changed."""


class QueueFullError(LocalProtocolError):
    """A work request was refused because its queue is at its depth. Nothing was queued."""


class RemoteProtocolError(PolyroceError):
    """The peer sent something that breaks the protocol."""


class WireError(RemoteProtocolError):
    """Bytes that are not a packet of ours. The only error the parser raises."""


class NegotiationError(RemoteProtocolError):
    """Two endpoints could not agree. The text names the parameter and both values."""


class NicError(PolyroceError):
    """A device or socket failed."""


class LinkDownError(NicError):
    """The way out is gone for now: an interface is down or its address or route removed. What was to be sent is lost,
    and the device works again when the way is back."""
