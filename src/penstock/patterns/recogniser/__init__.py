"""The automaton run over batches of events, and matches read out of what it leaves."""
