"""The layers that CONTRIBUTING.md draws, held by walking every import statement of the package."""

import ast
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "batchlib"

# From the bottom to the top. A module may import from its own line and from the lines before it. A module belongs to
# the line that holds the longest matching name; one that belongs to none fails the test, so that a new room is put
# into its place on purpose.
LAYERS: list[set[str]] = [
    {"errors"},
    {"_core._transitions", "_core._request", "_core._batch", "_core._actions", "_core._events"},
    {"_core._latency_fit", "_core._latency_model"},
    {"_core._protocols", "_core._execution"},
    {"_core._statistics"},
    {"_core"},
    {"protocols"},
    {"_context"},
    {"policies"},
    {"executors"},
    {"torch.collation"},
    {"torch.device"},
    {"torch.executor"},
    {"torch.checking"},
    {"torch"},
    {"stepwise"},
    {"instrumentation"},
    {"runtimes"},
    {"_signature"},
    {"_intake"},
    {"_checks"},
    {"_options"},
    {"_map", "_split"},
    {"_live"},
    {"_typing", "_batched", "_method", "_decorator"},
    {"simulation"},
    {"jobs"},
    {"integrations"},
    {"tune"},
    {"cli"},
    {""},  # batchlib/__init__.py, the public face
    {"testing"},
]

# The core decides and never waits: it is told the time, and knows neither threads nor loops nor logs.
FORBIDDEN_IN_CORE = {
    "anyio", "asyncio", "concurrent", "logging", "multiprocessing", "numpy", "os", "queue", "random", "sched", "select",
    "signal", "socket", "subprocess", "threading", "time", "torch", "trio",
}  # fmt: skip


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports(name: str) -> Iterator[str]:
    """Every module that `name` imports, wherever in the file and for whatever purpose, by its absolute name."""
    path = MODULES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*base, *filter(None, [node.module])])
            for alias in node.names:
                submodule = f"{source}.{alias.name}"
                yield submodule if submodule in MODULES else source


def rank(name: str) -> int:
    inside = name.partition(".")[2]
    while True:
        for number, layer in enumerate(LAYERS):
            if inside in layer:
                # The public face is one module, not the home of whatever nobody placed.
                return number if inside or name == "batchlib" else -1
        inside = inside.rpartition(".")[0]


# What every policy that nests another nests unless it is told otherwise.
NESTED_BY_DEFAULT = "batchlib.policies.ordering._fifo"
SHARED_BY_POLICIES = [name for name in MODULES if name.startswith("batchlib.policies.structures.")]
POLICY_FILES = [
    name
    for name in MODULES
    if name.startswith("batchlib.policies.") and name.count(".") == 3 and name not in SHARED_BY_POLICIES
]
DECIDING = [name for name in MODULES if name.startswith(("batchlib._core", "batchlib.policies"))]


def test_every_module_has_a_layer() -> None:
    homeless = [name for name in MODULES if rank(name) < 0]
    assert not homeless, f"put these modules into a line of LAYERS: {homeless}"


@pytest.mark.parametrize("name", list(MODULES))
def test_no_import_goes_up(name: str) -> None:
    upward = [other for other in imports(name) if other in MODULES and rank(other) > rank(name)]
    assert not upward, f"{name} may not import from a layer above its own: {upward}"


@pytest.mark.parametrize("name", POLICY_FILES)
def test_no_policy_imports_another(name: str) -> None:
    """What several share is in `structures`."""
    others = {other for other in imports(name) if other in POLICY_FILES}
    assert not others - {name, NESTED_BY_DEFAULT}


@pytest.mark.parametrize("name", SHARED_BY_POLICIES)
def test_what_policies_share_knows_none_of_them(name: str) -> None:
    assert not [other for other in imports(name) if other in POLICY_FILES]


@pytest.mark.parametrize("name", DECIDING)
def test_what_decides_never_waits(name: str) -> None:
    waits = {other for other in imports(name) if other.partition(".")[0] in FORBIDDEN_IN_CORE}
    assert not waits


def test_optional_packages_stay_in_their_rooms() -> None:
    rooms = {
        "torch": ("batchlib.torch", "batchlib.integrations"),
        "trio": ("batchlib.runtimes._trio",),
        "numpy": ("batchlib.simulation", "batchlib.torch", "batchlib.tune"),
    }
    strays = [
        (name, other)
        for name in MODULES
        for other in imports(name)
        if not name.startswith(rooms.get(other.partition(".")[0], ("",)))
    ]
    assert not strays


def test_import_brings_in_nothing_heavy() -> None:
    """A bare interpreter without `site`, so that nothing else in the environment has imported anything before."""
    script = (
        "import sys\n"
        f"sys.path[:0] = [{str(ROOT)!r}, {sysconfig.get_path('purelib')!r}]\n"
        "import batchlib\n"
        "print(batchlib.__file__)\n"
        "print(*sorted({'anyio', 'asyncio', 'numpy', 'torch', 'trio'} & set(sys.modules)))\n"
    )
    run = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    location, heavy = run.stdout.split("\n")[:2]
    assert Path(location) == PACKAGE / "__init__.py"
    assert heavy == "", f"`import batchlib` imports {heavy}"


def test_the_walk_sees_what_it_should() -> None:
    """Guards the guard: a walker that finds no imports would pass everything."""
    assert "batchlib._core._request" in set(imports("batchlib.policies.ordering._earliest_deadline"))
    assert "batchlib.policies.ordering._fifo" in set(imports("batchlib.policies"))
    assert rank("batchlib.errors") < rank("batchlib._core._batcher") < rank("batchlib.policies.ordering._fifo")
    assert rank("batchlib.nobody") == -1
