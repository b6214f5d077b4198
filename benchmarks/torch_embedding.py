"""What the torch executor reaches with a real embedding model: `python benchmarks/torch_embedding.py`.

Prints one table a section and ends with exit status 1 if a stated bound is missed. README.md says more.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext

from judged import command


def main() -> int:
    try:  # here, so that the processes of section 5 import no model
        from torch_accelerator import accelerator
        from torch_memory import memory
        from torch_minilm import Bench
        from torch_schedules import schedules
        from torch_throughput import budgets, own_share, throughput
    except ModuleNotFoundError as error:
        sys.exit(f"{error}. `make bench` installs what is needed; README.md says how to do without make")
    sections = (throughput, budgets, own_share, memory, schedules, accelerator)
    return command(__doc__, sections, lambda quick: nullcontext(Bench(quick)))


if __name__ == "__main__":
    sys.exit(main())
