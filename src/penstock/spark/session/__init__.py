"""Spark sessions: those that penstock starts, those that it is given, and the Python of their workers."""
