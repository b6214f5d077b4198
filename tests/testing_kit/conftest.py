"""The plugin's fixtures. Asking for the plugin by name, as users do, is for the conftest at a suite's root."""

from batchlib.testing.pytest_plugin import immediate, virtual_time

__all__ = ["immediate", "virtual_time"]
