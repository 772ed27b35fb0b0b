"""Operators of a region: one per file, all on `penstock.operators.base.Operator`; no Spark."""
