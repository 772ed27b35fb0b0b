"""The checkpoint folder: its records and files, without an engine."""
