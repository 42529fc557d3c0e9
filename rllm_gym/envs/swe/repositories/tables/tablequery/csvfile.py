"""Tables in CSV files."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from tablequery.errors import TableError
from tablequery.table import Table
from tablequery.types import convert_column, show

DELIMITERS = ",;\t|"


def read_csv(path: str | Path, *, delimiter: str | None = None) -> Table:
    """Read a file with a header line. The delimiter is found from the header if it is not given."""
    # The signature that some spreadsheets write is no part of the first name.
    text = Path(path).read_text(encoding="utf-8-sig")
    return parse_csv(text, delimiter=delimiter, name=str(path))


def parse_csv(text: str, *, delimiter: str | None = None, name: str = "the text") -> Table:
    """Like :func:`read_csv`, from text. Blank lines are left out; a short row is filled with missing cells."""
    header_line = next((line for line in text.splitlines() if line.strip()), "")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter or guess_delimiter(header_line))
    rows: list[list[str]] = []
    header: list[str] | None = None
    for row in reader:
        if not any(cell.strip() for cell in row):
            continue
        if header is None:
            header = [cell.strip() for cell in row]
            continue
        if len(row) > len(header):
            raise TableError(f"{name}, line {reader.line_num}: {len(row)} cells for {len(header)} columns")
        rows.append(row + [""] * (len(header) - len(row)))
    if header is None:
        raise TableError(f"{name} is empty: there is no header line")
    for title in header:
        if header.count(title) > 1:
            raise TableError(f"{name} has two columns {title!r}")
    return Table({title: convert_column([row[place] for row in rows]) for place, title in enumerate(header)})


def guess_delimiter(header: str) -> str:
    """The delimiter that stands in the header most often, outside of quotes; a comma if there is none."""
    outside = "".join(header.split('"')[::2])
    best = max(DELIMITERS, key=outside.count)
    return best if outside.count(best) else ","


def write_csv(table: Table) -> str:
    """The table as CSV text with ``\\n`` at the ends of the lines."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.names)
    for row in table:
        writer.writerow([show(cell) for cell in row.values()])
    return out.getvalue()
