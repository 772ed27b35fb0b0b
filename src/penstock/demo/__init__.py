"""``penstock demo``: a year of flights through a flow with state, compared with pandas row by row.

Read next: `penstock.demo.flow`, the user's part; `penstock.demo.flights`, which runs it.
"""
