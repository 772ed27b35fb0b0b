"""Who owns what and what is committed: pure machines, no I/O, no clock, no Spark."""
