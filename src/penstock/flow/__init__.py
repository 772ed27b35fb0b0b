"""What a user declares: streams, regions, sinks, checked at once; no Spark."""
