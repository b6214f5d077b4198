"""Items into batches, and rows out of results."""
