"""All that penstock asks of Spark beyond its public names, and what differs between versions of PySpark.

Nothing outside this folder touches a Java object or a private name of PySpark (`tests/tidy/test_spark_internals.py`). Each module's docstring
tells, for each call, what it is for and what is lost where it is missing:

| module | subject |
|---|---|
| `plans` | DataFrames and the plans behind them |
| `queries` | running queries, their epochs and listeners |
| `found_files` | what Spark has found of a source's files and not given yet |
| `sessions` | copies of sessions, the active one, whether one was stopped |
| `zones` | what in a plan goes by the zone of its session |
| `local_files` | how Spark writes local files |
| `expressions` | what Java says of a regular expression |
| `connect` | which sessions are of Spark Connect |
| `arrow_types` | Spark's types as Arrow's and back: other arguments from 4.2 on |
| `shuffle` | rows to the partition whose number they carry: from 4.1 on by name |
| `python_sources` | sources in Python that are told where they stand: from 4.2 on |
"""
