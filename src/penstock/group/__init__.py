"""An application as a member of a group: it shares a stream's partitions with others over Redis. No Spark."""
