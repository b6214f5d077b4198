"""What the docs draw and quote is what the code does and prints."""

import asyncio
import inspect
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


# Stand for what the demo imports: a model that does nothing, and bars that nobody sees.
STAND_INS = {
    "tqdm": "from unittest.mock import MagicMock as tqdm",
    "minilm": """
import numpy as np

TokenIds = list[int]

class MiniLM:
    def tokenize(self, text):
        return [1] * len(text)

    def embed(self, batch):
        return np.ones((len(batch), 2))

def sentences(count):
    return [f"sentence {number}" for number in range(count)]
""",
}


def demo_output(folder: Path) -> list[str]:
    for name, source in STAND_INS.items():
        (folder / f"{name}.py").write_text(source)
    path = os.pathsep.join(map(str, [folder, ROOT / "examples", ROOT]))
    program = "import demo; demo.LEAST_RATIO = 0; demo.main()"  # nothing is gained where nothing is done
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True, capture_output=True, text=True)
    return run.stdout.splitlines()


def shape(lines: list[str]) -> list[list[str]]:
    """The words of each line, any figure being as good as another."""
    return [re.sub(r"\d+(\.\d+)?(e[+-]\d+)?", "0", line).split() for line in lines]


def test_the_readme_quotes_the_demo_of_today(tmp_path: Path) -> None:
    between = r"<!-- demo output begins -->\n```text\n(.*?)```\n<!-- demo output ends -->"
    quoted = re.findall(between, (ROOT / "README.md").read_text(), re.DOTALL)[0].splitlines()
    printed = demo_output(tmp_path)
    assert quoted[:2] == printed[:2], "how many texts and runs"
    assert shape(quoted) == shape(printed), "run `make demo` and quote it"
    assert max(map(len, quoted)) <= 80, "more than a terminal is wide"


class Application:
    """As much of FastAPI as the page uses."""

    def __init__(self, lifespan: Callable[..., Any]) -> None:
        self.lifespan = lifespan
        self.routes: dict[str, Any] = {}

    def get(self, path: str) -> Callable[[Any], Any]:
        return lambda endpoint: self.routes.setdefault(path, endpoint)


def test_the_fastapi_application_runs_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    responses = SimpleNamespace(JSONResponse=lambda body, status: (status, body))
    monkeypatch.setitem(sys.modules, "fastapi", SimpleNamespace(FastAPI=Application, responses=responses))
    monkeypatch.setitem(sys.modules, "fastapi.responses", responses)
    page = (ROOT / "docs/how-to/serve-from-an-asyncio-application.md").read_text()
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for language, block in re.findall(r"^```(py|python)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        exec(block, namespace)
        if language == "py":  # what needs FastAPI
            break
    app, embed = namespace["app"], namespace["embed"]

    async def ask() -> list[Any]:
        routes = app.routes
        async with app.lifespan(app):
            length = await asyncio.to_thread(routes["/length"], "hello")
            return [length, await routes["/vector"]("hello"), await routes["/embed"]("hello")]

    assert asyncio.run(ask()) == [2, (200, {"vector": [5.0, 1.0]}), [5.0, 1.0]]
    assert list(inspect.signature(app.routes["/embed"]).parameters) == ["texts"]
    assert embed.statistics().closed
