"""What the policies reach, each held against its bound: `python benchmarks/policies.py`.

Sections 1 to 6 and 9 go through the simulator, which runs the production core, and are exact: every run prints the same
figures. Prints one table a section and ends with exit status 1 if a stated bound is missed. README.md says more.
"""

from __future__ import annotations

import sys

from agreement import real_time
from decisions import cost_of_a_decision
from fairness import fair_share, priority
from goodput import carried, learned, told
from judged import Workers, command
from mean_latency import greedy
from padding import length_aware

SECTIONS = (told, learned, greedy, fair_share, priority, length_aware, cost_of_a_decision, real_time, carried)


if __name__ == "__main__":
    sys.exit(command(__doc__, SECTIONS, Workers))
