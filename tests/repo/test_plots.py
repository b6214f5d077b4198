"""The plots of the docs show what the simulator gives today; nothing is drawn here."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs/how-to/images"
SCRIPT = runpy.run_path(str(ROOT / "scripts/policy_plots.py"))
KEPT: dict[str, Any] = json.loads((IMAGES / "policies.json").read_text())


@pytest.mark.parametrize("name", list(SCRIPT["FIGURES"]))
def test_the_figures_are_those_of_the_simulator(name: str) -> None:
    assert SCRIPT["FIGURES"][name]() == KEPT[name], "run `make docs`"


@pytest.mark.parametrize("name", list(SCRIPT["FIGURES"]))
def test_each_plot_shows_the_figures_that_are_kept(name: str) -> None:
    shown = re.findall(r"figures (\w+) of policies\.json", (IMAGES / f"{name}.svg").read_text())
    assert shown == [SCRIPT["digest"](KEPT[name])], "run `make docs`"


def test_the_page_shows_every_plot() -> None:
    page = (ROOT / "docs/how-to/choose-a-policy.md").read_text()
    assert sorted(re.findall(r"\]\(images/(\w+)\.svg\)", page)) == sorted(SCRIPT["FIGURES"])
    assert sorted(path.name for path in IMAGES.glob("*.svg")) == sorted(f"{name}.svg" for name in SCRIPT["FIGURES"])
