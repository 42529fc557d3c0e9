r"""Normalizes the spelling of answers: Unicode, LaTeX spacing, text wrappers, digit grouping. Works on strings only.

The meaning of an answer is not interpreted here. Every pass is linear in the length of the text.
"""

from __future__ import annotations

import re
import unicodedata

_UNICODE = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-", "×": r"\times ", "⋅": r"\cdot ", "·": r"\cdot ",
    "∙": r"\cdot ", "•": r"\cdot ", "∗": "*", "÷": r"\div ", "∕": "/", "⁄": "/", "≤": r"\le ", "≥": r"\ge ",
    "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "≅": r"\cong ", "≡": r"\equiv ", "∪": r"\cup ",
    "∩": r"\cap ", "∖": r"\setminus ", "∈": r"\in ", "∉": r"\notin ", "∅": r"\emptyset ", "ø": r"\emptyset ",
    "∞": r"\infty ", "±": r"\pm ", "∓": r"\mp ", "√": r"\surd ", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]",
    "°": r"\degree ", "º": r"\degree ", "˚": r"\degree ",
    "′": "'", "’": "'", "‘": "'", "“": '"', "”": '"', "…": r"\ldots ", "⟨": r"\langle ", "⟩": r"\rangle ",
    "〈": r"\langle ", "〉": r"\rangle ", "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ",
    "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}",
    "€": r"\$", "£": r"\$", "¥": r"\$", "₹": r"\$", "∠": r"\angle ", "∘": r"\circ ", "∣": "|", "、": ",",
    "，": ",", "；": ";", "：": ":", "（": "(", "）": ")", "。": ".", "\u00a0": " ", "\u2009": " ", "\u202f": " ",
    "\u200b": "", "\u200d": "", "\ufeff": "", "\u2061": "", "\u2062": "", "\u2063": ",",
    "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ", "ε": r"\epsilon ", "θ": r"\theta ",
    "λ": r"\lambda ", "μ": r"\mu ", "π": r"\pi ", "ρ": r"\rho ", "σ": r"\sigma ", "τ": r"\tau ", "φ": r"\phi ",
    "ϕ": r"\phi ", "ω": r"\omega ", "Δ": r"\Delta ", "Ω": r"\Omega ", "ⅈ": "i", "ⅇ": "e", "ℓ": r"\ell ",
}  # fmt: skip
for _code in range(0xFF01, 0xFF5F):  # full-width ASCII, as typed with Chinese and Japanese keyboards
    _UNICODE.setdefault(chr(_code), chr(_code - 0xFEE0))
_TRANSLATE = str.maketrans(_UNICODE)

_SUPER = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿ", "0123456789+-()n")
_SUB = str.maketrans("₀₁₂₃₄₅₆₇₈₉₊₋", "0123456789+-")
_SUPER_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿ]+")
_SUB_RUN = re.compile("[₀₁₂₃₄₅₆₇₈₉₊₋]+")
_VULGAR = re.compile("[¼½¾⅐-⅞]")

# Spacing that groups digits: 1\,234  1{,}234  1,\!234  1\ 234. A comma with a *wide* space separates a list.
_LATEX_GROUPING = re.compile(
    r"(?<![0-9.])([0-9]{1,3})((?: *(?:\{\s*,\s*\}|,\s*\\!\s*|\\[,:; ]\s*|~)[0-9]{3})+)(?![0-9])"
)
_SPACE_GROUPING = re.compile(r"[-+]?[0-9]{1,3}(?: [0-9]{3})+(?:\.[0-9]+)?")
_BRACED_MARK = re.compile(r"(?<=[0-9)\]])\{\s*([:,;])\s*\}(?=[0-9(\[-])")  # {:} is a colon without its space
_INCHES = re.compile(r"(?<=[0-9}])\s*in\.?(?=\s*(?:\^|$))")
_NOT_DIGIT = re.compile(r"[^0-9]+")

_PIECE = re.compile(r"\\\\(?:\[[^\]\\]{0,12}\])?|\\[a-zA-Z]+\*?|\\.|\$|[^\\$]+|\\")
_ROW_SPACING = re.compile(r"\\\\\[-?[0-9.]+ ?(?:pt|em|ex|mm|cm)\]")
_DELIMITERS = {r"\(", r"\)", r"\[", r"\]", "$"}
_SPACES = {r"\,", r"\;", r"\:", r"\ ", "\\\n", r"\quad", r"\qquad", r"\thinspace", r"\enspace", r"\medspace", r"\/"}
_DROPPED = {
    r"\left", r"\right", r"\mleft", r"\mright", r"\big", r"\Big", r"\bigg", r"\Bigg", r"\bigl", r"\bigr", r"\Bigl",
    r"\Bigr", r"\biggl", r"\biggr", r"\displaystyle", r"\textstyle", r"\scriptstyle", r"\limits", r"\nolimits", r"\!",
    r"\$", r"\middle", r"\hfill", r"\allowbreak", r"\nobreak", r"\bf", r"\rm", r"\it", r"\tt", r"\sf", r"\strut",
    r"\bold", r"\large", r"\Large", r"\normalsize", r"\boldmath", r"\relax", r"\negthinspace", r"\pounds", r"\euro",
}  # fmt: skip
_RENAMED = {
    r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\cfrac": r"\frac", r"\dbinom": r"\binom", r"\tbinom": r"\binom",
    r"\choose": r"\choose", r"\leq": r"\le", r"\leqslant": r"\le", r"\geq": r"\ge", r"\geqslant": r"\ge",
    r"\neq": r"\ne", r"\lt": "<", r"\gt": ">", r"\lbrace": r"\{", r"\rbrace": r"\}", r"\lbrack": "[", r"\rbrack": "]",
    r"\lparen": "(", r"\rparen": ")", r"\lvert": "|", r"\rvert": "|", r"\vert": "|", r"\mid": "|", r"\Vert": r"\|",
    r"\lVert": r"\|", r"\rVert": r"\|", r"\%": "%", r"\#": "#", r"\&": "&", r"\_": "_", r"\colon": ":", r"\ast": "*",
    r"\land": ",", r"\lor": ",", r"\wedge": ",", r"\vee": ",", r"\thickapprox": r"\approx", r"\simeq": r"\approx",
    r"\doteq": r"\approx", r"\varnothing": r"\emptyset", r"\smallsetminus": r"\setminus",
    r"\backslash": r"\setminus", r"\arctg": r"\arctan", r"\tg": r"\tan", r"\ctg": r"\cot", r"\cosec": r"\csc",
    r"\imath": "i", r"\i": "i", r"\exponentialE": "e", r"\imaginaryI": "i", r"\varphi": r"\phi",
    r"\varepsilon": r"\epsilon", r"\vartheta": r"\theta", r"\colonequals": "=", r"\coloneqq": "=", r"\iff": ",",
    r"\Leftrightarrow": ",", r"\degrees": r"\degree", r"\celsius": r"\degree", r"\dots": r"\ldots",
    r"\cdots": r"\ldots", r"\mod": r"\bmod", r"\overrightarrow": r"\vec",
    r"\operatorname*": r"\operatorname", r"\rightarrow": r"\to", r"\longrightarrow": r"\to",
}  # fmt: skip

_DOUBLED = re.compile(r"\\\\(?=[a-zA-Z{}%$])")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?=\{)")
_TEXT = re.compile(
    r"\\(text(?:bf|it|rm|normal|sf|tt|up|md)?|mbox|hbox|mathrm|mathbf|mathit|mathsf|mathtt|mathnormal|boldsymbol|bm|"
    r"operatorname|emph|underline|mathord|mathop|textcolor\{[a-z]+\}|color\{[a-z]+\})\s*\{([^{}]*)\}"
)
_JOINS = re.compile(r"(?:,|;)?\s*(?:and|or|and/or|,|;|und|et)\s*", re.IGNORECASE)
_CLOCK = re.compile(r"[ap]\.?\s?m\.?", re.IGNORECASE)
_PLAIN_CLOCK = re.compile(r"(?<=[0-9])\s*([ap])\.\s?m\b\.?", re.IGNORECASE)
# Letters that name a unit in a text wrapper after a value or a slash: 5 \text{m}/\text{s}.
_UNIT_LETTERS = frozenset("mghsLlJNWVKACF")
_VALUE_ENDS = frozenset("0123456789}/)")
_SHORT = re.compile(r"\(?[A-Za-z]\)?[.)]?")
_MATHS = re.compile(r"[-+]?[0-9][0-9 .,:/%+*^()=-]*(?:\s(?:and|or)\s[0-9 .,:/%+*^()=-]+)*")
_COUNTED = re.compile(r"[-+]?\.?[0-9]")
_NAMES = {
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "log", "ln", "lg",
    "exp", "max", "min", "gcd", "lcm", "sgn", "det", "arg", "Re", "Im", "arccot", "arcsec", "arccsc", "deg", "mod",
}  # fmt: skip
_TRAILING = " \t\r\n.,;:\\"  # not "?": a question is no answer


_CENTS = re.compile(
    r"(\d[\d,.]{0,30})(?:\\[ ,;:!]|[\s~]){0,9}(?:\\text\{\s{0,9}cents?\s{0,9}\}|\\?cents?\b|¢)", re.IGNORECASE
)
_DOLLARS = re.compile(r"\\\$|\bdollars?\b|\busd\b", re.IGNORECASE)


def in_dollars(reference: str, answer: str) -> tuple[str, str]:
    """Return two answers in one unit if one of them is in dollars and the other in cents."""
    dollars = [bool(_DOLLARS.search(text)) or text.count("$") == 1 for text in (reference, answer)]
    if dollars == [False, False] or dollars == [True, True]:
        return reference, answer

    def in_hundredths(found: re.Match[str]) -> str:
        return rf"\frac{{{found[1].replace(',', '')}}}{{100}}"

    if dollars[0]:
        return reference, _CENTS.sub(in_hundredths, answer)
    return _CENTS.sub(in_hundredths, reference), answer


def normalize(text: str) -> str:
    r"""Convert to a single dialect: ASCII LaTeX without delimiters, sizes, spacing, currency and simple digit grouping.

    Words stay inside ``\text{...}`` unless they are a join (``and``), a number, a single letter or a function.

    >>> normalize(r"$\left(\dfrac12,\ 1{,}234\right)$.")
    '(\\frac 12, 1234)'
    """
    text = unicodedata.normalize("NFC", text) if not text.isascii() else text
    if not text.isascii():
        text = _VULGAR.sub(_vulgar, text)
        text = _SUPER_RUN.sub(lambda run: "^{" + run[0].translate(_SUPER) + "}", text)
        text = _SUB_RUN.sub(lambda run: "_{" + run[0].translate(_SUB) + "}", text)
        text = text.translate(_TRANSLATE)
    if r"\begin" not in text:
        text = _DOUBLED.sub(r"\\", text)  # escaped twice, as in JSON
    text = _LATEX_GROUPING.sub(lambda number: _NOT_DIGIT.sub("", number[0]), text)
    text = _BRACED_MARK.sub(r"\1", text)
    text = _BOX.sub("", text)
    text = "".join(_piece(piece) for piece in _PIECE.findall(text)).replace("~", " ")
    if "\\" in text:
        text = _TEXT.sub(_unwrap, text)
    text = _INCHES.sub(r"\\text{in}", text)
    text = _PLAIN_CLOCK.sub(r"\\text{\1m}", text)
    text = " ".join(text.split()).lstrip(" ,;:?").rstrip(_TRAILING if not text.endswith(r"\}") else " ")
    if _SPACE_GROUPING.fullmatch(text):
        text = text.replace(" ", "")
    return text


def normalize_spelling(normalized: str) -> str:
    r"""Return the common form of an answer's spellings: spaces only between digits, no text wrappers, no outer braces.

    >>> normalize_spelling(r"1 1/2"), normalize_spelling(r"x  = \text{ten}")
    ('1 1/2', 'x=ten')
    """
    text = _TEXT_LEFT.sub(r"\1", normalized)
    text = _SPACES_NOT_BETWEEN_DIGITS.sub("", text)
    text = _COMMAND_SPACE.sub("", text)
    while len(text) > 2 and text[0] == "{" and text[-1] == "}" and "{" not in text[1:-1] and "}" not in text[1:-1]:
        text = text[1:-1]
    return text


_TEXT_LEFT = re.compile(r"\\text\{([^{}]*)\}")
_SPACES_NOT_BETWEEN_DIGITS = re.compile(r"(?<![0-9]) +| +(?![0-9])")
_COMMAND_SPACE = re.compile(r" +(?=[^0-9A-Za-z])")


def _piece(piece: str) -> str:
    if piece[0] not in "\\$":
        return piece
    if piece in _DELIMITERS or piece in _SPACES:
        return " "
    if piece in _DROPPED:
        return " " if piece == r"\$" else ""
    if _ROW_SPACING.fullmatch(piece):
        return "\\\\ "
    renamed = _RENAMED.get(piece)
    if renamed is None:
        return piece
    return renamed + " " if renamed[-1].isalpha() and renamed[0] == "\\" else renamed


def _unwrap(match: re.Match[str]) -> str:
    wrapper, content = match[1], match[2]
    word = content.strip()
    if not word:
        return " "
    if _JOINS.fullmatch(word):
        return " , "
    if word == "to":
        return " : "
    if word in _NAMES:
        return f"\\{word} "
    if _CLOCK.fullmatch(word):
        return f"\\text{{{word.replace('.', '').replace(' ', '')}}}"
    if word in _UNIT_LETTERS and match.string[: match.start()].rstrip(" \\,~")[-1:] in _VALUE_ENDS:
        return f"\\text{{{content}}}"
    if _SHORT.fullmatch(word) or _MATHS.fullmatch(word) or _COUNTED.match(word):
        return f" {word} "
    if wrapper in ("mathbf", "mathit", "boldsymbol", "bm", "mathnormal") and word.isalpha():
        return f" {word} "
    return f"\\text{{{content}}}"


def _vulgar(match: re.Match[str]) -> str:
    top, _, bottom = unicodedata.normalize("NFKD", match[0]).partition("\u2044")
    return f"\\frac{{{top}}}{{{bottom or 1}}}"
