"""A group in one process: real members over a model of the store, in a world drawn from a seed, and checkers of what they handled."""
