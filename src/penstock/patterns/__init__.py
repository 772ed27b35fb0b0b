"""Complex event recognition: from a pattern's formula to matches.

In the order of the data: a front end (``ceql``: text to ``algebra``) → ``plan`` → ``automaton`` (``build``, then ``determine``)
→ ``recogniser`` (``tables``; ``kernel``: events to heaps of runs; ``matches``: heaps to matches) → ``result_columns`` (matches
to Arrow). ``batch`` is the worker of ``penstock.match``, ``operators.match`` that of a flow. ``enumeration`` spreads matches
over workers. ``reference`` is the slow oracle of the tests.
"""
