"""Redis and Valkey: connections, names of keys, scripts. The only folder that imports redis."""
