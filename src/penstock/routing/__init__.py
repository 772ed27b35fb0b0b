"""Where a record goes: hashing of keys and the table from key groups to workers."""
