"""Event time: frontiers and late records."""
