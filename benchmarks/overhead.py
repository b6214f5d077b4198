"""What batchlib costs, as ratios to floors and peers measured in the same run: `python benchmarks/overhead.py`.

Prints one table a section and ends with exit status 1 if a stated bound is missed. README.md says how to read it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from pathlib import Path

from runner import Runner
from sections import SECTIONS, Check, Table


def render(table: Table) -> str:
    lines = [["", *table.columns], *table.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = [table.title]
    for line in lines:
        cells = (value.rjust(width) for value, width in zip(line[1:], widths[1:], strict=True))
        text.append("   " + "   ".join([line[0].ljust(widths[0]), *cells]).rstrip())
    return "\n".join([*text, *(f"   {note}" for note in table.notes)])


def as_json(table: Table) -> dict[str, object]:
    samples = [
        {"workload": each.workload, "adapter": each.adapter, **dict(each.arguments), "rounds": rounds}
        for each, rounds in table.samples.values.items()
    ]
    checks = [{**dataclasses.asdict(check), "kept": check.kept} for check in table.checks]
    return {"title": table.title, "columns": table.columns, "rows": table.rows, "checks": checks, "samples": samples}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under a minute: fewer rounds and rows, the same bounds")
    parser.add_argument("--json", metavar="FILE", help="write the tables and every round's figures there too")
    parser.add_argument("--only", metavar="N,N", help="only these sections, by number")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with batchlib[bench] installed")
    given = parser.parse_args()
    numbers = [int(number) for number in given.only.split(",")] if given.only else range(1, len(SECTIONS) + 1)
    start = time.monotonic()
    runner = Runner(given.python, given.quick)
    print(", ".join(f"{name} {version}" for name, version in runner.installed.items()), flush=True)
    tables: list[Table] = []
    for number in numbers:
        tables.append(SECTIONS[number - 1](runner))
        print(f"{'':20}\r" if sys.stderr.isatty() else "", render(tables[-1]), sep="\n", flush=True)
    checks: list[Check] = [check for table in tables for check in table.checks]
    missed = [check for check in checks if not check.kept]
    print(f"\n{len(checks) - len(missed)} of {len(checks)} bounds kept", end=" ")
    print(f"in {time.monotonic() - start:.0f} s, load {os.getloadavg()[0]:.1f} at the end")
    for check in missed:
        print(f"MISSED  {check}")
    if given.json:
        report = {"installed": runner.installed, "quick": given.quick, "tables": [as_json(each) for each in tables]}
        Path(given.json).write_text(json.dumps(report, indent=1) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
