"""Questions to CSV files."""

from tablequery.csvfile import read_csv, write_csv
from tablequery.errors import QueryError, TableError
from tablequery.query import query
from tablequery.table import Table

__all__ = ["QueryError", "Table", "TableError", "query", "read_csv", "write_csv"]
