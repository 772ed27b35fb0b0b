"""The rows of one worker: keys as bytes, rows grouped by key and in order, rows from users' functions."""
