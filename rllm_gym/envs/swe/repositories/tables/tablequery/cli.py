"""The command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tablequery.csvfile import read_csv, write_csv
from tablequery.errors import TableError
from tablequery.query import query


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tablequery", description="Ask a CSV file a question.")
    parser.add_argument("file")
    parser.add_argument("query", help="such as: select name where age >= 18 order by name")
    parser.add_argument("--csv", action="store_true", help="write CSV, not a table for people")
    parser.add_argument("--delimiter", help="what separates the cells; found from the header by default")
    options = parser.parse_args(arguments)
    try:
        result = query(read_csv(options.file, delimiter=options.delimiter), options.query)
    except (TableError, OSError) as error:
        print(f"tablequery: {error}", file=sys.stderr)
        return 2
    print(write_csv(result) if options.csv else result.to_text() + "\n", end="")
    return 0
