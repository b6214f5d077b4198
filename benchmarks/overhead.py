"""What batchlib costs, as ratios to floors and peers measured in the same run: `python benchmarks/overhead.py`.

Prints one table a section and ends with exit status 1 if a stated bound is missed. README.md says how to read it.
"""

from __future__ import annotations

import sys

from judged import options, report
from runner import Runner
from sections import SECTIONS


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--python", default=sys.executable, help="an interpreter with batchlib[bench] installed")
    given = parser.parse_args()
    runner = Runner(given.python, given.quick)
    print(", ".join(f"{name} {version}" for name, version in runner.installed.items()), flush=True)
    return report(given, SECTIONS, runner, installed=runner.installed)


if __name__ == "__main__":
    sys.exit(main())
