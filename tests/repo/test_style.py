"""Mistakes that reviews kept finding, as tests: sizes, clocks, globals, sleeps, and words that do not belong here."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = sorted((ROOT / "batchlib").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
POLICIES = {
    path for room in ("admission", "ordering", "dispatch") for path in (ROOT / "batchlib/policies" / room).glob("*.py")
}

MODULE_LINES, POLICY_LINES, FUNCTION_LINES = 350, 100, 60

# A test waits for an event, never for time to pass. Where real time is the subject, the sleep is listed with a reason.
REAL_TIME: dict[tuple[str, str], str] = {
    (
        "tests/lifecycle/test_loops_come_and_go.py",
        "test_neither_an_idle_batcher_nor_a_closed_loop_uses_the_processor",
    ): "processor time that is not used can only be seen while time passes",
}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def project_files() -> Iterator[Path]:
    """Every text file that a checkout holds: environments, caches and builds are not ours."""
    ours = {".ci", ".gitignore", ".github"}
    for path in sorted(ROOT.iterdir()):
        if (path.name.startswith(".") and path.name not in ours) or path.name in {"build", "dist"}:
            continue
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                yield file


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end, without the docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


@pytest.mark.parametrize("path", PACKAGE, ids=relative)
def test_modules_and_functions_fit_on_a_few_screens(path: Path) -> None:
    source = path.read_text()
    limit = POLICY_LINES if path in POLICIES else MODULE_LINES
    assert source.count("\n") <= limit
    long = {function.name: length(function) for function in functions(ast.parse(source))}
    assert not {name: lines for name, lines in long.items() if lines > FUNCTION_LINES}


@pytest.mark.parametrize("path", PACKAGE, ids=relative)
def test_every_file_says_why_it_exists(path: Path) -> None:
    source = path.read_text()
    assert not source or ast.get_docstring(ast.parse(source))


def offences(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="time"), attr="time" | "time_ns"):
                yield f"{node.lineno}: the wall clock jumps; intervals and deadlines are on the injected clock"
            case ast.ImportFrom(module="time", names=names) if any(name.name in {"time", "time_ns"} for name in names):
                yield f"{node.lineno}: the wall clock jumps; intervals and deadlines are on the injected clock"
            case ast.FunctionDef(name="__del__"):
                yield f"{node.lineno}: __del__ runs at any time in any thread; use close, or a weak reference"
            case ast.Global():
                yield f"{node.lineno}: state belongs to an object"
            case ast.ExceptHandler(type=None):
                yield f"{node.lineno}: a bare except hides what it catches"


@pytest.mark.parametrize("path", PACKAGE, ids=relative)
def test_what_the_package_never_does(path: Path) -> None:
    assert list(offences(ast.parse(path.read_text()))) == []


def sleeps(path: Path) -> Iterator[tuple[str, int]]:
    """The outermost function around each sleep of a finite time. `sleep(0)` lets others run and waits for nothing;
    `sleep(inf)` never returns."""
    for definition in ast.parse(path.read_text()).body:
        for node in ast.walk(definition):
            if not isinstance(node, ast.Call):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            waits = node.args and ast.unparse(node.args[0]) not in {"0", "math.inf", "inf", "float('inf')"}
            if called in {"sleep", "sleep_until"} and waits:
                yield getattr(definition, "name", "<module>"), node.lineno


def test_no_test_sleeps() -> None:
    found = {(relative(path), name) for path in TESTS for name, _ in sleeps(path)}
    assert found - REAL_TIME.keys() == set(), "wait for an event, or give the reason in REAL_TIME"
    assert REAL_TIME.keys() - found == set(), "no longer needed in REAL_TIME"


# Written in pieces that do not match themselves.
STRAY_WORDS = {
    "unfinished work": r"\b(?:TODO|FIXME|XXX|HACK)\b",
    "a path of one machine": r"(?<![\w.*])/(?:work|tmp|root|home)/\w",
    "how this came about instead of what it is": r"(?i)\b(?:this|the|my|last|next|previous)\s+session\b|\bas an AI\b",
}


@pytest.mark.parametrize("what", list(STRAY_WORDS))
def test_the_text_speaks_of_the_library_alone(what: str) -> None:
    pattern = re.compile(STRAY_WORDS[what])
    found = []
    for path in project_files():
        if path == Path(__file__):
            continue
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue
        found += [f"{relative(path)}:{number}" for number, line in enumerate(lines, 1) if pattern.search(line)]
    assert not found, f"{what}: {found}"


def test_the_lints_catch_what_they_are_for(tmp_path: Path) -> None:
    """Guards the guards."""
    bad = "import time\ndef f():\n    global g\n    try:\n        g = time.time()\n    except:\n        g = 0\n"
    assert len(list(offences(ast.parse(bad)))) == 3
    sleepy = tmp_path / "sleepy.py"
    sleepy.write_text("async def test():\n    await trio.sleep(0.1)\n    await asyncio.sleep(0)\n")
    assert list(sleeps(sleepy)) == [("test", 2)]
    (function,) = functions(ast.parse('def f():\n    """Two\n    lines."""\n    return 1\n'))
    assert length(function) == 2
