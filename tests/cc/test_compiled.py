"""What only compiled modules can get wrong: a C caller has to reach methods written in plain Python."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cc.base
from cc.base import Environment
from cc.registry import make, resolve
from tests.cc.example import write_example
from tests.cc.loop import ack

ROOT = Path(cc.base.__file__).parents[1]
CALLER = """
from cc.base cimport Control
from cc.signals cimport AckSignal

def call(Control control, long long now, AckSignal ack):
    control.on_ack(now, ack)
    return control.window
"""
BUILD = """
from setuptools import Extension, setup
from Cython.Build import cythonize
setup(ext_modules=cythonize([Extension("caller", ["caller.pyx"])], include_path=[{root!r}], language_level=3))
"""

pytestmark = pytest.mark.skipif(str(cc.base.__file__).endswith(".py"), reason="cc is interpreted here")


def test_a_c_caller_reaches_a_users_plain_python_control(tmp_path: Path) -> None:
    (tmp_path / "caller.pyx").write_text(CALLER)
    (tmp_path / "setup.py").write_text(BUILD.format(root=str(ROOT)))
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "-i"], cwd=tmp_path, check=True, env=surroundings)
    spec = importlib.util.spec_from_file_location("caller", next(tmp_path.glob("caller*.so")))
    assert spec is not None
    assert spec.loader is not None
    caller = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(caller)
    env = Environment(4096, 10_000_000_000, 100_000_000, 1 << 20, 7)
    for name in ("dctcp", "swift", write_example(tmp_path)):
        control = make(resolve(name), None, env)
        before = control.window
        assert caller.call(control, 7, ack(before, rtt=1)) == control.window > before
