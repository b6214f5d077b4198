"""Writes the page with the states of a request, drawn from the transition table: `make docs` runs it."""

import sys
from pathlib import Path

from batchlib._core._transitions import diagram

PAGE = """# The states of a request

Drawn by `make docs` from the transition table in `batchlib/_core/_transitions.py`: change the table, not this page.
Every request ends in exactly one of the final states, whatever its neighbours do.

```mermaid
{diagram}
```
"""

if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(PAGE.format(diagram=diagram()))
    print(f"{page} is up to date with the table")
