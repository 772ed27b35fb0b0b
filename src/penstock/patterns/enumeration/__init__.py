"""Matches enumerated apart from their recognition: from maximal matches, in parts, by other workers."""
