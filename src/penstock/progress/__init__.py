"""How far event time has come: frontiers and late records."""
