"""Parse one of a few words or numbers from a reply, such as a square, a column or a verdict."""

from __future__ import annotations

from collections.abc import Collection

from rllm_gym.core import InvalidAction
from rllm_gym.parsing.blocks import last_block
from rllm_gym.parsing.boxed import strip_thinking

TAGS = ("action", "answer", "move")
# Characters around a word that do not change it: quotes, Markdown emphasis, brackets, punctuation.
_TRIM = " \t\r\n\f\v.,;:!'\"`*_()[]{}"
_VERBS = frozenset({"action", "answer", "choose", "column", "drop", "mark", "move", "play", "square", "verdict"})
_LONGEST_ANSWER = 200


def parse_choice(reply: str, choices: Collection[str], what: str) -> str:
    """Return the one choice of a reply, as spelled in ``choices``. Linear time in the length of the reply.

    ``<think>`` sections are ignored. The last fenced block or ``<action>``, ``<answer>`` or ``<move>`` tag is parsed;
    if there is none, the entire reply must be a choice and nothing else.

    Args:
        reply: The reply of the model.
        choices: The valid choices; the reply may use upper or lower case.
        what: Name of such a choice, for the error message: ``"a square"``.

    >>> parse_choice("The middle is free.\\n```5```", ("1", "5", "9"), "a square")
    '5'
    >>> parse_choice("column 3", ("1", "2", "3"), "a column")
    '3'

    Raises:
        InvalidAction: No choice, or more than one. The message says what was found and what is accepted.
    """
    known = {choice.casefold(): choice for choice in choices}
    accepted = f"Give {what} ({_listed(choices)}), alone or in a last ```block``` or <action> tag."
    answer = strip_thinking(reply)
    if answer is None:
        raise InvalidAction(f"Invalid action: the reply ends inside <think>, so it holds no choice. {accepted}")
    block = last_block(answer, TAGS)
    where = "the reply" if block is None else "the last block"
    text = answer
    if block is not None:
        # "```5\n```": the choice is on the line of the opening fence.
        text = block.content if block.content.strip() or block.label in TAGS else block.label
    text = text.strip(_TRIM)
    chosen = known.get(text.casefold()) if len(text) <= _LONGEST_ANSWER else None
    if chosen is not None:
        return chosen
    if not text:
        raise InvalidAction(f"Invalid action: {where} is empty. {accepted}")
    if len(text) > _LONGEST_ANSWER:
        raise InvalidAction(f"Invalid action: {where} has {len(text)} characters, more than {what}. {accepted}")
    words = [word for word in (piece.strip(_TRIM).casefold() for piece in text.split()) if word]
    if len(words) == 2 and words[0] in _VERBS and words[1] in known:
        return known[words[1]]
    # ascii() also escapes lone surrogates and control characters: the observation stays printable text.
    shown = ascii(text if len(text) <= 40 else text[:37] + "...")
    raise InvalidAction(f"Invalid action: {where} is {shown}, which is not {what} alone. {accepted}")


def _listed(choices: Collection[str]) -> str:
    names = list(choices)
    return ", ".join(names) if len(names) <= 12 else f"{names[0]} to {names[-1]}"
