"""`scripts/venv.sh` on machines that lack something: what is missing, what to do, and no half success."""

import os
import shutil
import stat
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("sh", "awk", "cat", "chmod", "df", "dirname", "find", "grep", "ls", "mkdir", "rm")

# Stands for an interpreter: answers for its version, "makes" an environment that holds a copy of itself, and has a pip
# that does what the machine in question would let it do.
INTERPRETER = """#!/bin/sh
case "$*" in
    *"version_info[:2]"*) echo {version} ;;
    *"(3, 11)"*) [ {version} != 3.9 ] ;;
    *"-m venv"*) {venv}; mkdir -p "$3/bin" && cat "$0" >"$3/bin/python" && chmod +x "$3/bin/python" ;;
    *"-m pip install"*) {pip} ;;
esac
"""

RECORD = "echo pip >>installs"


@dataclass
class Machine:
    """A checkout of its own, and a PATH with the basic tools and nothing else."""

    root: Path
    variables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for folder in ("bin", "checkout/scripts"):
            (self.root / folder).mkdir(parents=True)
        for name in ("scripts/venv.sh", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, self.checkout / name)
        for tool in TOOLS:
            (self.root / "bin" / tool).symlink_to(shutil.which(tool) or f"no {tool} on this machine")

    @property
    def checkout(self) -> Path:
        return self.root / "checkout"

    def program(self, name: str, text: str) -> Path:
        path = self.root / "bin" / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IEXEC)
        return path

    def python(self, name: str = "python3", version: str = "3.12", pip: str = RECORD, venv: str = ":") -> Path:
        return self.program(name, INTERPRETER.format(version=version, pip=pip, venv=venv))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.root / "bin"), "HOME": str(self.root), **self.variables}
        command = [str(self.checkout / "scripts/venv.sh"), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    @property
    def installs(self) -> int:
        return (self.checkout / "installs").read_text().count("pip")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def refused(run: subprocess.CompletedProcess[str], *words: str) -> bool:
    return run.returncode == 1 and all(word in run.stderr for word in words)


def test_without_a_python(machine: Machine) -> None:
    assert refused(machine.run("test"), "no Python 3.11 or newer", "absent", "PYTHON=")


def test_an_old_python_is_named(machine: Machine) -> None:
    machine.python(version="3.9")
    assert refused(machine.run("test"), "python3 is 3.9")


def test_a_shim_that_does_not_run_is_no_python(machine: Machine) -> None:
    machine.program("python3", "#!/bin/sh\necho 'python3: command not found' >&2\nexit 127\n")
    machine.python("python3.11", version="3.11")
    assert machine.run("at-hand").stdout == "3.11\n"


def test_the_python_at_hand_comes_first(machine: Machine) -> None:
    machine.python("python3", version="3.12")
    machine.python("python3.13", version="3.13")
    assert machine.run("at-hand").stdout == "3.12\n"


def test_pythons_that_only_pyenv_knows(machine: Machine) -> None:
    interpreter = machine.python("elsewhere", version="3.13")
    home = machine.root / ".pyenv/versions/3.13.0/bin"
    home.mkdir(parents=True)
    shutil.move(interpreter, home / "python")
    assert machine.run("at-hand").stdout == "3.13\n"
    assert machine.run("test", "3.13").returncode == 0
    assert (machine.checkout / ".venv-3.13/installed-test").exists()


def test_a_named_python_must_work(machine: Machine) -> None:
    machine.python()
    machine.variables["PYTHON"] = "python3.99"
    assert refused(machine.run("test"), "PYTHON=python3.99 does not run")


def test_a_version_that_is_not_there(machine: Machine) -> None:
    machine.python(version="3.12")
    assert machine.run("test", "3.13").returncode == 3


def test_without_the_venv_module(machine: Machine) -> None:
    machine.python(venv="exit 1")
    assert refused(machine.run("test"), "-m venv' failed", "python3-venv")


def test_without_disk_space(machine: Machine) -> None:
    machine.python()
    (machine.root / "bin/df").unlink()
    machine.program("df", "#!/bin/sh\necho header\necho disk 9 9 102400 9 place\n")
    assert refused(machine.run("demo"), "no disk space", "1800 MB", "100 MB free", "make demo")
    assert not (machine.checkout / ".venv").exists()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("NewConnectionError: [Errno -3] Temporary failure in name resolution", ["no network", "again"]),
        ("OSError: [Errno 28] No space left on device", ["no disk space left", "again"]),
        ("ResolutionImpossible", ["pip failed", "pip.log", "again"]),
    ],
)
def test_a_failed_installation_says_why_and_is_tried_again(machine: Machine, line: str, words: list[str]) -> None:
    machine.python(pip=f"echo '{line}' >.venv/pip.log; exit 1")
    for _ in range(2):
        assert refused(machine.run("test"), *words)


def test_a_finished_installation_is_not_repeated(machine: Machine) -> None:
    machine.python()
    for _ in range(2):
        assert machine.run("test").returncode == 0
    assert machine.installs == 1
    # The weights of the demo's model are a second installation, without their dependencies.
    assert machine.run("demo").returncode == 0
    assert machine.installs == 3


def test_the_recipes_share_the_environment_of_the_demo(machine: Machine) -> None:
    machine.python()
    assert machine.run("recipes").returncode == 0
    assert machine.installs == 2  # the second one without dependencies
    assert (machine.checkout / ".venv/installed-recipes").exists()


def test_changed_requirements_are_installed(machine: Machine) -> None:
    machine.python()
    machine.run("test")
    changed = (machine.checkout / ".venv/installed-test").stat().st_mtime + 1
    os.utime(machine.checkout / "constraints.txt", (changed, changed))
    machine.run("test")
    assert machine.installs == 2


def test_a_moved_checkout_is_installed_anew(machine: Machine) -> None:
    machine.python()
    machine.run("test")
    (machine.checkout / ".venv/installed-test").write_text("/elsewhere")
    (machine.checkout / ".venv/leftover").touch()
    machine.run("test")
    assert machine.installs == 2
    assert not (machine.checkout / ".venv/leftover").exists()
