"""One run of a flow above the engine: compile, one epoch after the other, commands, changed flows."""
