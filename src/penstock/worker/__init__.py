"""One worker of a region in one epoch: its input, rows that wait, keys on hold, the chain of steps."""
