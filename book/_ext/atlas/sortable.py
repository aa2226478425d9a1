"""A table that book/_assets/tables.js can search, filter and sort; without JavaScript it is a plain table with every row.

A row carries what can be filtered as `data-*` attributes. The controls are hidden until the script shows them.
"""

from dataclasses import dataclass, field

from atlas.html import escape


@dataclass(frozen=True)
class Column:
    """`sort` is "text" or "number", or empty for a column that cannot be sorted by."""

    title: str
    sort: str = ""


@dataclass(frozen=True)
class Filter:
    """A choice among the values of one `data-*` attribute of the rows: pairs of value and what the reader sees.

    A `setting` chooses what the cells show instead; its first option is what they show at first.
    """

    name: str
    label: str
    options: list[tuple[str, str]]
    setting: bool = False

    def choices(self) -> list[tuple[str, str]]:
        """The one with an empty value, which the address leaves out, comes first."""
        return [("", self.options[0][1]), *self.options[1:]] if self.setting else [("", "all"), *self.options]


@dataclass(frozen=True)
class Row:
    """Cells are HTML already. `sort` gives, by column number, what a cell sorts by where that is not its text."""

    anchor: str
    cells: list[str]
    data: dict[str, str] = field(default_factory=dict)
    sort: dict[int, str] = field(default_factory=dict)


def sortable(name: str, label: str, columns: list[Column], rows: list[Row], filters: list[Filter], things: str) -> str:
    """HTML of the controls and the table. `name` is the id of the table, which no heading of the page may have; `things` is what the rows are called when they are counted."""
    return f'{_controls(name, len(rows), filters, things)}\n{_table(name, label, columns, rows)}'


def _controls(name: str, total: int, filters: list[Filter], things: str) -> str:
    selects = "".join(
        f'<label>{escape(f.label)} <select name="{escape(f.name)}"{" data-setting" if f.setting else ""}>'
        + "".join(f'<option value="{escape(value)}">{escape(shown)}</option>' for value, shown in f.choices())
        + "</select></label>"
        for f in filters
    )
    return (
        f'<form class="mh-filter" hidden data-for="{name}">'
        f'<label>Search <input type="search" name="words" autocomplete="off" spellcheck="false"></label>{selects}'
        f'<button type="reset">Clear</button>'
        f'<output aria-live="polite" data-things="{escape(things)}">{total} {escape(things)}</output></form>'
    )


def _table(name: str, label: str, columns: list[Column], rows: list[Row]) -> str:
    head = "".join(
        f'<th role="columnheader" scope="col"{f""" data-sort="{column.sort}" """.rstrip() if column.sort else ""}>{column.title}</th>'
        for column in columns
    )
    body = "\n".join(_row(columns, row) for row in rows)
    # On a phone the rows become cards; the roles keep a table of it for those who listen.
    return (
        f'<div class="mh-table mh-cards" tabindex="0" role="group" aria-label="{escape(label)}">\n<table role="table" id="{name}">\n'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>\n<tbody role="rowgroup">\n{body}\n</tbody>\n</table>\n</div>'
    )


def _row(columns: list[Column], row: Row) -> str:
    data = "".join(f' data-{name}="{escape(value)}"' for name, value in row.data.items())
    cells = []
    for number, (column, cell) in enumerate(zip(columns, row.cells, strict=True)):
        key = f' data-key="{escape(row.sort[number])}"' if number in row.sort else ""
        if number == 0:
            cells.append(f'<th role="rowheader" scope="row" data-label="{escape(column.title)}"{key}>{cell}</th>')
        else:
            cells.append(f'<td role="cell" data-label="{escape(column.title)}"{key}>{cell}</td>')
    return f'<tr role="row" id="{row.anchor}"{data}>{"".join(cells)}</tr>'
