"""Spark sessions: those that penstock starts, those that it gets, and the Python of their workers."""
