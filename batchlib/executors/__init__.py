"""What runs a batch: calls the user's function and turns what it gave back into one outcome per request."""

from ._batch_function import CollatedFunction
from ._bisecting import Bisecting
from ._function import FunctionExecutor

__all__ = ["Bisecting", "CollatedFunction", "FunctionExecutor"]
