"""What policies share: ordered collections, lines that take turns, and the search for a batch in time."""
