"""Arrays, sorting, grouping and pages: tools for columns that know nothing of streams."""
