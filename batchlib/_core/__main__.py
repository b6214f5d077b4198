"""Prints the state diagram that the docs show: `python -m batchlib._core`."""

from ._transitions import diagram

if __name__ == "__main__":
    print(diagram())
