"""Speed and memory of the simulator: packet-hops a second, for permutations on leaf-spine fabrics.

    python -m tests.benchmarks.simulator [ROW ...]

Every row is a process of its own. A packet-hop is one data packet on one link; ACKs, trimmed headers and whatever else
the control class carries are not counted. Prints one JSON object a row: `run_s` is the time of the whole run, from a
parsed scenario to its result, `peak_mib` the largest resident set.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

from testbed import runner, scenario
from testbed.progress import Silent
from testbed.report import compiled

#: Of each row: hosts, bytes of a flow, control, selector.
ROWS = {
    "w2-8mb": (128, 8_000_000, "nscc", "mixed"),
    "w2-8mb-credit": (128, 8_000_000, "credit", "mixed"),
    "w2-2mb": (128, 2_000_000, "nscc", "mixed"),
    "hosts-1024": (1024, 2_000_000, "nscc", "mixed"),
    "hosts-8192": (8192, 1_000_000, "nscc", "mixed"),
}
DEFAULT = ("w2-8mb", "w2-8mb-credit", "hosts-1024")

TEXT = """
name = "{name}"
summary = "a permutation"
timeout_s = 3600
[transport]
cc = "{cc}"
selector = "{selector}"
paths = 128
[fabric]
kind = "leaf_spine"
rate_gbps = {rate}
cable_us = 1
phantom = true
[workload]
kind = "permutation"
ranks = {hosts}
messages = 1
size = {size}
"""


def measure(row: str) -> dict[str, object]:
    """Run a row in this process."""
    hosts, size, cc, selector = ROWS[row]
    rate = 400 if hosts == 8192 else 100
    text = TEXT.format(name=row, cc=cc, selector=selector, rate=rate, hosts=hosts, size=size)
    parsed = scenario.parse(text, row)
    start = time.perf_counter()
    [variant] = runner.run(parsed, "sim", Silent()).variants
    spent = time.perf_counter() - start
    hops = variant.metrics["packet_hops"]
    assert hops is not None
    return {
        "row": row, "hosts": hosts, "bytes_a_flow": size, "cc": cc, "selector": selector, "compiled": compiled(),
        "packet_hops": hops, "run_s": round(spent, 2), "packet_hops_per_s": round(hops / spent),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "virtual_us": round(sum(record.duration for record in variant.phases) / 1e6, 1),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", default=DEFAULT, metavar="ROW", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--here", action="store_true", help="in this process, for a profiler")
    options = parser.parse_args()
    for row in options.rows:
        if row not in ROWS:
            parser.error(f"{row}: rows are {', '.join(ROWS)}")
        if options.here:
            print(json.dumps(measure(row)), flush=True)
        else:
            subprocess.run([sys.executable, "-m", "tests.benchmarks.simulator", "--here", row], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
