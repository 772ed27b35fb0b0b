"""What a region does with rows and state: one operator a file, all on `penstock.operators.base.Operator`; no Spark."""
