"""Sources that parse structured text: tables, settings, logs, expressions, durations, codes."""

# The source text of the functions is also the reference solution: plain Python, without annotations.
# mypy: ignore-errors

from __future__ import annotations

import random

from rllm_gym.envs.code.families.building_blocks import Source


def column_totals(lines, by):
    header = lines[0].split(",")
    key, value = header.index(by), header.index("amount")
    totals = {}
    for line in lines[1:]:
        fields = line.split(",")
        if len(fields) == len(header) and fields[value].lstrip("-").isdigit():
            totals[fields[key]] = totals.get(fields[key], 0) + int(fields[value])
    return [f"{name}:{totals[name]}" for name in sorted(totals)]


def merged_settings(lines, winner):
    settings = {}
    for line in lines:
        line = line.split("#")[0].strip()
        if "=" in line:
            name, _, value = line.partition("=")
            name, value = name.strip().lower(), value.strip()
            if winner == "last" or name not in settings:
                settings[name] = value
    return [f"{name}={settings[name]}" for name in sorted(settings)]


def log_times(lines, level):
    order = ["DEBUG", "INFO", "WARN", "ERROR"]
    times = []
    for line in lines:
        parts = line.split(" ", 2)
        if len(parts) == 3 and parts[1] in order and order.index(parts[1]) >= order.index(level):
            hours, minutes = parts[0].split(":")
            times.append(60 * int(hours) + int(minutes))
    return times


def seconds_of(lines):
    units = {"d": 86400, "h": 3600, "m": 60, "s": 1}
    totals = []
    for line in lines:
        total, number = 0, ""
        for character in line:
            if character.isdigit():
                number += character
            elif character in units and number:
                total += int(number) * units[character]
                number = ""
        totals.append(total)
    return totals


def expression_values(lines, m):
    def evaluate(tokens):
        value = term(tokens)
        while tokens and tokens[0] in "+-":
            if tokens.pop(0) == "+":
                value += term(tokens)
            else:
                value -= term(tokens)
        return value

    def term(tokens):
        value = factor(tokens)
        while tokens and tokens[0] == "*":
            tokens.pop(0)
            value *= factor(tokens)
        return value

    def factor(tokens):
        token = tokens.pop(0)
        if token == "(":
            value = evaluate(tokens)
            tokens.pop(0)
            return value
        return int(token)

    values = []
    for line in lines:
        tokens = line.replace("(", " ( ").replace(")", " ) ").split()
        values.append(evaluate(tokens) % m)
    return values


def left_to_right(lines, m):
    values = []
    for line in lines:
        tokens = line.replace("(", "").replace(")", "").split()
        value = int(tokens[0])
        for sign, number in zip(tokens[1::2], tokens[2::2]):
            value = value + int(number) if sign == "+" else value - int(number) if sign == "-" else value * int(number)
        values.append(value % m)
    return values


def expand_counts(text):
    expanded, number = "", ""
    for character in text:
        if character.isdigit():
            number += character
        else:
            expanded += character * int(number or "1")
            number = ""
    return expanded


def expand_groups(text):
    stack = [""]
    numbers, number = [], ""
    for character in text:
        if character.isdigit():
            number += character
        elif character == "[":
            numbers.append(int(number or "1"))
            stack.append("")
            number = ""
        elif character == "]":
            inner = stack.pop()
            stack[-1] += inner * numbers.pop()
        else:
            stack[-1] += character
    return stack[0]


def roman_values(words):
    letters = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
    values = []
    for word in words:
        value = 0
        for index, letter in enumerate(word):
            smaller = index + 1 < len(word) and letters[letter] < letters[word[index + 1]]
            value += -letters[letter] if smaller else letters[letter]
        values.append(value)
    return values


def sort_versions(words):
    return sorted(words, key=lambda word: [int(part) for part in word.split(".")])


def nested_sums(text, factor):
    total, depth, number = 0, 0, ""
    for character in text + " ":
        if character.isdigit():
            number += character
            continue
        if number:
            total += int(number) * factor ** max(0, depth - 1)
            number = ""
        depth += {"[": 1, "]": -1}.get(character, 0)
    return total


def query_values(text):
    values = {}
    for part in text.partition("?")[2].split("&"):
        name, _, value = part.partition("=")
        if name:
            values.setdefault(name, []).append(value)
    return [f"{name}={','.join(values[name])}" for name in sorted(values)]


def wrapped(text, width):
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return lines


def masked_cards(words, keep):
    return ["*" * max(0, len(word) - keep) + word[max(0, len(word) - keep) :] for word in words]


def identifiers(text, style):
    words, word = [], ""
    for character in text:
        if not character.isalnum():
            words, word = [*words, word], ""
        elif character.isupper() and word and not word[-1].isupper():
            words, word = [*words, word], character
        else:
            word += character
    words = [word.lower() for word in [*words, word] if word]
    if style == "snake_case":
        return "_".join(words)
    if style == "kebab-case":
        return "-".join(words)
    joined = "".join(word.capitalize() for word in words)
    return joined if style == "PascalCase" else joined[:1].lower() + joined[1:]


_NAMES = ("ann", "bob", "cy", "dan")
_THINGS = ("tea", "ink", "oil", "fig")


def _table(rng: random.Random, size: int) -> tuple[list[str]]:
    header = ["name", "thing", "amount"]
    rng.shuffle(header)
    lines = [",".join(header)]
    for _ in range(rng.randint(3, 4 + 2 * size)):
        fields = {"name": rng.choice(_NAMES), "thing": rng.choice(_THINGS), "amount": str(rng.randint(-5, 40))}
        if rng.random() < 0.15:
            fields["amount"] = rng.choice(("", "n/a", "1.5"))
        line = ",".join(fields[column] for column in header)
        lines.append(line + ",x" if rng.random() < 0.1 else line)
    return (lines,)


def _settings(rng: random.Random, size: int) -> tuple[list[str]]:
    lines = []
    for _ in range(rng.randint(3, 5 + 2 * size)):
        name = rng.choice(("host", "port", "Port", "mode", "MODE", "user"))
        line = f"{name}{rng.choice(('=', ' = ', '= '))}{rng.choice(('a', 'b', '80', '443', 'on'))}"
        lines.append(rng.choice((line, line, line, f"{line} # new", f"# {line}", "no setting here")))
    return (lines,)


def _log(rng: random.Random, size: int) -> tuple[list[str]]:
    lines = []
    for _ in range(rng.randint(4, 6 + 2 * size)):
        level = rng.choice(("DEBUG", "INFO", "WARN", "ERROR", "NOTE"))
        lines.append(f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d} {level} {rng.choice(_THINGS)} is out")
        if rng.random() < 0.1:
            lines.append("  at line 3")
    return (lines,)


def _durations(rng: random.Random, size: int) -> tuple[list[str]]:
    lines = []
    for _ in range(rng.randint(3, 4 + size)):
        units = [unit for unit in "dhms" if rng.random() < 0.6] or ["m"]
        lines.append(rng.choice(("", " ")).join(f"{rng.randint(0, 70)}{unit}" for unit in units))
    return (lines,)


def _expression(rng: random.Random, depth: int) -> str:
    if depth == 0 or rng.random() < 0.3:
        return str(rng.randint(0, 20))
    parts = [_expression(rng, depth - 1)]
    for _ in range(rng.randint(1, 2)):
        parts += [rng.choice("+-*"), _expression(rng, depth - 1)]
    inside = " ".join(parts)
    return f"({inside})" if rng.random() < 0.5 else inside


def _expressions(rng: random.Random, size: int) -> tuple[list[str]]:
    return ([_expression(rng, 2 + size // 3) for _ in range(rng.randint(3, 4 + size))],)


def _counted(rng: random.Random, size: int) -> tuple[str]:
    pieces = (f"{rng.choice(('', '2', '3', '4', '12'))}{rng.choice('abcxyz')}" for _ in range(rng.randint(2, 4 + size)))
    return ("".join(pieces),)


def _grouped(rng: random.Random, size: int) -> tuple[str]:
    def group(depth: int) -> str:
        pieces = []
        for _ in range(rng.randint(1, 3)):
            if depth and rng.random() < 0.6:
                pieces.append(f"{rng.choice(('2', '3', ''))}[{group(depth - 1)}]")
            else:
                pieces.append("".join(rng.choice("abcxyz") for _ in range(rng.randint(1, 3))))
        return "".join(pieces)

    return (group(1 + size // 3),)


def _romans(rng: random.Random, size: int) -> tuple[list[str]]:
    parts = (("", "M", "MM"), ("", "C", "CD", "D", "CM"), ("", "X", "XL", "L", "LXX", "XC"), ("I", "IV", "VI", "IX"))
    return (["".join(rng.choice(part) for part in parts) for _ in range(rng.randint(3, 4 + size))],)


def _versions(rng: random.Random, size: int) -> tuple[list[str]]:
    return ([".".join(str(rng.choice((0, 1, 2, 3, 9, 10, 11, 20))) for _ in range(rng.randint(1, 3)))
             for _ in range(rng.randint(3, 5 + size))],)  # fmt: skip


def _nested(rng: random.Random, size: int) -> tuple[str]:
    def inside(depth: int) -> str:
        items = [
            inside(depth - 1) if depth and rng.random() < 0.5 else str(rng.randint(0, 30))
            for _ in range(rng.randint(1, 3))
        ]
        return f"[{', '.join(items)}]"

    return (inside(1 + size // 2),)


def _query(rng: random.Random, size: int) -> tuple[str]:
    pairs = [f"{rng.choice(('a', 'b', 'id', 'q', 'page'))}={rng.choice(('1', '2', 'x', 'yes', ''))}"
             for _ in range(rng.randint(2, 3 + size))]  # fmt: skip
    return (f"/{rng.choice(_THINGS)}?{'&'.join(pairs)}",)


def _prose(rng: random.Random, size: int) -> tuple[str]:
    words = ("a", "of", "the", "tree", "river", "stones", "evening", "is", "blue", "and")
    return (" ".join(rng.choice(words) for _ in range(rng.randint(5, 8 + 3 * size))),)


def _cards(rng: random.Random, size: int) -> tuple[list[str]]:
    return (["".join(rng.choice("0123456789") for _ in range(rng.randint(1, 12))) for _ in range(3 + size)],)


def _identifier(rng: random.Random, size: int) -> tuple[str]:
    words = [rng.choice(("max", "value", "user", "id", "list", "node", "x")) for _ in range(rng.randint(2, 3 + size))]
    style = rng.randrange(4)
    if style == 0:
        return ("_".join(words),)
    if style == 1:
        return ("-".join(words),)
    if style == 2:
        return (" ".join(words),)
    return (words[0] + "".join(word.capitalize() for word in words[1:]),)


_LINES = (("lines", "rows"),)
_SUMS_SAY = "`lines` lists expressions of integers, + - * and brackets; operators stand between spaces."
_SUMS = ((["7"],), (["2 - 9"],), (["2 + 3 * 4", "(2 + 3) * 4"],))

SOURCES: dict[str, tuple[Source, ...]] = {
    "records": (
        Source(column_totals, _LINES, "words", "`lines` is a table whose fields are separated by commas. The first "
               "line names the columns: name, thing and amount, in any order.", "A row counts if it has as many fields "
               "as the first line and its amount is an integer (digits, perhaps after a minus sign). Make a list of "
               "KEY:TOTAL, the sum of the amounts for each value in the column {by}, sorted by KEY.", _table,
               ((["name,thing,amount"],), (["amount,name,thing", "3,ann,tea", "x,ann,tea"],)),
               {"by": ("name", "thing")}, 2),
        Source(merged_settings, _LINES, "words", "`lines` lists settings of the form NAME = VALUE.", "What follows a # "
               "is left out, and so is a line without =. Names are made lower case, and spaces around names and values "
               "removed. Where a name occurs more than once its {winner} value counts. Make a list of NAME=VALUE, "
               "sorted by name.", _settings, ((["# nothing"],), (["a=1", "A = 2"],)), {"winner": ("first", "last")}, 2),
        Source(log_times, _LINES, "numbers", "`lines` lists lines of a log, most of the form \"HH:MM LEVEL TEXT\" with "
               "the levels DEBUG, INFO, WARN and ERROR, from the least to the most serious; other lines are left out.",
               "Make a list of the minutes since midnight of the lines whose level is {level} or more serious.", _log,
               ((["00:00 INFO a"],), (["23:59 ERROR b", "broken"],)), {"level": ("DEBUG", "INFO", "WARN", "ERROR")}, 1),
    ),
    "expressions": (
        Source(expression_values, _LINES, "numbers", _SUMS_SAY, "Make a list of their values modulo {m} (from 0 to "
               "{m_less}); * binds more strongly than + and -.", _expressions, _SUMS,
               {"m": (97, 100, 101, 1000, 1009)}, 4),
        Source(left_to_right, _LINES, "numbers", _SUMS_SAY, "Leave the brackets out and evaluate each strictly from "
               "left to right, as if + - * bound equally. Make a list of the values modulo {m} (from 0 to {m_less}).",
               _expressions, _SUMS, {"m": (97, 100, 101, 1000, 1009)}, 2),
        Source(nested_sums, (("text", "text"),), "number", "`text` is a list of integers and such lists, written as in "
               "Python.", "Add all integers up, each times {factor} to the power of the number of lists around it less "
               "one.", _nested, (("[5]",), ("[1, [2, [3]]]",), ("[[7]]",)), {"factor": (2, 3, 5, 10)}, 2),
    ),
    "formats": (
        Source(seconds_of, _LINES, "numbers", "`lines` lists lengths of time such as 1h30m or 2d 5s: numbers, each "
               "followed by d, h, m or s for days, hours, minutes or seconds.",
               "Make a list of the lengths in seconds.",
               _durations, ((["0s"],), (["1d"], )), {}, 1),
        Source(roman_values, (("words", "words"),), "numbers", "`words` lists Roman numerals.", "Make a list of their "
               "values; a letter before one of a greater value is subtracted.", _romans, (([],), (["IV"],),
               (["MCMXC"],)),
               {}, 1),
        Source(sort_versions, (("words", "words"),), "words", "`words` lists version numbers, such as 1.10.2: integers "
               "with dots between them.", "Sort them by the first integer, equal ones by the second, and so on; where "
               "one is the beginning of another, the shorter comes first.", _versions, (([],), (["1"],), (["1.0",
               "1"],)),
               {}, 1),
        Source(masked_cards, (("words", "words"),), "words", "`words` lists numbers of cards, as strings of digits.",
               "Replace all but the last {keep} characters of each by *.", _cards, (([],), (["1"],), (["1234"],)),
               {"keep": (1, 2, 3, 4)}, 1),
    ),
    "codes": (
        Source(expand_counts, (("text", "text"),), "text", "`text` is a code: letters, each of which may have a number "
               "before it.", "Write every letter as often as its number says, or once without one.", _counted,
               (("a",), ("3a",), ("12b2c",)), {}, 1),
        Source(expand_groups, (("text", "text"),), "text", "`text` is a code of letters and groups N[…], where N is a "
               "number, or nothing for 1; groups may hold groups.", "Write what is in each group as often as its "
               "number says.", _grouped, (("a",), ("2[]",), ("2[a3[b]]",)), {}, 3),
        Source(query_values, (("text", "text"),), "words", "`text` is the end of a web address: a path, a question "
               "mark, and NAME=VALUE pairs with & between them.", "Make a list of NAME=VALUES for each name, sorted by "
               "name, its values in their order with commas between them.", _query, (("/a?b=1",), ("/a?",),
               ("/a?x=1&x=2",)),
               {}, 2),
        Source(identifiers, (("text", "text"),), "text", "`text` is a name of several words: the words are separated "
               "by characters that are neither letters nor digits, or by a capital after a small letter or a digit.",
               "Write it as {style}.", _identifier, (("x",), ("max-value",), ("userIdList",)),
               {"style": ("snake_case", "kebab-case", "camelCase", "PascalCase")}, 2),
        Source(wrapped, (("text", "text"),), "rows", "`text` consists of words separated by single spaces.", "Break it "
               "into lines of at most {width} characters, each with as many words as fit, separated by single spaces; "
               "a word that is longer stands alone.", _prose, (("a",), ("stones",), ("a a a a a a",)),
               {"width": range(8, 25)}, 2),
    ),
}  # fmt: skip
