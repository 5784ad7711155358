"""Builds the hot modules; everything else about the distribution is in pyproject.toml.

POLYROCE_PURE=1 builds nothing and removes what an earlier build left beside the sources, so that interpreted means
interpreted. POLYROCE_REQUIRE_COMPILED=1 makes a failed build fatal; without it a failed build is reported and the
package runs interpreted. Typed modules must match each other, so a build leaves all extension modules or none.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

#: Modules compiled from their own .py file (attributes typed in the .pxd beside it).
HOT = [
    "cc.base",
    "cc.credit",
    "cc.dctcp",
    "cc.fixed",
    "cc.nscc",
    "cc.signals",
    "cc.swift",
    "testbed.sim.frame",
    "testbed.sim.host",
    "testbed.sim.loop",
    "testbed.sim.mix",
    "testbed.sim.nic",
    "testbed.sim.pfc",
    "testbed.sim.port",
    "testbed.sim.switch",
    "transport.arbiter",
    "transport.channel",
    "transport.clock",
    "transport.closing",
    "transport.connection",
    "transport.context",
    "transport.control",
    "transport.counters",
    "transport.credits",
    "transport.dormant",
    "transport.endpoint",
    "transport.flight",
    "transport.icrc",
    "transport.ledger",
    "transport.nic.loopback",
    "transport.nic.udp",
    "transport.octets",
    "transport.pacing",
    "transport.packet",
    "transport.path",
    "transport.paths",
    "transport.payloads",
    "transport.peer",
    "transport.placement",
    "transport.probes",
    "transport.receiver",
    "transport.recovery",
    "transport.responder",
    "transport.selectors",
    "transport.sender",
    "transport.sequence",
    "transport.starter",
    "transport.table",
    "transport.timers",
    "transport.wire",
    "transport.work",
]

#: Leaves that have no meaning without C, each with a plain-Python sibling behind the same interface.
LEAVES: list[str] = [
    "transport.nic._mmsg",
]

ROOT = Path(__file__).resolve().parent
PACKAGES = ("cc", "transport", "testbed")
GENERATED = Path("build/cython")
JOBS = min(2, os.cpu_count() or 1)
# Both modes must give the same bits: no contraction to fused multiply-add, no fast math, no machine-specific code.
# -O2 and no debug information keep the build short.
FLAGS = ["-O2", "-g0", "-ffp-contract=off", "-Wno-unused-function"]
# Division keeps Python's rounding and its ZeroDivisionError; indexes are not checked (CONTRIBUTING.md, hot modules).
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": False,
}


def enabled(variable: str) -> bool:
    """Whether an environment variable is set to anything but nothing or 0."""
    return os.environ.get(variable, "") not in ("", "0")


PURE = enabled("POLYROCE_PURE")
REQUIRED = enabled("POLYROCE_REQUIRE_COMPILED")


def remove_binaries(root: Path, keep: frozenset[str] = frozenset()) -> None:
    """Delete the extension modules of our packages under root, except those of the modules named in keep."""
    for package in PACKAGES:
        for path in [*root.glob(f"{package}/**/*.so"), *root.glob(f"{package}/**/*.pyd")]:
            parts = path.relative_to(root).parts
            if ".".join([*parts[:-1], parts[-1].partition(".")[0]]) not in keep:
                path.unlink()


class BuildExt(build_ext):
    """build_ext that translates the hot modules itself and leaves either the whole set or nothing."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or JOBS

    def run(self) -> None:
        if PURE:
            print("polyroce: interpreted, no modules compiled")
            return
        names = frozenset(HOT + LEAVES)
        for root in (ROOT, Path(self.build_lib)):
            remove_binaries(root, keep=names)
        whole = False
        try:
            super().run()
            whole = True
            print(f"polyroce: {len(names)} modules compiled")
        except Exception as error:
            if REQUIRED:
                raise
            print(f"polyroce: WARNING: not compiled, runs interpreted and much slower: {error}", file=sys.stderr)
        finally:
            if not whole:
                remove_binaries(ROOT)
                remove_binaries(Path(self.build_lib))
                self.extensions = self.distribution.ext_modules = []

    def build_extensions(self) -> None:
        self.check_compiler()
        print(f"polyroce: compiling {len(self.extensions)} modules", flush=True)
        self.translate()
        super().build_extensions()

    def check_compiler(self) -> None:
        """Compile one line against Python.h: a machine without a compiler learns it before the long translation."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "probe.c")
            source.write_text("#include <Python.h>\n")
            try:
                self.compiler.compile([str(source)], output_dir=folder, include_dirs=self.include_dirs)
            except CompileError as error:
                raise CompileError(f"no C compiler that finds Python.h ({error})") from None

    def translate(self) -> None:
        """Turn every .py and .pyx into C; only what is out of date, everything when this file changed."""
        from Cython.Build import cythonize

        written = [path.stat().st_mtime for path in GENERATED.glob("**/*.c")]
        translated = cythonize(
            self.extensions,
            compiler_directives=DIRECTIVES,
            build_dir=str(GENERATED),
            nthreads=JOBS if sys.platform == "linux" else 0,
            force=bool(written) and min(written) < Path(__file__).stat().st_mtime,
            quiet=True,
        )
        sources = {extension.name: extension.sources for extension in translated}
        for extension in self.extensions:
            extension.sources = sources[extension.name]
            extension.depends = ["setup.py"]


def extensions() -> list[Extension]:
    """The modules to build, named by their Python or Cython sources."""
    if PURE:
        return []
    sources = {name: f"{name.replace('.', '/')}.py" for name in HOT}
    sources |= {name: f"{name.replace('.', '/')}.pyx" for name in LEAVES}
    return [Extension(name, [source], extra_compile_args=FLAGS) for name, source in sources.items()]


if __name__ == "__main__":
    if PURE and REQUIRED:
        sys.exit("polyroce: POLYROCE_PURE and POLYROCE_REQUIRE_COMPILED contradict each other")
    if PURE:
        remove_binaries(ROOT)
    setup(ext_modules=extensions(), cmdclass={"build_ext": BuildExt})
