"""The data path of one worker and the logic of one epoch; no Spark."""
