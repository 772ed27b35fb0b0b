"""Sources over Spark: which files and rows an epoch reads, their positions and their times."""
