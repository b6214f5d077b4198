"""What the README quotes of the demo is what the demo prints, with a model that does nothing."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Stand for what the demo imports: a model that does nothing, and bars that nobody sees.
STAND_INS = {
    "tqdm": "from unittest.mock import MagicMock as tqdm",
    "minilm": """
import torch

TokenIds = list[int]

class MiniLM:
    def tokenize(self, text):
        return [1] * len(text)

    def embed(self, ids, mask=None):
        return torch.ones(len(ids), 2)

    def embed_packed(self, ids, positions, lengths):
        return torch.ones(len(lengths), 2)

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
