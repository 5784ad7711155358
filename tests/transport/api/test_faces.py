"""The two faces are one interface: the same names, the same methods, the same parameters."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from transport.api import aio, blocking

CLASSES = [name for name in aio.__all__ if inspect.isclass(getattr(aio, name))]
#: What entering and leaving a `with` is called.
SYNC = {"__aenter__": "__enter__", "__aexit__": "__exit__"}


def interface(cls: type[Any]) -> dict[str, list[tuple[str, object]]]:
    """Public methods, by name, with the names and defaults of their parameters."""
    found = {}
    for name, member in inspect.getmembers(cls):
        if inspect.isfunction(member) and (not name.startswith("_") or name in SYNC or name in SYNC.values()):
            parameters = inspect.signature(member).parameters.values()
            found[SYNC.get(name, name)] = [(parameter.name, parameter.default) for parameter in parameters]
    return found


def test_both_faces_offer_the_same_names() -> None:
    assert sorted(aio.__all__) == sorted(blocking.__all__)


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_has_the_same_methods_on_both_faces(name: str) -> None:
    ours, theirs = interface(getattr(aio, name)), interface(getattr(blocking, name))
    assert ours == theirs
