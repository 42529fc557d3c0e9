"""A back-office table: sortable, filtered and paginated, with row selection and an editable row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from rllm_gym.envs.web.sites.markup import Content, Markup, h, url
from rllm_gym.envs.web.sites.pages import page_links, paginate, sort_heading
from rllm_gym.envs.web.sites.site import Visit, whole_number
from rllm_gym.envs.web.sites.wording import plural

PER_PAGE = 10
# The bar with bulk actions is hidden until a row is selected.
_SCRIPT = Markup(
    "<script>(() => {const boxes = [...document.querySelectorAll('input[name=row]')];"
    "const bar = document.getElementById('bulk');if (!bar) return;const show = () => {"
    "const count = boxes.filter(box => box.checked).length; bar.hidden = !count;"
    "bar.querySelector('.count').textContent = count + ' selected';};"
    "boxes.forEach(box => box.addEventListener('change', show));show();})()</script>"
)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: Attribute of a row, name of the field in forms and of the sort column in the URL.
        label: Heading.
        sort: Sort key of a row, if it is not the attribute.
        cell: Content of a row's cell, if it is not the attribute.
        edit: In the edited row, whether the cell is a text field, or the options of its drop-down list.
        text: Text in the text field, if it is not the attribute.
        numeric: Whether the column is right-aligned.
    """

    name: str
    label: str
    sort: Callable[[Any], Any] | None = None
    cell: Callable[[Any], Content] | None = None
    edit: bool | Sequence[str] = False
    text: Callable[[Any], str] | None = None
    numeric: bool = False

    def content(self, row: Any, edited: bool) -> Content:
        value = getattr(row, self.name, None)
        if not edited or not self.edit:
            return self.cell(row) if self.cell else value
        label = f"{self.label} of {row.name}"
        if self.edit is True:
            text = self.text(row) if self.text else value
            return h("input", type="text", name=self.name, value=text, form="editing", aria_label=label)
        options = [h("option", option, value=option, selected=option == value) for option in self.edit]
        return h("select", options, name=self.name, form="editing", aria_label=label)


@dataclass(frozen=True)
class Table:
    """A table of one kind of rows.

    Attributes:
        path: Path of its page.
        noun: Noun for a row.
        columns: Columns from left to right.
        title: Returns the name of a row, for its checkbox and its link.
        bulk: Controls for many rows at once, in the bar above the table.
    """

    path: str
    noun: str
    columns: Sequence[Column]
    title: Callable[[Any], str]
    bulk: Sequence[Content] = field(default_factory=tuple)

    @property
    def editable(self) -> bool:
        return any(column.edit for column in self.columns)

    def render(self, rows: Sequence[Any], visit: Visit, shown: dict[str, str]) -> list[Content]:
        """Return the requested page of the table. ``shown`` contains the filters as in the URL."""
        sort = visit.asked("sort", 20)
        part = paginate(self._sorted(rows, sort), visit.page(), PER_PAGE)
        here = {**shown, "sort": sort, "page": part.page}
        editing = whole_number(visit.asked("edit")) if self.editable else None
        box = h("input", type="checkbox", data_check_all="row", aria_label="Select all on this page")
        headings = [
            h("th", box) if self.bulk else None,
            [
                h(
                    "th.number" if column.numeric else "th",
                    sort_heading(column.label, column.name, sort, self.path, **shown),
                    scope="col",
                )
                for column in self.columns
            ],
            h("th", "") if self.editable else None,
        ]
        body = [self._row(row, editing, here) for row in part.items]
        return [
            h("p.muted", f"{plural(part.total, self.noun)}, page {part.page} of {part.pages}"),
            self._bar(here),
            self._form(editing, here),
            h("div.table", h("table", h("thead", h("tr", headings)), h("tbody", body)))
            if body
            else h("div.card", "No row was found."),
            page_links(part, self.path, **shown, sort=sort),
            _SCRIPT,
        ]

    def _sorted(self, rows: Sequence[Any], sort: str) -> Sequence[Any]:
        column = next((column for column in self.columns if column.name == sort.lstrip("-")), None)
        if column is None:
            return rows
        return sorted(rows, key=column.sort or attrgetter(column.name), reverse=sort.startswith("-"))

    def _bar(self, here: dict[str, Any]) -> Markup | None:
        """Return the bar of buttons for the selected rows. Their checkboxes refer to this form by its id."""
        if not self.bulk:
            return None
        back = h("input", type="hidden", name="back", value=url(self.path, **here))
        return h(
            "form.bulk", back, h("span.count.strong"), *self.bulk, id="bulk", action=f"{self.path}/bulk", method="post"
        )

    def _form(self, editing: int | None, here: dict[str, Any]) -> Markup | None:
        """Return the form of the edited row. Its fields are in the cells of the table."""
        if editing is None:
            return None
        back = h("input", type="hidden", name="back", value=url(self.path, **here))
        return h("form", back, id="editing", action=f"{self.path}/{editing}", method="post")

    def _row(self, row: Any, editing: int | None, here: dict[str, Any]) -> Markup:
        edited = row.number == editing
        cells: list[Content] = []
        if self.bulk:
            label = f"Select {self.title(row)}"
            cells.append(
                h("td", h("input", type="checkbox", name="row", value=row.number, form="bulk", aria_label=label))
            )
        for column in self.columns:
            cells.append(h("td.number" if column.numeric else "td", column.content(row, edited)))
        if edited:
            saving = h("button", "Save", type="submit", form="editing")
            cells.append(h("td", saving, " ", h("a", "Cancel", href=url(self.path, **here))))
        elif self.editable:
            target = url(self.path, **here, edit=row.number)
            cells.append(h("td", h("a", "Edit", href=target, aria_label=f"Edit {self.title(row)}")))
        return h("tr", cells, class_="editing" if edited else None)
