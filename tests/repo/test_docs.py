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
