"""Parse one move on a grid from a reply, as a word, an arrow or a number."""

from __future__ import annotations

from enum import IntEnum

from rllm_gym.core import InvalidAction
from rllm_gym.parsing.blocks import last_block
from rllm_gym.parsing.boxed import strip_thinking


class Move(IntEnum):
    """A move on a grid. The numbers are those of Gymnasium's FrozenLake."""

    LEFT = 0
    DOWN = 1
    RIGHT = 2
    UP = 3

    @property
    def word(self) -> str:
        """``"left"``, ``"down"``, ``"right"`` or ``"up"``."""
        return _NAMES[self]


_NAMES = ("left", "down", "right", "up")
_FORMS: dict[Move, tuple[str, ...]] = {
    Move.LEFT: ("left", "west", "←", "⬅", "0"),
    Move.DOWN: ("down", "south", "↓", "⬇", "1"),
    Move.RIGHT: ("right", "east", "→", "➡", "2"),
    Move.UP: ("up", "north", "↑", "⬆", "3"),
}
_MOVES: dict[str, Move] = {form: move for move, forms in _FORMS.items() for form in forms}
_VERBS = frozenset({"move", "go", "step", "walk", "action", "answer"})
# Characters around a word that do not change it: quotes, Markdown emphasis, punctuation, the emoji selector.
_TRIM = " \t\r\n\f\v.,;:!'\"`*_()[]{}\ufe0f"
_LONGEST_ANSWER = 200

ACCEPTED = (
    "Give one move: up, down, left or right (or an arrow, or 0 left, 1 down, 2 right, 3 up), "
    "alone or in a last ```block``` or <action> tag."
)


def parse_move(reply: str) -> Move:
    """Return the move of a reply. Linear time in the length of the reply.

    ``<think>`` sections are ignored. The last fenced block or ``<action>``, ``<answer>`` or ``<move>`` tag is parsed;
    if there is none, the entire reply must be a move and nothing else.

    >>> parse_move("I would go up, but it is safer to wait.\\n```down```").word
    'down'
    >>> parse_move("→").word
    'right'

    Raises:
        InvalidAction: No move, or more than one. The message says what was found and what is accepted.
    """
    move = _MOVES.get(reply)
    if move is None and "<" not in reply and "````" not in reply and reply.count("```") % 2 == 0:
        # Fast path for prose with plain, closed fences. The general code below gives the same result.
        end = reply.rfind("```")
        move = _MOVES.get(reply[reply.rfind("```", 0, max(end, 0)) + 3 : end].strip()) if end >= 0 else None
    if move is not None:
        return move
    answer = strip_thinking(reply)
    if answer is None:
        raise _invalid("the reply ends inside <think>, so it holds no move")
    block = last_block(answer)
    if block is None:
        return _only_move(answer, "the reply")
    if not block.closed:
        return _only_move(block.content if block.content.strip() else block.label, "the unclosed block")
    if not block.content.strip():
        # "```up\n```": the move is on the line of the opening fence.
        return _only_move("" if block.label in ("action", "answer", "move") else block.label, "the last block")
    if _as_move(block.label) is not None:
        return _only_move(f"{block.label} {block.content}", "the last block")
    return _only_move(block.content, "the last block")


def _only_move(text: str, where: str) -> Move:
    text = text.strip(_TRIM)
    if not text:
        raise _invalid(f"{where} is empty")
    move = _as_move(text)
    if move is not None:
        return move
    if len(text) > _LONGEST_ANSWER:
        raise _invalid(f"{where} has {len(text)} characters, more than a move")
    words = [word for word in (piece.strip(_TRIM) for piece in text.split()) if word]
    moves = [move for move in map(_as_move, words) if move is not None]
    if len(moves) > 1:
        raise _invalid(f"{where} holds {len(moves)} moves ({', '.join(move.word for move in moves[:8])})")
    if len(words) == 2 and len(moves) == 1 and words[0].lower() in _VERBS:
        return moves[0]
    raise _invalid(f"{where} is {_quoted(text)}, which is not a move alone")


def _as_move(word: str) -> Move | None:
    return _MOVES.get(word.lower()) if len(word) <= 8 else None


def _quoted(text: str) -> str:
    # repr() also escapes lone surrogates and control characters: the observation stays printable text.
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _invalid(what: str) -> InvalidAction:
    return InvalidAction(f"Invalid action: {what}. {ACCEPTED}")
