"""Builds the hot modules; everything else about the distribution is in pyproject.toml.

POLYROCE_PURE=1 builds nothing. POLYROCE_REQUIRE_COMPILED=1 makes a failed build fatal; without it a failed build is
reported and the package runs interpreted.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

#: Modules compiled from their own .py file (attributes typed in the .pxd beside it).
HOT = [
    "cc.base",
    "cc.signals",
    "transport.clock",
    "transport.control",
    "transport.packet",
]

#: Leaves that have no meaning without C, each with a plain-Python sibling behind the same interface.
LEAVES: list[str] = []

ROOT = Path(__file__).parent
# Both modes must give the same bits: no contraction to fused multiply-add, no fast math, no machine-specific code.
FLAGS = ["-O2", "-ffp-contract=off", "-Wno-unused-function"]
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": False,
}


class BuildExt(build_ext):
    """build_ext that gives up with a warning unless POLYROCE_REQUIRE_COMPILED is set."""

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:
            if os.environ.get("POLYROCE_REQUIRE_COMPILED"):
                raise
            print(f"polyroce: the build failed, running interpreted: {error}", file=sys.stderr)


def extensions() -> list[Extension]:
    if os.environ.get("POLYROCE_PURE"):
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        if os.environ.get("POLYROCE_REQUIRE_COMPILED"):
            raise
        print("polyroce: Cython is missing, running interpreted", file=sys.stderr)
        return []
    modules = [Extension(name, [name.replace(".", "/") + ".py"], extra_compile_args=FLAGS) for name in HOT]
    modules += [Extension(name, [name.replace(".", "/") + ".pyx"], extra_compile_args=FLAGS) for name in LEAVES]
    for module in modules:
        module.depends = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("*/**/*.pxd"))
    return cythonize(modules, compiler_directives=DIRECTIVES, build_dir="build/cython", nthreads=0)


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildExt})
