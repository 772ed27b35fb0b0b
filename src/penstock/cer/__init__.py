"""Complex event recognition: CEQL from text to matches.

In the order of the data's way: ``parsing`` (text to ``syntax``) → ``automaton`` → ``determine`` → ``tables`` → ``kernel`` (events to heaps
of runs) → ``matches`` (heaps to matches) → ``shape`` (matches to Arrow). ``recogniser`` owns the memory; ``batch`` is the worker of
``penstock.match``, ``operators.match`` that of a flow; ``work`` spreads enumeration. ``reference`` is the slow and obvious oracle.
"""
