"""The engine over Spark: the only package that imports pyspark."""
