"""The checkpoint folder: its records and its files, without an engine."""
