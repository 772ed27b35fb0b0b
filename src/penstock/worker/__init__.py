"""One worker of a region in one epoch: input, waiting rows, keys on hold, the chain of steps."""
