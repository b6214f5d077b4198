"""What the policies reach, each held against its bound: `python benchmarks/policies.py`.

Sections 1 to 6 and 9 go through the simulator, which runs the production core, and are exact: every run prints the same
figures. Prints one table a section and ends with exit status 1 if a stated bound is missed. README.md says more.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from pathlib import Path

from agreement import real_time
from decisions import cost_of_a_decision
from fairness import fair_share, priority
from goodput import carried, learned, told
from judged import Judged, Workers
from mean_latency import greedy
from overhead import render
from padding import length_aware

SECTIONS = (told, learned, greedy, fair_share, priority, length_aware, cost_of_a_decision, real_time, carried)


def as_json(table: Judged) -> dict[str, object]:
    checks = [{**dataclasses.asdict(check), "kept": check.kept} for check in table.checks]
    return {
        "title": table.title,
        "columns": table.columns,
        "rows": table.rows,
        "checks": checks,
        "records": table.records,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under a minute: fewer cells and arrivals, same bounds")
    parser.add_argument("--json", metavar="FILE", help="write the tables and the figures behind them there too")
    parser.add_argument("--only", metavar="N,N", help="only these sections, by number")
    given = parser.parse_args()
    numbers = [int(number) for number in given.only.split(",")] if given.only else range(1, len(SECTIONS) + 1)
    start = time.monotonic()
    tables: list[Judged] = []
    with Workers(given.quick) as workers:
        for number in numbers:
            began = time.monotonic()
            tables.append(SECTIONS[number - 1](workers))
            print(f"{'':24}\r" if sys.stderr.isatty() else "", render(tables[-1]), sep="\n", flush=True)
            print(f"   {time.monotonic() - began:.0f} s", flush=True)
    checks = [check for table in tables for check in table.checks]
    missed = [check for check in checks if not check.kept]
    print(f"\n{len(checks) - len(missed)} of {len(checks)} bounds kept", end=" ")
    print(f"in {time.monotonic() - start:.0f} s, load {os.getloadavg()[0]:.1f} at the end")
    for check in missed:
        print(f"MISSED  {check}")
    if given.json:
        report = {"quick": given.quick, "tables": [as_json(table) for table in tables]}
        Path(given.json).write_text(json.dumps(report, indent=1) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
