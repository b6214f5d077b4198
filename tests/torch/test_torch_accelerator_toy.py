"""Everything on an accelerator that torch takes for one: see `toy_suite`, which has a process of its own."""

import os
import subprocess
import sys
from pathlib import Path


def test_batched_functions_run_on_an_accelerator() -> None:
    suite = Path(__file__).with_name("toy_suite.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", str(suite)],
        capture_output=True,
        text=True,
        check=False,
        cwd=suite.parents[2],
        env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},  # those are for this run
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
