"""The public face: about twenty names, written by hand, defined elsewhere, each with its documentation."""

import ast
import inspect
import types
from pathlib import Path

import pytest
from support import WITHOUT_TORCH

import batchlib
import batchlib.policies
import batchlib.protocols

FACE = Path(batchlib.__file__)
FACES = [batchlib, batchlib.policies, batchlib.protocols]
if not WITHOUT_TORCH:
    import batchlib.torch

    FACES.append(batchlib.torch)


def public_names(module: types.ModuleType) -> set[str]:
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }


@pytest.mark.parametrize("module", FACES, ids=lambda module: module.__name__)
def test_all_is_what_is_public(module: types.ModuleType) -> None:
    assert set(module.__all__) - {"__version__"} == public_names(module)
    assert len(set(module.__all__)) == len(module.__all__)


def test_the_face_stays_small() -> None:
    assert 15 <= len(batchlib.__all__) <= 30


def test_the_face_defines_nothing() -> None:
    docstring, *statements = ast.parse(FACE.read_text()).body
    assert isinstance(docstring, ast.Expr)
    assigned = set()
    for statement in statements:
        if isinstance(statement, ast.Assign):
            assigned |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
        else:
            assert isinstance(statement, ast.Import | ast.ImportFrom), ast.unparse(statement)
    assert assigned == {"__all__", "__version__"}


@pytest.mark.parametrize(
    ("module", "name"),
    [(module, name) for module in FACES for name in module.__all__ if name != "__version__"],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_every_public_name_says_what_it_is(module: types.ModuleType, name: str) -> None:
    value = getattr(module, name)
    documentation = vars(value).get("__doc__") if inspect.isclass(value) else inspect.getdoc(value)
    assert documentation, f"{module.__name__}.{name} has no docstring of its own"
    # A dataclass without a docstring is given its signature as one.
    assert not documentation.startswith(f"{name}("), f"{module.__name__}.{name} has no docstring of its own"
