"""One suite over every place that a batched function can be called from."""
