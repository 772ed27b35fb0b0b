"""Arrays, sorting, grouping and pages: tools for columns that know no streams."""
