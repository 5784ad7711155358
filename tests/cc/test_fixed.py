from __future__ import annotations

import pytest

from cc.base import Environment
from cc.registry import make, resolve
from tests.cc.loop import Bottleneck, drive, environment

LINK = Bottleneck()


def window(env: Environment, **values: object) -> int:
    return make(resolve("fixed"), values, env).window


def test_it_is_one_bdp_unless_told_otherwise() -> None:
    env = environment(LINK)
    assert window(env) == env.bdp == 150_000
    assert window(env, window_bdps=2.0) == 300_000
    assert window(env, window_bytes=12_345) == 12_345


@pytest.mark.parametrize(("asked", "given"), [(1, 4096), (1 << 40, 8 << 20)])
def test_it_stays_between_a_segment_and_the_engines_limit(asked: int, given: int) -> None:
    assert window(environment(LINK), window_bytes=asked) == given


def test_nothing_moves_it() -> None:
    control = make(resolve("fixed"), None, environment(LINK))
    drive([control], LINK, 20)
    control.on_timeout(1 << 50)
    assert (control.window, control.rate) == (150_000, 0)
