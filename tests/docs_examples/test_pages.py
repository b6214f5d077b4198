"""The code blocks of the README and the docs run, page by page, and print what the page says they print.

A page's blocks run one after the other in one namespace, as a reader would type them. `print(...)  # text` promises
that text, "..." at its end standing for the rest; so do comment lines below a `print`, and a text block directly below
a code block.
"""

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from support import WITHOUT_TORCH

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n?```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)

# Comments behind a `print` that describe its output instead of quoting it.
PROSE = {
    "20, then 40",
    "2, 4 and 6, in any order",
    "how often a batch left because it was full, or because the executor was free",
}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def has_code(path: Path) -> bool:
    """Whether it has code that this run can execute."""
    text = path.read_text()
    return BLOCK.search(text) is not None and not (WITHOUT_TORCH and "batchlib.torch import" in text)


def promises(source: str) -> dict[int, str]:
    """What each `print` at that line is said to print."""
    comments = {
        token.start[0]: (token.string.removeprefix("#").strip(), token.line.lstrip().startswith("#"))
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    promised: dict[int, str] = {}
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"):
            continue
        last = node.end_lineno or node.lineno
        if last in comments:
            lines = [comments[last][0]]
        else:
            lines = []
            while comments.get(last + 1, ("", False))[1]:
                last += 1
                lines.append(comments[last][0])
        if lines and not PROSE.intersection(lines):
            promised[node.lineno] = "\n".join(lines)
    return promised


def keeps(printed: list[str], promised: str) -> bool:
    if promised.endswith("..."):
        return any(text.startswith(promised.removesuffix("...")) for text in printed)
    return promised in printed


@pytest.mark.parametrize("page", [page for page in PAGES if has_code(page)], ids=relative)
def test_the_examples_run_and_print_what_they_say(page: Path) -> None:
    text = page.read_text()
    printed: dict[int, list[str]] = defaultdict(list)
    output: list[str] = []

    def record(*values: object, sep: str = " ", end: str = "\n", **_: Any) -> None:
        line = sep.join(map(str, values))
        printed[sys._getframe(1).f_lineno].append(line)
        output.append(line + end)

    namespace: dict[str, Any] = {"__name__": "__main__", "print": record}
    for block in BLOCK.finditer(text):
        output.clear()
        source = "\n" * text.count("\n", 0, block.start(1)) + block[1]  # so that line numbers are the page's
        exec(compile(source, relative(page), "exec"), namespace)
        if block[2] is not None:
            assert "".join(output) == block[2]
        for line, promised in promises(source).items():
            assert keeps(printed[line], promised), (line, promised, printed[line])


def test_the_list_of_prose_is_no_longer_than_it_must_be() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    assert {prose for prose in PROSE if f"# {prose}\n" not in text} == set()


def test_a_broken_promise_is_found() -> None:
    """Guards the guard."""
    source = "print(1)  # 2\nprint(\n    3,\n)\n# 3\n# 4\nprint(5)  # no...\nprint(6)\n\n# 7\n"
    assert promises(source) == {1: "2", 2: "3\n4", 7: "no..."}
    assert keeps(["2"], "2")
    assert keeps(["nobody"], "no...")
    assert not keeps(["1"], "2")
    assert not keeps(["yes"], "no...")
