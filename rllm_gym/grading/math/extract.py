r"""Finds the answer in a text: boxed, after ``####``, after "the answer is", in the last formula, or the last number.

Every search is linear in the length of the text. The answer is not interpreted here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rllm_gym.parsing.boxed import last_boxed, strip_thinking

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")
_CHAT_MARK = re.compile(r"<\|[a-z_]{1,20}\|>(?:user|assistant|system)?|</?s>|<(?:end|start)_of_turn>|```[a-z]*(?=\s|$)")
_ANSWER = re.compile(
    r"(?:answer|result|solution)s?\s*(?:\*\*|__)?\s*(?:(?:is|are|:|=)\s*(?:\*\*|__)?:?|(?=\$|\\\(|\\\[))|"
    r"答案\s*(?:是|为|：|:)+",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$|\")|[。\n]")
# "$45-$15" and "$2 * 3 = $6" are money: a closing $ is not followed by a digit, nor preceded by whitespace alone.
_FORMULA = re.compile(
    r"\$\$([^$]+)\$\$|(?<![\\$])\$(?!\$)((?!\s)(?:[^$\\]|\\.)*(?<!\s)|\s(?:[^$\\]|\\.)*\s)\$(?![0-9$])"
    r"|\\\[(.*?)\\\]|\\\((.*?)\\\)",
    re.DOTALL,
)
_BETWEEN_FORMULAS = re.compile(r"\s*(?:,|;|and|or|,\s*and|,\s*or)\s*", re.IGNORECASE)
_NUMBER = re.compile(
    r"(?<![0-9A-Za-z_.,\\^{])[-+]?(?:[$€£]\s?)?(?:[0-9]{1,3}(?:[, ][0-9]{3})+(?![0-9])|"
    r"[0-9]+(?:,[0-9]{1,2}(?![0-9]))?)?"
    r"(?:\.?[0-9]+)?"
    r"(?:\s?/\s?[0-9]+|(?::[0-9]+)+)?(?:\s?%|\u03c0)?(?![0-9])"
)
_ANSWER_LINE = re.compile(r"^[ \t>*_#-]{0,20}(?:final )?answer[*_ \t]{0,9}:(.*)$", re.IGNORECASE | re.MULTILINE)
# Powers, powers of ten and mixed numbers as a whole, then numbers as elsewhere.
_ANY_NUMBER = re.compile(
    r"(?<![0-9A-Za-z_.,\\^{])[-+]?(?:[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3}(?![0-9])|\^\{?-?[0-9]+\}?)"
    rf"|[0-9]+ [0-9]+/[0-9]+(?![0-9]))|{_NUMBER.pattern}"
)
_QUESTION = re.compile(r"\b(?:how|what|which|who|whom|when|where)\b[^.!?]{0,300}\?\W*$", re.IGNORECASE)
_SUPPOSED = re.compile(r"\b(?:if|suppose|assume|assuming|whether)\b[^.!?\n]*$", re.IGNORECASE)
_HEDGED = re.compile(
    r"\s*(?:between|less|greater|more|fewer|not|either|neither|never|unknown)\b"
    r"|.*[0-9]\s+(?:and a|plus|minus|times|divided|over|point|squared|cubed|half)\b",
    re.IGNORECASE,
)
"""No answer, or one in words that the number in it is only a part of."""
_ASKED = re.compile(r"[^.!?\n]*\?")
_LEAD = re.compile(
    r"(?:(?:thus|so|hence|therefore|then|finally|we have|it is|it's|i get|we get|about|approximately)\b,?\s*)+"
    r"|[^\W\d_]+\s*[:\uff1a\n]\s*|(?!(?:if|let|suppose|assume|when)\b)(?:[A-Za-z]{2,}\s+){1,6}(?=[A-Za-z]\s*=)",
    re.IGNORECASE,
)
_EMPHASIS = re.compile(r"(?<![\w)])\*\*|\*\*(?![\w(])|`|^#{1,3} +", re.MULTILINE)
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_ALIGNED = re.compile(
    r"\\begin\{(?:align|aligned|gather|gathered|split|eqnarray)\*?\}(.*)\\end\{[a-z]+\*?\}", re.DOTALL
)
_NAMED = re.compile(r"[A-Za-z](?:_\{?[A-Za-z0-9]+\}?)?\s*=")
_DIGIT = re.compile(r"[0-9]")
_TUPLE = re.compile(r"\((?: ?[-+]?[0-9]+(?:[./][0-9]+)? ?[,)]){2,4}(?<=\))")
_DENIED = re.compile(
    r"(?:\b(?:not|never|cannot|neither|nor|without|rather than|instead of|other than|unlike|except|from|"
    r"(?:(?:less|greater|more|"
    r"fewer|smaller|larger|bigger|higher|lower) than))|n['\u2019]t|\\neq?|\u2260|[<>\u2264\u2265])"
    r"(?:\s+(?:be|equals?|equal to|the|a|only|just|\$|\())*\s*[$\u20ac\u00a3(]?\s*$"
    r"|\b(?:step|equation|eq\.|case|part|problem|question|figure|table|section|line|example|option|method)\s*[(\[]?$|\[$",
    re.IGNORECASE,
)
_STATED = re.compile(r"(?:=|(?<!there )\b(?:is|are|equals?|get|gives?))\s*(?:only\s+|about\s+)?[$\u20ac\u00a3]?\s*$")
_ASSUMED = re.compile(r"\s*(?:if|suppose|assume|assuming|let)\b(?:[^,]*?\bthen\b|[^,]*(?:,|$))", re.IGNORECASE)
_REASON = re.compile(r",\s|;|\b(?:because|since)\b(?=\s+[a-z(])")
_BRACKETED_REASON = re.compile(r"\((?:because|since|as)\b")
_TAIL = 4000
_WHOLE = 300
_PROSE = re.compile(r"(?<![\\A-Za-z{])(?:[A-Za-z]{2,}|[^\W\d_A-Za-z]{2,})")
_OPTION = re.compile(r"(?<![A-Za-z0-9'\\$({_^])\(?([A-H])\)?(?![A-Za-z0-9'(_^=+*/-])(?!\s+[a-z])")
_LEADING_OPTION = re.compile(r"\s*\(?([A-H])[).:]\s+[A-Za-z]")
_NO_PROSE = frozenset("and or to negative minus about sin cos tan log ln sqrt pi exp max min percent is".split())  # noqa: SIM905


def boxed_answer(response: str) -> str | None:
    """Return the content of a reply's last box; ``None`` if it has no box or its thinking is unfinished."""
    return last_boxed(response)


def final_boxes(response: str) -> tuple[list[str], bool, list[str]]:
    """Return the contents of the boxes that end a reply without text between them, whether they are joined, and the
    name of each: ``x`` of ``x = \\boxed{1}``.

    ``\\boxed{1} and \\boxed{2}`` are one answer of two parts, and so are boxes that are the items of a list. With only
    whitespace between them, the first may also have been corrected, and items such as ``x = \\boxed{1}`` and
    ``y = \\boxed{2}`` may be steps, so the caller decides. A reply has at most 16.
    """
    answer = strip_thinking(response)
    if answer is None or len(_BOX.findall(answer)) < 2:
        return [], False, []
    contents, between, names = _neighbouring_boxes(answer)
    if any("+" in text for text in between):
        return [], False, []
    items = any(_ITEM.search(text) for text in between) and len({*names}) == 1
    return contents, items or any(_JOIN.search(_ITEM.sub("", text)) for text in between), names


def any_answer(response: str) -> str | None:
    """Return the answer of a reply that need not box it; ``None`` if there is none or its thinking is unfinished."""
    answer = strip_thinking(response)
    if answer is None:
        return None
    if _BOX.search(answer):
        return last_boxed(answer)
    return _unboxed(answer)


def line_answer(response: str) -> str | None:
    """Return what the last line ``Answer: x`` of a reply states; ``None`` without one or with unfinished thinking."""
    lines = _ANSWER_LINE.findall(strip_thinking(response) or "")
    if not lines:
        return None
    answer: str = lines[-1].strip().strip("*_").strip().removesuffix(".")
    return last_boxed(answer) if _BOX.search(answer) else answer


def last_number(response: str) -> str | None:
    """Return the last number of a reply, or of its last box; ``None`` if there is none or thinking is unfinished."""
    text = strip_thinking(response) or ""
    text = ((last_boxed(text) or "") if _BOX.search(text) else text).replace("\u2212", "-")
    numbers = [found[0] for found in _ANY_NUMBER.finditer(text) if _DIGIT.search(found[0])]
    return numbers[-1].strip() if numbers else None


def formulas(text: str) -> Iterator[str]:
    """Yield the contents of the formulas in a text: ``$x$``, ``$$x$$``, ``\\(x\\)``, ``\\[x\\]``."""
    for formula in _FORMULA.finditer(text):
        yield _content(formula)


def gold_answer(gold: str) -> str:
    """Return the answer of a reference: boxed (adjacent boxes form one list), after ``####``, or the text itself."""
    if _BOX.search(gold):
        contents, _, _ = _neighbouring_boxes(gold)
        return (", ".join(contents) if contents else last_boxed(gold + "}")) or gold
    if "####" in gold or (len(gold) > _WHOLE and _is_prose(gold)):
        return _unboxed(gold) or gold
    return gold


def _neighbouring_boxes(text: str) -> tuple[list[str], list[str], list[str]]:
    """Return the contents of the last boxes with nothing but joins between them, the joins, and the boxes' names.

    The name of ``x_1 = \\boxed{2}`` and of ``\\boxed{x = 2}`` is ``x``; others have none. Boxes are items of a list
    only if the first one is: after ``\\boxed{5}`` a line ``- \\boxed{3}`` is a difference.
    """
    contents: list[str] = []
    joins: list[str] = []
    names: list[str] = []
    rest = text
    while (content := last_boxed(rest)) is not None:
        start = max(rest.rfind("\\boxed"), rest.rfind("\\fbox"))
        before = rest[:start]
        line = before[max(before.rfind("\n") + 1, start - _LEAD_CHARS) :]
        contents.append(content)
        named = _NAME_BEFORE.search(line) or _NAME_WITHIN.match(content)
        names.append(named[1] if named else "")
        previous = max(before.rfind("\\boxed"), before.rfind("\\fbox"))
        inner = last_boxed(before) if len(contents) < 16 and previous >= 0 else None
        between = before[previous:].partition(inner)[2] if inner else ""
        if not inner or not _ONLY_JOINS.fullmatch(between):
            listed = [at for at, join in enumerate(joins) if _ITEM.search(join)]
            if listed and not _FIRST_ITEM.fullmatch(line):
                contents, joins, names = contents[: listed[0] + 1], joins[: listed[0]], names[: listed[0] + 1]
            break
        joins.append(between)
        rest = before
    return contents[::-1], joins[::-1], names[::-1]


# Each text has only one reading in these patterns: two adjacent ``\s*`` in a repetition would take exponential time.
_LEAD_CHARS = 80
_LAYOUT = r"\s|\$|\*\*|\\[()\[\],;: ]|\\q?quad(?![A-Za-z])"
_VARIABLE, _EQUALS = r"(?:[A-Za-z]|\\[a-z]{2,8})", r"(?:_\{?[0-9]\}?)?\s*(?:&\s*)?="
_NAME_BEFORE = re.compile(rf"(?<![A-Za-z\\])({_VARIABLE}){_EQUALS}(?:{_LAYOUT})*$")
_NAME_WITHIN = re.compile(rf"\s*({_VARIABLE}){_EQUALS}")
_MARKER = (
    r"(?:(?:[-\u2022\u25e6\u00b7\u2013]|\*(?!\*)|(?:\*\*)?\(?(?:[0-9]{1,2}|[A-Ha-h]|[ivx]{1,4})[.)](?:\*\*)?)(?=[ \t])"
    r"|\\item(?![A-Za-z]))"
)
_ITEM = re.compile(rf"(?<=\n)[ \t]{{0,12}}{_MARKER}")
_FIRST_ITEM = re.compile(rf"[ \t]{{0,12}}{_MARKER}(?:{_LAYOUT}|{_VARIABLE}{_EQUALS})*")
_JOIN = re.compile(r",|;|and|or")
_ONLY_JOINS = re.compile(
    rf"\}}?(?:{_ITEM.pattern}|\.(?=[ \t$*]{{0,8}}\n\s{{0,12}}{_MARKER})|{_LAYOUT}|\\\\|&"
    r"|\\(?:text|textrm|mathrm|mbox)\s*\{\s*(?:(?:and|or|,|;)\s*)?\}"
    rf"|,|;|and|or|\+|{_VARIABLE}{_EQUALS})*"
)


def _unboxed(text: str) -> str | None:
    text = _CHAT_MARK.sub(" ", text[-_TAIL:] if len(text) > _TAIL else text)
    text = _EMPHASIS.sub("", text).strip()
    if tagged := _TAGGED.findall(text):
        text = tagged[-1].strip()
    if "####" in text:
        return text.rpartition("####")[2].strip(" :\n").partition("\n")[0].strip() or None
    if _ends_in_loop(text):
        # Only what the loop says each time is an answer, not the number or formula at which it was cut off.
        statements = list(_ANSWER.finditer(text))[-_LOOP_TIMES - 1 :]
        said = {_of_sentence(text[found.end() : found.end() + _WHOLE]) for found in statements[:-1] or statements}
        return said.pop() if len(said) == 1 else None
    for found in reversed(list(_ANSWER.finditer(text))):
        if not _ASKED.match(text, found.end()) and not _SUPPOSED.search(
            text, max(found.start() - 120, 0), found.start()
        ):
            if answer := _of_sentence(text[found.end() :]):
                return answer
            break
    if _QUESTION.search(text):
        return None  # a copy of the problem
    if lead := _LEAD.match(text):
        text = text[lead.end() :]
    around = _FORMULA.sub(" ", text) if _FORMULA.search(text) else ""
    if len(text) <= _WHOLE and not _is_prose(text) and not _has_words(around):
        return _last_line(text).rpartition(" is ")[2] or None
    leading = _LEADING_OPTION.match(text)
    if leading:
        return leading[1]
    return _last_formula(text) or _last_number(text) or _last_option(text)


_LOOP_TIMES, _LOOP_CHARS = 5, 60


def _ends_in_loop(text: str) -> bool:
    """Return whether a text ends by repeating itself, also with other numbers each time: "So it is 5. So it is 6. …".

    Found with the prefix function of the reversed end of the text, every run of digits read as one.
    """
    tail = re.sub(r"[0-9]+(?:[.,][0-9]+)*", "0", text)[::-1]
    border = [0] * len(tail)
    for end in range(1, len(tail)):
        length = border[end - 1]
        while length and tail[end] != tail[length]:
            length = border[length - 1]
        border[end] = length + (tail[end] == tail[length])
        if end + 1 >= max(_LOOP_CHARS, _LOOP_TIMES * (end + 1 - border[end])):
            return True
    return False


def _has_words(text: str) -> bool:
    return any(word.lower() not in _NO_PROSE for word in _PROSE.findall(text))


def _is_prose(text: str) -> bool:
    words = [word for word in _PROSE.findall(text) if word.lower() not in _NO_PROSE]
    return len(words) >= 3 or (len(words) >= 1 and len(text.split()) > 2 and "=" not in text and "\\text" not in text)


def _of_sentence(rest: str) -> str | None:
    """Return the answer in the text that follows "the answer is"."""
    rest = rest.strip().strip('*_"\\').strip() if rest.strip()[:1] not in "$\\" else rest.strip()
    end = _SENTENCE_END.search(rest)
    first = _FORMULA.search(rest)
    if first is not None and (end is None or first.start() < end.start()):
        after = _SENTENCE_END.search(rest, first.end())
        if rest.find(" is ", first.end(), after.start() if after else len(rest)) < 0:
            return _joined_formulas(rest, first)
    sentence = rest[: end.start()] if end else rest
    if " is " in sentence:
        sentence = sentence.rpartition(" is ")[2]
    sentence = _BRACKETED_REASON.split(sentence)[0].strip(" *_\"'")
    if not sentence or _HEDGED.match(sentence):
        return sentence or None
    formula = _FORMULA.search(sentence)
    if formula is not None:
        return _joined_formulas(sentence, formula)
    if len(sentence) <= _WHOLE and not _is_prose(sentence):
        return sentence
    # "5, since 2 + 3 = 5"; "for sure D, it can't be A or B"
    head = _REASON.split(sentence, maxsplit=1)[0].strip()
    if head and not _is_prose(head):
        return head
    return _last_number(sentence) or _last_option(head)


def _joined_formulas(text: str, first: re.Match[str]) -> str:
    """Return a formula together with those that follow it after "and", "or" or a comma."""
    parts, end = [_content(first)], first.end()
    for formula in _FORMULA.finditer(text, first.end()):
        if not _BETWEEN_FORMULAS.fullmatch(text, end, formula.start()):
            break
        parts.append(_content(formula))
        end = formula.end()
    percent = re.match(r"\s*(?:%|percent\b|\\%)", text[end:])
    return ", ".join(parts) + (r"\%" if percent and len(parts) == 1 else "")


def _content(formula: re.Match[str]) -> str:
    return _last_line(next(group for group in formula.groups() if group is not None))


def _last_line(text: str) -> str:
    r"""Return the last equation of ``\begin{align} … \end{align}``, another text as it is."""
    aligned = _ALIGNED.search(text)
    if aligned is None:
        return text.strip()
    lines = [line.replace("&", " ").strip() for line in aligned[1].split(r"\\")]
    return next((line for line in reversed(lines) if line), "")


def _last_formula(text: str) -> str | None:
    run: list[re.Match[str]] = []
    for formula in _FORMULA.finditer(text):
        if run and not _BETWEEN_FORMULAS.fullmatch(text, run[-1].end(), formula.start()):
            run = []
        run.append(formula)
    if not run:
        return None
    if len(run) > 1 and _NAMED.match(_content(run[-1])):  # 3x = 21 and x = 7
        run = [formula for formula in run if "=" not in _content(formula) or _NAMED.match(_content(formula))]
    # A number in a later sentence is the conclusion: "... $d = 90/n$. Therefore there are 12 of them."
    start = run[-1].end()
    if not _content(run[-1]).endswith("."):
        end = _SENTENCE_END.search(text, start)
        start = end.end() if end else len(text)
    return _last_number(text[start:]) or _joined_formulas(text, run[0])


def _last_option(text: str) -> str | None:
    options = _OPTION.findall(text)
    return options[-1] if options else None


def _last_number(text: str) -> str | None:
    """Return the number that the last sentence with numbers states: after "=" or "is", or its last one.

    Not a number that the text denies ("not 5", "less than 5") or cites ("step 5"), nor one of a question or of an
    assumption ("if x = 5").
    """
    ends = [found.end() for found in _SENTENCE_END.finditer(text)]
    for start, end in reversed(list(zip([0, *ends], [*ends, len(text)], strict=True))):
        sentence = text[start:end]
        if sentence.rstrip().endswith("?"):
            continue
        start = assumed.end() if (assumed := _ASSUMED.match(sentence)) else 0
        found = [
            number
            for number in (*_TUPLE.finditer(sentence, start), *_NUMBER.finditer(sentence, start))
            if _DIGIT.search(number[0]) and not _DENIED.search(sentence, max(number.start() - 40, 0), number.start())
        ]
        if found:
            stated = [one for one in found if _STATED.search(sentence, max(one.start() - 12, 0), one.start())]
            return max(stated or found, key=lambda one: (one.end(), -one.start()))[0].strip()
    return None
