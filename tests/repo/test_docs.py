"""What the docs draw is what the code does."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/explanation/states.md"


def test_the_state_diagram_is_drawn_from_the_table(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts/state_diagram.py"), str(tmp_path / PAGE.name)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
    assert PAGE.read_text() == (tmp_path / PAGE.name).read_text(), "run `make docs`"


def test_the_core_prints_its_diagram(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_module("batchlib._core", run_name="__main__")
    assert capsys.readouterr().out in PAGE.read_text()
