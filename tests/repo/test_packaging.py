"""What users install: built here from a copy of the checkout, offline, and opened."""

import email.message
import email.parser
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import batchlib

ROOT = Path(__file__).resolve().parents[2]
PACKAGED = ("batchlib", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", ".gitignore", "scripts", "Makefile")


def build(source: Path, target: str, destination: Path) -> Path:
    """The backend alone, in this environment: the same code that `pip install .` runs in an isolated one."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(destination)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (built,) = destination.iterdir()
    return built


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("checkout")
    for name in PACKAGED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(build(checkout, "wheel", tmp_path_factory.mktemp("wheel"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> email.message.Message:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return email.parser.Parser().parsestr(wheel.read(name).decode())


def test_the_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = [name for name in wheel.namelist() if ".dist-info/" not in name]
    sources = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "batchlib").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert set(names) == sources
    assert "batchlib/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel.namelist())


def test_the_core_needs_two_small_packages(metadata: email.message.Message) -> None:
    requirements = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert {re.split(r"[^A-Za-z0-9._-]", line)[0] for line in requirements} == {"anyio", "typing-extensions"}


def test_metadata(metadata: email.message.Message) -> None:
    assert metadata["Name"] == "batchlib"
    assert metadata["Version"] == batchlib.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert set(metadata.get_all("Provides-Extra", [])) == {
        "bench",
        "demo",
        "docs",
        "lint",
        "recipes",
        "simulation",
        "test",
        "test-torch",
        "testing",
        "torch",
        "trio",
        "uvloop",
    }


def test_the_version_stands_in_one_place() -> None:
    statement = f'__version__ = "{batchlib.__version__}"'
    assert (ROOT / "batchlib" / "__init__.py").read_text().count(statement) == 1
    others = [path for path in (ROOT / "batchlib").rglob("*.py") if path.name != "__init__.py"]
    literal = f'"{batchlib.__version__}"'
    assert not [path for path in [*others, ROOT / "pyproject.toml"] if literal in path.read_text()]


def test_the_sdist_builds_the_same_wheel(checkout: Path, wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    archive = build(checkout, "sdist", tmp_path / "sdist")
    with tarfile.open(archive) as sdist:
        sdist.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    with zipfile.ZipFile(build(source, "wheel", tmp_path / "wheel")) as rebuilt:
        assert rebuilt.namelist() == wheel.namelist()


def test_the_wheel_works_by_itself(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    script = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {sysconfig.get_path('purelib')!r}]\n"
        "import batchlib\n"
        "double = batchlib.batched(lambda numbers: [2 * number for number in numbers])\n"
        "print(batchlib.__file__, double.call(21))\n"
    )
    run = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == [str(tmp_path / "batchlib" / "__init__.py"), "42"]
