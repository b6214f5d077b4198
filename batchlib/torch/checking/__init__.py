"""Whether company changes results."""
