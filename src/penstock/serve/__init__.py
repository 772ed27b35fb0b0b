"""Views of a running flow for people."""
