"""A running flow shown to people."""
