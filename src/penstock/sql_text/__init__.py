"""Spark SQL as text: column types, expressions and checks of what a user writes."""
