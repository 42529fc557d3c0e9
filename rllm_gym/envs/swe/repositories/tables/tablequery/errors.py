"""What can go wrong."""


class TableError(Exception):
    """A file is no table, or a table has no such column."""


class QueryError(TableError):
    """A query cannot be understood."""
