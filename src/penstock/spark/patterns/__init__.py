"""Patterns over Spark: `penstock.match` and patterns over files."""
