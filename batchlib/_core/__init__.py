"""The core: decides, never waits. README.md in this folder is its theory of operation."""
