"""Matches enumerated apart from recognition: from maximal matches, in parts, by other workers."""
