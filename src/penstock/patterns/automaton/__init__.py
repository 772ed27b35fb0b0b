"""From a formula to a deterministic automaton, one step at a time."""
