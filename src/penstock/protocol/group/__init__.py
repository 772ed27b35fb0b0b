"""Pure machines of a group: membership, assignment, reconciliation of one member. No clock, no I/O."""
