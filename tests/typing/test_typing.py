"""The static types of `@batched` under mypy and pyright, both strict, as pyproject.toml sets them up.

The files beside this one hold their expectations as `assert_type` and as ignore comments; an ignore comment that
ignores nothing is an error too.
"""

import inspect
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from batchlib import batched
from batchlib._options import LIMITS
from batchlib._typing import Limits, Options

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
Errors = list[tuple[Path, int, str]]
FILES = sorted(path for path in HERE.glob("*.py") if path != Path(__file__))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MYPYPATH": str(ROOT), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def mypy(cache: Path, *paths: Path) -> Errors:
    """Where mypy finds errors, and which."""
    result = run("mypy", "--output=json", f"--cache-dir={cache}", f"--python-version={VERSION}", *map(str, paths))
    assert result.returncode in (0, 1), result.stdout + result.stderr
    found = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    errors = [entry for entry in found if entry["severity"] == "error"]
    return [(ROOT / error["file"], error["line"], error["message"]) for error in errors]


def pyright(cache: Path, *paths: Path) -> Errors:
    """Where pyright finds errors, and which. It keeps no cache."""
    result = run(
        "pyright", "--outputjson", "--pythonpath", sys.executable, "--pythonversion", VERSION, *map(str, paths)
    )
    assert result.returncode in (0, 1), result.stdout + result.stderr
    report = json.loads(result.stdout)
    assert report["summary"]["filesAnalyzed"] >= len(paths)
    return [
        (Path(entry["file"]), entry["range"]["start"]["line"] + 1, entry["message"])
        for entry in report["generalDiagnostics"]
        if entry["severity"] == "error"
    ]


@pytest.mark.parametrize("check", [mypy, pyright])
def test_types_are_exact(check: Callable[..., Errors], tmp_path: Path) -> None:
    assert [error for error in check(tmp_path, *FILES) if error[0] in FILES] == []


@pytest.mark.parametrize("check", [mypy, pyright])
def test_mistakes_are_found_and_nothing_else(check: Callable[..., Errors], tmp_path: Path) -> None:
    lines = (HERE / "mistakes.py").read_text().splitlines()
    expected = {number for number, line in enumerate(lines, start=1) if "# type: ignore[" in line}
    bare = tmp_path / "mistakes.py"
    bare.write_text("\n".join(re.sub(r"  # (type|pyright): ignore\[.*", "", line) for line in lines))
    errors = check(tmp_path / "cache", bare)
    assert len(expected) > 20
    assert {number for path, number, _ in errors if path == bare} == expected, errors


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_the_checkers_accept_is_accepted_at_decoration(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(HERE), *sys.path])
    assert runpy.run_path(str(path))["__doc__"]


def test_the_typed_options_are_those_of_the_run_time() -> None:
    parameters = inspect.signature(batched).parameters.values()
    named = {parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY}
    assert Options.__optional_keys__ == named
    assert Limits.__optional_keys__ == set(LIMITS)
