"""Renderings of a lake: text for the model, marked text and images for users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np

from rllm_gym.envs.frozen_lake.lake import Lake
from rllm_gym.parsing.moves import Move


@dataclass(frozen=True, slots=True)
class Symbols:
    """The characters of the board, one each and all different. The defaults are rLLM's.

    Attributes:
        player: The player's cell.
        frozen: Safe ice.
        hole: A hole.
        goal: The goal.
        edge: Outside the lake; only the window shows it.
    """

    player: str = "P"
    frozen: str = "_"
    hole: str = "O"
    goal: str = "G"
    edge: str = "#"

    def __post_init__(self) -> None:
        signs = [getattr(self, part.name) for part in fields(self)]
        for part, sign in zip(fields(self), signs):
            if not isinstance(sign, str) or len(sign) != 1 or sign.isspace() or not sign.isprintable():
                raise ValueError(f"symbols: {part.name}={sign!r} must be one printable character that is not a space")
        if len(set(signs)) < len(signs):
            raise ValueError(f"symbols: {' '.join(signs)} must all differ")

    @classmethod
    def of(cls, symbols: Symbols | Mapping[str, str] | str | None) -> Symbols:
        """Create from ``None`` (the defaults), a mapping of some names, or a text of four or five characters in order.

        >>> Symbols.of("@.XG").hole
        'X'
        """
        if symbols is None:
            return cls()
        if isinstance(symbols, Symbols):
            return symbols
        names = [part.name for part in fields(cls)]
        if isinstance(symbols, str):
            if len(symbols) not in (4, 5):
                raise ValueError(f"symbols={symbols!r} must have 4 or 5 characters: {', '.join(names)}")
            return cls(*symbols)
        unknown = sorted(set(symbols) - set(names))
        if unknown:
            raise ValueError(f"symbols: unknown name(s) {unknown}; choose from {names}")
        return cls(**symbols)


@lru_cache(maxsize=1024)
def bare_board(lake: Lake, symbols: Symbols) -> str:
    """Return the board without the player: cell i of the map is character 2 i, followed by a space or a newline.

    Cells are separated so that each is its own token.
    """
    cells, width = lake.cells, lake.width
    signs = {"S": symbols.frozen, "F": symbols.frozen, "H": symbols.hole, "G": symbols.goal}
    return "\n".join(
        " ".join(signs[cell] for cell in cells[begin : begin + width]) for begin in range(0, len(cells), width)
    )


def board(bare: str, player: int, symbols: Symbols) -> str:
    """Return all rows, with the player inserted into the bare board."""
    return f"{bare[: 2 * player]}{symbols.player}{bare[2 * player + 1 :]}"


def with_coordinates(board_text: str) -> str:
    """Add row numbers on the left and column numbers above; all cells become as wide as the longest number."""
    rows = [line.split(" ") for line in board_text.split("\n")]
    width = len(str(max(len(rows), len(rows[0])) - 1))
    numbered = [["", *map(str, range(len(rows[0])))], *([str(r), *row] for r, row in enumerate(rows))]
    return "\n".join(" ".join(f"{cell:>{width}}" for cell in line) for line in numbered)


def window(lake: Lake, player: int, symbols: Symbols, side: int) -> str:
    """Return ``side`` rows of ``side`` cells centered on the player; cells outside the lake are edge."""
    reach = side // 2
    width, height = lake.width, lake.height
    ice = bare_board(lake, symbols)
    row, column = divmod(player, width)
    first, last = max(column - reach, 0), min(column + reach, width - 1)
    left, right = f"{symbols.edge} " * (reach - column + first), f" {symbols.edge}" * (reach - last + column)
    outside = " ".join(symbols.edge * side)
    lines = []
    for r in range(row - reach, row + reach + 1):
        if 0 <= r < height:
            begin = 2 * (r * width + first)
            lines.append(left + ice[begin : begin + 2 * (last - first) + 1] + right)
        else:
            lines.append(outside)
    middle = lines[reach]
    lines[reach] = f"{middle[: 2 * reach]}{symbols.player}{middle[2 * reach + 1 :]}"
    return "\n".join(lines)


def neighbours(lake: Lake, player: int) -> str:
    """Describe the neighbouring cell in each direction: ``up: edge, down: ice, left: hole, right: goal``."""
    words = {"S": "ice", "F": "ice", "H": "hole", "G": "goal"}
    after = lake.after[player]
    return ", ".join(
        f"{move.word}: {'edge' if after[move] == player else words[lake.cells[after[move]]]}"
        for move in (Move.UP, Move.DOWN, Move.LEFT, Move.RIGHT)
    )


def marked_board(lake: Lake, player: int, symbols: Symbols) -> str:
    """Return the board with the player's cell in brackets, so that the cell's own symbol stays visible."""
    ice = bare_board(lake, symbols).split("\n")
    lines = []
    for row, line in enumerate(ice):
        cells = line.split(" ")
        lines.append(
            "".join(
                f"[{cell}]" if row * lake.width + column == player else f" {cell} " for column, cell in enumerate(cells)
            )
        )
    return "\n".join(lines)


_TILE = 64


def picture(lake: Lake, player: int) -> np.ndarray:
    """Return the lake as an RGB image of shape (64 × rows, 64 × columns, 3), ``uint8``."""
    image = np.empty((lake.height * _TILE, lake.width * _TILE, 3), dtype=np.uint8)
    for cell, letter in enumerate(lake.cells):
        row, column = divmod(cell, lake.width)
        tile = _tile(letter, cell == player)
        image[row * _TILE : (row + 1) * _TILE, column * _TILE : (column + 1) * _TILE] = tile
    return image


@lru_cache(maxsize=16)
def _tile(letter: str, player: bool) -> np.ndarray:
    y, x = np.mgrid[0:_TILE, 0:_TILE] + 0.5
    x, y = x / _TILE - 0.5, y / _TILE - 0.5  # the centre is (0, 0), the side 1
    tile = np.empty((_TILE, _TILE, 3))
    tile[:] = (214, 234, 248)

    def paint(where: np.ndarray, colour: tuple[int, int, int]) -> None:
        tile[where] = colour

    for offset in (-0.28, 0.02, 0.3):
        paint((np.abs(x + y - offset) < 0.012) & (np.abs(x - y) < 0.25), (236, 246, 252))
    if letter == "S":
        paint((np.maximum(np.abs(x), np.abs(y)) < 0.40) & (np.maximum(np.abs(x), np.abs(y)) > 0.365), (150, 178, 205))
    if letter == "H":
        paint(x**2 + y**2 < 0.42**2, (165, 200, 224))
        paint(x**2 + y**2 < 0.37**2, (34, 82, 122))
        paint(x**2 + (y - 0.05) ** 2 < 0.31**2, (17, 52, 86))
    if letter == "G":
        paint((np.abs(x + 0.2) < 0.025) & (np.abs(y) < 0.38), (92, 64, 51))
        paint((x > -0.175) & (x < 0.3) & (np.abs(y + 0.2) < 0.18 * (0.3 - x) / 0.475), (46, 160, 67))
        paint(((x + 0.2) / 0.2) ** 2 + ((y - 0.38) / 0.05) ** 2 < 1, (140, 160, 175))
    if player:
        skin, coat = (241, 200, 160), ((120, 130, 140) if letter == "H" else (208, 58, 52))
        paint((np.abs(x) < 0.19 - 0.12 * (0.1 - y)) & (y > -0.06) & (y < 0.34), coat)
        paint(x**2 + (y + 0.17) ** 2 < 0.135**2, skin)
        paint((x**2 + (y + 0.19) ** 2 < 0.15**2) & (y < -0.21), coat)
        for side in (-1, 1):
            paint((x - side * 0.05) ** 2 + (y + 0.155) ** 2 < 0.02**2, (40, 40, 40))
    # One darker line around each tile draws the grid.
    paint(np.maximum(np.abs(x), np.abs(y)) > 0.5 - 1.01 / _TILE, (176, 204, 224))
    result = tile.astype(np.uint8)
    result.setflags(write=False)
    return result
