"""Which worker has a key: hashes, the table from bins to workers, strategies."""
