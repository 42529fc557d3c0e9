"""Sources over grids of characters and tables of numbers."""

# The source text of the functions is also the reference solution: plain Python, without annotations.
# mypy: ignore-errors
# ruff: noqa: RUF007

from __future__ import annotations

import random

from rllm_gym.envs.code.families.building_blocks import Op, Source


def island_sizes(grid, touch):
    cells = {(r, c) for r, row in enumerate(grid) for c, character in enumerate(row) if character == "#"}
    steps = [(0, 1), (1, 0), (0, -1), (-1, 0)]
    if touch == "sides or corners":
        steps += [(1, 1), (1, -1), (-1, 1), (-1, -1)]
    sizes = []
    while cells:
        waiting, size = [cells.pop()], 0
        while waiting:
            r, c = waiting.pop()
            size += 1
            for dr, dc in steps:
                if (r + dr, c + dc) in cells:
                    cells.remove((r + dr, c + dc))
                    waiting.append((r + dr, c + dc))
        sizes.append(size)
    return sorted(sizes)


def grid_distances(grid):
    if not grid or grid[0][0] == "#":
        return []
    reached, frontier, counts = {(0, 0)}, [(0, 0)], []
    while frontier:
        counts.append(len(frontier))
        following = []
        for r, c in frontier:
            for dr, dc in ((0, 1), (1, 0), (0, -1), (-1, 0)):
                place = (r + dr, c + dc)
                inside = 0 <= place[0] < len(grid) and 0 <= place[1] < len(grid[0])
                if inside and grid[place[0]][place[1]] != "#" and place not in reached:
                    reached.add(place)
                    following.append(place)
        frontier = following
    return counts


def neighbour_counts(grid):
    counts = []
    for r, row in enumerate(grid):
        for c, character in enumerate(row):
            if character == "#":
                around = [grid[i][j] for i in range(max(0, r - 1), min(len(grid), r + 2))
                          for j in range(max(0, c - 1), min(len(row), c + 2))]  # fmt: skip
                counts.append(around.count("#") - 1)
    return counts


def life(grid, generations, born, least, most):
    for _ in range(generations):
        following = []
        for r, row in enumerate(grid):
            line = ""
            for c, character in enumerate(row):
                around = sum(grid[i][j] == "#" for i in range(max(0, r - 1), min(len(grid), r + 2))
                             for j in range(max(0, c - 1), min(len(row), c + 2)))  # fmt: skip
                if character == "#":
                    line += "#" if least <= around - 1 <= most else "."
                else:
                    line += "#" if around == born else "."
            following.append(line)
        grid = following
    return [row.count("#") for row in grid]


def falling_stones(grid):
    fallen = []
    for column in zip(*grid):
        pieces = "".join(column).split("#")
        fallen.append("#".join("." * piece.count(".") + "o" * piece.count("o") for piece in pieces))
    return ["".join(row) for row in zip(*fallen)]


def turn_grid(grid):
    return ["".join(column)[::-1] for column in zip(*grid)]


def transpose_grid(grid):
    return ["".join(column) for column in zip(*grid)]


def mirror_grid(grid):
    return [row[::-1] for row in grid]


def flip_grid(grid):
    return grid[::-1]


def exchange_characters(grid, a, b):
    return [row.translate(str.maketrans(a + b, b + a)) for row in grid]


def shift_rows(grid, k):
    return [row[k % len(row) :] + row[: k % len(row)] for row in grid]


def stagger_rows(grid):
    return [row[index % len(row) :] + row[: index % len(row)] for index, row in enumerate(grid)]


def drop_rows(grid, k):
    return [row for number, row in enumerate(grid, start=1) if number % k != 0]


def row_counts(grid, c):
    return [row.count(c) for row in grid]


def column_runs(grid):
    runs = []
    for column in zip(*grid):
        runs.append(1 + sum(a != b for a, b in zip(column, column[1:])))
    return runs


def count_in_grid(grid, c):
    return sum(row.count(c) for row in grid)


def diagonal_text(grid):
    return "".join(row[index] for index, row in enumerate(grid) if index < len(row))


def snake_text(grid):
    return "".join(row[::-1] if index % 2 else row for index, row in enumerate(grid))


def picture(grid):
    return grid


def spiral(table):
    rows, order = [list(row) for row in table], []
    while rows:
        order += rows.pop(0)
        rows = [list(column) for column in zip(*rows)][::-1]
    return order


def diagonals(table):
    height, width = len(table), len(table[0]) if table else 0
    sums = [0] * (height + width - 1 if height else 0)
    for r in range(height):
        for c in range(width):
            sums[r + c] += table[r][c]
    return sums


def column_sums(table):
    return [sum(column) for column in zip(*table)]


def row_spreads(table):
    return [max(row) - min(row) for row in table]


def saddle_values(table):
    columns = list(zip(*table))
    return [value for row in table for c, value in enumerate(row) if value == min(row) and value == max(columns[c])]


def best_descent(table):
    sums = []
    for row in table:
        sums = [value + (max(sums[max(0, c - 1) : c + 2]) if sums else 0) for c, value in enumerate(row)]
    return sums


def cheapest_path(table):
    best = []
    for r, row in enumerate(table):
        current = []
        for c, value in enumerate(row):
            before = ([best[c]] if r else []) + ([current[c - 1]] if c else [])
            current.append(value + min(before, default=0))
        best = current
    return best


def _grid(letters: str):
    def draw(rng: random.Random, size: int) -> tuple[list[str]]:
        height, width = rng.randint(3, 4 + size), rng.randint(3, 5 + size)
        return (["".join(rng.choice(letters) for _ in range(width)) for _ in range(height)],)

    return draw


def _maze(rng: random.Random, size: int) -> tuple[list[str]]:
    (grid,) = _grid("...#")(rng, size)
    return (["." + grid[0][1:], *grid[1:]],)


def _table(rng: random.Random, size: int) -> tuple[list[list[int]]]:
    height, width, least = rng.randint(2, 3 + size), rng.randint(2, 3 + size), rng.choice((0, 0, -9))
    return ([[rng.randint(least, 9) for _ in range(width)] for _ in range(height)],)


_GRID = (("grid", "grid"),)
_TABLE = (("table", "lists"),)
_GRID_SAY = "`grid` is a rectangle of characters, given by its rows from top to bottom: # is filled, . is empty."
_TABLE_SAY = "`table` is a table of integers, given by its rows; all rows have the same length of at least 1."
_GRIDS = ((["#"],), (["."],), (["##", "##"],), (["#..", ".#.", "..#"],))
_TABLES = (([[5]],), ([[1, 2, 3]],), ([[1], [2], [3]],), ([[2, 2], [2, 2]],))

SOURCES: dict[str, tuple[Source, ...]] = {
    "grids": (
        Source(island_sizes, _GRID, "numbers", _GRID_SAY, "Filled cells that touch each other at {touch} form an "
               "island. Make a list of the sizes of the islands, in "
               "ascending order.", _grid("##..."), _GRIDS, {"touch": ("sides", "sides or corners")}, 2),
        Source(grid_distances, _GRID, "numbers", _GRID_SAY, "One walks up, down, left and right over empty cells, from "
               "the top left one. Make a list of the number of cells whose shortest way from there has 0, 1, 2, … "
               "steps, as long as there are any (an empty list, if the top left cell is filled).", _maze, _GRIDS, {},
               3),
        Source(neighbour_counts, _GRID, "numbers", _GRID_SAY, "Make a list of the number of filled cells among the up "
               "to eight cells around each filled cell, row by row from the top, each row from the left.",
               _grid("##.."),
               _GRIDS, {}, 2),
        Source(life, _GRID, "numbers", _GRID_SAY, "Then time goes on by {generations} steps. In each, all at once: an "
               "empty cell is filled if exactly {born} of the up to eight cells around it are filled; a filled cell "
               "stays so if at least {least} and at most {most} of those around it are filled, and is empty otherwise. "
               "Make a list of the number of filled cells in each row in the end.", _grid("##.."), _GRIDS,
               {"generations": (1, 2, 3), "born": (2, 3), "least": (1, 2), "most": (3, 4, 5)}, 3),
    ),
    "pictures": (
        Source(falling_stones, _GRID, "grid", "`grid` is a rectangle of characters, given by its rows from top to "
               "bottom: o is a stone, # is a wall, . is empty.", "Every stone falls down until there is a wall, "
               "another stone or the bottom below it.", _grid("oo#..."), ((["o"],), (["o", "."],), (["o", "#", "."],)),
               {}, 2),
        Source(picture, _GRID, "grid", "`grid` is a rectangle of characters, given by its rows from top to bottom.",
               "", _grid("#*o."), ((["#"],), (["#o"],), (["*", "."],)), {}, 1),
    ),
    "tables": (
        Source(spiral, _TABLE, "numbers", _TABLE_SAY, "Make a list of the values in a spiral: the first row from left "
               "to right, down the last column, back along the last row, up the first column, and so on inwards.",
               _table, _TABLES, {}, 2),
        Source(diagonals, _TABLE, "numbers", _TABLE_SAY, "Make a list of the sums of the diagonals that run from "
               "bottom left to top right: first the top left cell alone, then the two next to it, and so on to the "
               "bottom right cell.", _table, _TABLES, {}, 2),
        Source(column_sums, _TABLE, "numbers", _TABLE_SAY, "Make a list of the sums of the columns.", _table, _TABLES,
               {}, 1),
        Source(row_spreads, _TABLE, "numbers", _TABLE_SAY, "Make a list of the largest minus the smallest value of "
               "each row.", _table, _TABLES, {}, 1),
        Source(best_descent, _TABLE, "numbers", _TABLE_SAY, "A way begins in the first row and goes down row by row, "
               "each time to the cell straight below or one of the two beside that. Make a list of the largest sum of "
               "a way to each cell of the last row, both ends included.", _table, _TABLES, {}, 3),
        Source(cheapest_path, _TABLE, "numbers", _TABLE_SAY, "A way begins in the top left cell and goes right or "
               "down. Make a list of the smallest sum of a way to each cell of the last row, both ends included.",
               _table,
               _TABLES, {}, 3),
    ),
}  # fmt: skip

_G, _L, _N, _T = "grid", "numbers", "number", "text"
_MARKS = {"c": tuple("#o.*")}

STEPS: tuple[Op, ...] = (
    Op(turn_grid, _G, _G, "Turn the picture by a quarter, clockwise."),
    Op(transpose_grid, _G, _G, "Exchange rows and columns."),
    Op(mirror_grid, _G, _G, "Reverse every row."),
    Op(flip_grid, _G, _G, "Reverse the order of the rows."),
    Op(exchange_characters, _G, _G, "Replace every \"{a}\" by \"{b}\", and every \"{b}\" by \"{a}\", "
         "at the same time.", {"a": tuple("#*"), "b": tuple("o.")}),
    Op(shift_rows, _G, _G,
         "Rotate every row {k} places to the left (its first character goes to its end, {k} times).",
         {"k": (1, 2, 3)}),
    Op(stagger_rows, _G, _G, "Rotate row i, counted from 0, by i places to the left (its first character goes to its "
         "end, i times).", level=2),
    Op(drop_rows, _G, _G, "Remove every {k_th} row: those at the positions {k}, 2·{k}, … counted from 1.",
         {"k": (2, 3, 4)}),
    Op(row_counts, _G, _L, "Make a list of how often \"{c}\" occurs in each row.", _MARKS),
    Op(column_runs, _G, _L,
         "Make a list of the number of runs of equal characters in each column, from top to bottom.",
         level=2),
    Op(count_in_grid, _G, _N, "Count how often \"{c}\" occurs.", _MARKS),
    Op(diagonal_text, _G, _T, "Join the characters of the diagonal: the first of the first row, the second of the "
         "second, and so on, as far as there are any."),
    Op(snake_text, _G, _T, "Join all rows, every second one of them (the second, the fourth, …) backwards."),
)  # fmt: skip
