"""Scripts that solve MiniWoB++ from what a model sees: the text, with boxes, and for two tasks the picture.

Every solver is a generator: it yields actions as text and reads the observation before each of them. None reads the
page's variables or markup.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from rllm_gym.envs import miniwob_tasks
from rllm_gym.envs.web import MiniWoBEnv
from tests.browser.long_timeouts import require_chromium, use_long_timeouts

if not miniwob_tasks():
    pytest.skip("the MiniWoB++ pages are not installed: pip install 'rllm-gym[miniwob]'", allow_module_level=True)
require_chromium()


@pytest.fixture(autouse=True)
def long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    use_long_timeouts(monkeypatch, keep_changes_deadline=True)


# Reading an observation


@dataclass
class Item:
    """An element, or a piece of text (role ``text``, without a number)."""

    number: int | None
    role: str
    name: str = ""
    attributes: dict[str, str] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)

    @property
    def box(self) -> tuple[int, int, int, int]:
        left, top, width, height = map(int, re.split("[, x]", self.attributes["box"]))
        return left, top, width, height

    @property
    def center(self) -> tuple[float, float]:
        left, top, width, height = self.box
        return left + width / 2, top + height / 2

    @property
    def rgb(self) -> tuple[int, ...]:
        return tuple(map(int, re.findall(r"\d+", self.attributes.get("color", ""))[:3]))

    @property
    def points(self) -> list[tuple[float, float]]:
        return [tuple(map(float, pair.split(","))) for pair in self.attributes["points"].split()]  # type: ignore[misc]


_TOKENS = re.compile(r'\[(\d+)\](?= )|([\w-]+)=("(?:[^"\\]|\\.)*"|\[[^\]]*\])|"((?:[^"\\]|\\.)*)"|([^\s|"]+)')
_FLAGS = {"checked", "selected", "disabled", "focused", "readonly", "multiple", "expanded", "collapsed", "pressed"}


def read(text: str) -> list[Item]:
    """Return the items of an observation, in order."""
    items: list[Item] = []
    for line in text.partition("Page:\n")[2].splitlines():
        current: Item | None = None
        for number, key, value, name, word in _TOKENS.findall(line):
            if number:
                current = Item(int(number), "")
                items.append(current)
            elif key:
                assert current is not None
                current.attributes[key] = value[1:-1]
            elif word:
                if current is not None and not current.role:
                    current.role = word
                elif word in _FLAGS and current is not None:
                    current.flags.add(word)
                else:
                    current = Item(None, word)
                    items.append(current)
            elif (
                current is not None
                and current.role
                and not current.name
                and (current.number is not None or not current.attributes)
            ):
                current.name = name.replace('\\"', '"')
            else:
                current = Item(None, "text", name.replace('\\"', '"'))
                items.append(current)
            if name and len(items) > 1 and items[-1].role == "text" and items[-2].role == "listitem":
                items[-2].name = items[-2].name or current.name  # the text of an item, on a line of its own
    return items


class Sight:
    """What a solver sees of an episode."""

    def __init__(self, env: MiniWoBEnv) -> None:
        self._env = env

    @property
    def goal(self) -> str:
        return self._env.goal

    @property
    def items(self) -> list[Item]:
        return read(self._env.page.text)

    @property
    def image(self) -> np.ndarray:
        assert self._env.page.image is not None
        return self._env.page.image

    @property
    def quoted(self) -> list[str]:
        return re.findall(r'"([^"]*)"', self.goal)

    def all(self, *roles: str, name: str | None = None, looks: str | None = None) -> list[Item]:
        return [
            item
            for item in self.items
            if (not roles or item.role in roles)
            and (name is None or item.name.lower().strip() == name.lower())
            and (looks is None or looks in item.attributes.get("class", "").split())
            and (item.number is not None or roles)
        ]

    def one(self, *roles: str, name: str | None = None, looks: str | None = None, nth: int = 0) -> Item:
        return self.all(*roles, name=name, looks=looks)[nth]

    def texts(self) -> list[str]:
        return [item.name for item in self.items if item.name]

    def until(self, shown: Callable[[], object]) -> Iterator[str]:
        """Wait, however long the machine needs, until the page shows something."""
        while not shown():
            yield "wait(100)"


Solver = Callable[[Sight], Iterator[str]]
SOLVERS: dict[str, Solver] = {}
PICTURE = {"count-sides", "visual-addition"}
"""Tasks of which the text does not show everything."""


def solves(*tasks: str) -> Callable[[Solver], Solver]:
    def register(solver: Solver) -> Solver:
        SOLVERS.update(dict.fromkeys(tasks, solver))
        return solver

    return register


def click(item: Item) -> str:
    return f"click({item.number})"


def fill(item: Item, text: str) -> str:
    return f"fill({item.number}, {text!r})"


def at(x: float, y: float) -> str:
    return f"mouse_click({x:.1f}, {y:.1f})"


def drag(start: tuple[float, float], end: tuple[float, float]) -> str:
    return f"mouse_drag_and_drop({start[0]:.1f}, {start[1]:.1f}, {end[0]:.1f}, {end[1]:.1f})"


def submit(see: Sight) -> str:
    return click(named(see, "Submit")[-1])


def named(see: Sight, name: str) -> list[Item]:
    """Return what has a number and a name."""
    return [item for item in see.items if item.name == name and item.number is not None]


# Buttons, links and tabs


@solves("click-test", "click-test-2", "click-test-transfer", "click-button", "click-link", "click-dialog-2",
        "click-tab", "click-dialog", "unicode-test")  # fmt: skip
def click_named(see: Sight) -> Iterator[str]:
    words = re.search(r"button (ONE)|(Tab #\d)|(Close) the dialog", see.goal)
    name = (words and next(filter(None, words.groups()))) or (see.quoted or ["Click Me!"])[-1]
    if words and words[1]:
        yield f'press({see.one(name="ONE").number}, "Enter")'  # one button may cover the other
    yield click(see.one("button", "link", "clickable", "tab", name="Close" if name == "x" else name, nth=-1))


@solves("click-button-sequence", "button-delay")
def click_both(see: Sight) -> Iterator[str]:
    yield f'press({see.one(name="ONE").number}, "Enter")'  # by keyboard: one box may cover the other
    if seconds := re.search(r"wait (\d+) seconds", see.goal):
        yield f"wait({int(seconds[1]) * 1000})"
    yield f'press({see.one(name="TWO").number}, "Enter")'


@solves("click-tab-2", "click-tab-2-easy", "click-tab-2-medium", "click-tab-2-hard")
def search_tabs(see: Sight) -> Iterator[str]:
    for tab in [item.name for item in see.all("tab")]:
        yield click(see.one("tab", name=tab))
        if found := see.all("clickable", "link", name=see.quoted[0]):
            yield click(found[0])


@solves("click-collapsible", "click-collapsible-nodelay")
def expand(see: Sight) -> Iterator[str]:
    yield click(see.one("tab"))
    yield from see.until(lambda: named(see, "Submit"))
    yield submit(see)


@solves("click-collapsible-2", "click-collapsible-2-nodelay")
def search_sections(see: Sight) -> Iterator[str]:
    for section in [item.name for item in see.all("tab") if item.name.startswith("Section")]:
        yield click(see.one("tab", name=section))
        yield "wait(500)"
        if found := see.all("clickable", "link", name=see.quoted[0]):
            yield click(found[0])


@solves("click-menu")
def open_menus(see: Sight) -> Iterator[str]:
    *before, last = re.sub("Select ", "", see.goal).split(">")
    for name in before:
        yield from see.until(lambda name=name: see.all("menuitem", name=name))  # type: ignore[misc]
        yield f"hover({see.one('menuitem', name=name).number})"
    yield from see.until(lambda: see.all("menuitem", name=last))
    yield click(see.one("menuitem", name=last))


@solves("click-menu-2")
def menu_with_icons(see: Sight) -> Iterator[str]:
    yield click(see.one("button", name="Menu"))
    icons = {"disk": "Save", "zoomin": "Zoom In", "zoomout": "Zoom Out", "print": "Print...", "play": "Play",
             "stop": "Stop", "seek-start": "Prev", "seek-end": "Next"}  # fmt: skip
    icon = re.search(r"with the (\S+) icon", see.goal)
    name = icons[icon[1]] if icon else see.quoted[-1]
    if name in ("Prev", "Stop", "Play", "Next"):
        yield f"hover({see.one('menuitem', name='Playback').number})"
    yield from see.until(lambda: see.all("menuitem", name=name))
    yield click(see.one("menuitem", name=name))


@solves("click-pie", "click-pie-nodelay")
def open_pie(see: Sight) -> Iterator[str]:
    yield click(see.one("text", name="+"))
    yield from see.until(lambda: named(see, see.quoted[-1]))
    yield click(named(see, see.quoted[-1])[0])


@solves("navigate-tree")
def open_folders(see: Sight) -> Iterator[str]:
    opened = 0
    while not (found := see.all("clickable", "listitem", name=see.quoted[0])):
        folders = [item for item in see.all("clickable") if "hitarea" in item.attributes.get("class", "")]
        closed = [item for item in folders if "expandable-hitarea" in item.attributes["class"]]
        yield click(closed[0])
        opened += 1
    yield click(found[-1])


@solves("sign-agreement")
def agree(see: Sight) -> Iterator[str]:
    box = see.one("textbox")
    if see.quoted:
        yield f'press({box.number}, "Control+End")'
        for _ in range(8):
            yield f'scroll("down", {box.number})'
        yield fill(see.one("textbox", nth=-1), see.quoted[0])
        yield click(see.one("button", "clickable", name=see.quoted[1]))
    yield click(see.one("button", "clickable", name="Cancel"))


# Choosing


@solves("click-checkboxes", "click-checkboxes-large", "click-checkboxes-transfer", "click-option")
def choose(see: Sight) -> Iterator[str]:
    wanted = re.fullmatch(r"Select (.*) and click Submit\.?", see.goal)
    assert wanted is not None
    for name in [] if wanted[1] == "nothing" else wanted[1].split(", "):
        yield click(see.one("checkbox", "radio", name=name))
    yield submit(see)


_SYNONYMS = """big large huge enormous gigantic|small tiny little mini petite|red scarlet crimson vermillion|
happy cheerful joyful gleeful delighted|sad unhappy sorrowful miserable tragic|angry mad furious irritated|
evil wicked immoral sinful corrupt depraved|wrong incorrect mistaken erroneous|real genuine actual|
strange odd peculiar unusual weird|stop cease halt end finish|scared afraid fearful panicked terrified|
quiet calm peaceful still serene|old aged archaic ancient|love affection adoration|car automobile vehicle|
kill murder assassinate|cut chop|cat kitty kitten cats kittens|dog puppy hound|rabbit bunny hare rabbits|
house home homes houses|scary frightening|sleeping asleep snoozing|lie fib|begin start commence initiate|
ugly hideous unattractive|fast quick speedy swift rapid|food meal|television televisions tv tvs|
pig pigs swine|mountains peaks|forest woods|sea ocean|trousers pants jeans|ship boat|road street|
water liquid|fire flames inferno|trash garbage rubbish|swine pork pigs"""


@solves("click-checkboxes-soft")
def choose_similar(see: Sight) -> Iterator[str]:
    wanted = re.fullmatch(r"Select words similar to (.*) and click Submit\.?", see.goal)
    assert wanted is not None
    groups = [set(group.split()) for group in _SYNONYMS.replace("\n", " ").split("|")]
    for word in wanted[1].split(", "):
        near = {word, f"{word}s", word.rstrip("s")}.union(*(group for group in groups if word in group))
        yield from (click(box) for box in see.all("checkbox") if box.name in near and "checked" not in box.flags)
    yield submit(see)


@solves("choose-list", "click-scroll-list")
def pick(see: Sight) -> Iterator[str]:
    wanted = re.fullmatch(r"Select (.*) from the (?:scroll )?list and click Submit\.", see.goal)
    assert wanted is not None
    yield f"select({see.one('combobox', 'listbox').number}, {wanted[1].split(', ')!r})"
    yield submit(see)


@solves("form-sequence-3")
def form_3(see: Sight) -> Iterator[str]:
    wanted = re.search(r"Choose (.*) from the dropdown", see.goal)
    assert wanted is not None
    yield click(see.all("clickable")[0])
    yield from see.until(lambda: named(see, wanted[1]))
    yield click(named(see, wanted[1])[0])
    yield click(see.one("button", name=see.quoted[0]))


def moved_slider(see: Sight, handle: int, track: int, value: Callable[[], int], wanted: int) -> Iterator[str]:
    """Focus a slider's handle and press keys until its value is shown."""
    yield f"focus({handle})"
    while (left := wanted - value()) != 0:
        yield f'press("{"ArrowRight" if left > 0 else "ArrowLeft"}")'


def numbers_shown(see: Sight) -> list[int]:
    return [int(text) for text in see.texts() if re.fullmatch(r"-?\d+", text)]


@solves("use-slider", "use-slider-2")
def slide(see: Sight) -> Iterator[str]:
    wanted = [int(number) for number in re.findall(r"-?\d+", see.goal)]
    for index, number in enumerate(wanted):
        handle = see.all(looks="ui-slider-handle")[index].number
        assert handle is not None
        yield from moved_slider(see, handle, 0, lambda index=index: numbers_shown(see)[index], number)
    yield submit(see)


@solves("form-sequence")
def form(see: Sight) -> Iterator[str]:
    wanted, box = re.findall(r"-?\d+", see.goal)
    handle = see.one(looks="ui-slider-handle").number
    assert handle is not None
    yield from moved_slider(see, handle, 0, lambda: numbers_shown(see)[0], int(wanted))
    yield click(see.all("checkbox")[int(box) - 1])
    yield submit(see)


@solves("form-sequence-2")
def form_2(see: Sight) -> Iterator[str]:
    found = re.search(r"(\d)\w\w radio.*\"(.*)\" into the (\d)", see.goal)
    other = re.search(r"\"(.*)\" into the (\d)\w\w textbox.*(\d)\w\w radio", see.goal)
    radio, text, box = found.groups() if found else (other[3], other[1], other[2])  # type: ignore[index]
    steps = [lambda: click(see.all("radio")[int(radio) - 1]), lambda: fill(see.all("textbox")[int(box) - 1], text)]
    for step in steps if found else reversed(steps):
        yield step()
    yield submit(see)


@solves("use-spinner")
def spin(see: Sight) -> Iterator[str]:
    yield fill(see.one("spinbutton"), re.findall(r"-?\d+", see.goal)[0])
    yield submit(see)


@solves("odd-or-even")
def odd_or_even(see: Sight) -> Iterator[str]:
    for index, number in enumerate(numbers_shown(see)):
        yield click(see.all("button", name="Odd" if number % 2 else "Even")[index])
    yield submit(see)


# Fields


@solves("enter-text", "enter-text-dynamic", "enter-password", "login-user", "login-user-popup", "enter-text-2")
def enter(see: Sight) -> Iterator[str]:
    words = see.quoted
    if "lower case" in see.goal or "upper case" in see.goal:
        words = [words[0].lower() if "lower case" in see.goal else words[0].upper()]
    for index in range(len(see.all("textbox"))):
        yield fill(see.all("textbox")[index], words[min(index, len(words) - 1)])
        if cancel := see.all("button", "link", "clickable", name="Cancel"):
            yield click(cancel[0])
            yield fill(see.all("textbox")[index], words[min(index, len(words) - 1)])
    yield click(see.one("button", nth=-1))


@solves("focus-text", "focus-text-2")
def focus(see: Sight) -> Iterator[str]:
    place = re.search(r"\d", see.goal)
    yield click(see.all("textbox")[int(place[0]) - 1 if place else 0])


@solves("enter-date")
def enter_date(see: Sight) -> Iterator[str]:
    month, day, year = re.findall(r"\d+", see.goal)
    yield fill(see.one("textbox"), f"{year}-{month}-{day}")
    yield submit(see)


@solves("enter-time")
def enter_time(see: Sight) -> Iterator[str]:
    hour, minute = map(int, re.findall(r"\d+", see.goal))
    yield fill(see.one("textbox"), f"{hour % 12 + 12 * ('PM' in see.goal):02}:{minute:02}")
    yield submit(see)


@solves(
    "find-word", "scroll-text", "text-transform", "simple-arithmetic", "simple-algebra", "read-table", "read-table-2"
)
def answer_in_fields(see: Sight) -> Iterator[str]:
    texts = [item.name for item in see.items if item.role in ("text", "row") or (item.number is None and item.name)]
    answers = []
    if place := re.search(r"Find the (\d+)\w\w word", see.goal):
        words = re.sub(r"[.,]", "", " ".join(texts)).split()
        answers = [words[int(place[1]) - 1]]
    elif "last word" in see.goal:
        answers = [see.one("textbox").attributes["value"].split()[-1].strip(".,")]
    elif "text below" in see.goal:
        answers = ["".join(texts)]
    elif "math problem" in see.goal:
        left, sign, right = re.findall(r"-?\d+|[+x-]", texts[0])[:3]
        answers = [str({"+": int(left) + int(right), "-": int(left) - int(right), "x": int(left) * int(right)}[sign])]
    elif "Solve for x" in see.goal:
        answers = [next(str(n) for n in range(-200, 200) if holds(texts[0], n))]
    else:
        cells = dict(zip(texts[::2], texts[1::2], strict=False))
        wanted = re.findall(r"value of (.*) into", see.goal) or [text[:-1] for text in texts if text.endswith(":")]
        answers = [cells[name] for name in wanted]
    fields = [item.number for item in see.all("textbox") if item.attributes.get("value", "") == ""]
    for number, text in zip(fields, answers, strict=True):
        yield f"fill({number}, {text!r})"
    yield submit(see)


def holds(equation: str, x: int) -> bool:
    left, right = equation.replace("=", " = ").split(" = ")
    values = []
    for side in (left, right):
        parts = [str(x) if part == "x" else part for part in side.split()]
        value, sign = 0, 1
        for part in parts:
            if part in "+-":
                sign = 1 if part == "+" else -1
            else:
                value, sign = value + sign * int(part), 1
        values.append(value)
    return values[0] == values[1]


@solves("guess-number")
def guess(see: Sight) -> Iterator[str]:
    low, high = 0, 9
    while True:
        middle = (low + high) // 2
        yield fill(see.one("spinbutton", "textbox"), str(middle))
        yield submit(see)
        feedback = " ".join(see.texts())
        if "lower than" in feedback:
            high = middle - 1
        else:
            low = middle + 1


@solves("generate-number")
def generate(see: Sight) -> Iterator[str]:
    bound = re.findall(r"\d+", see.goal)
    fits = {
        "less": lambda n: n < int(bound[0]),
        "greater": lambda n: n > int(bound[0]),
        "odd": lambda n: n % 2 == 1,
        "even": lambda n: n % 2 == 0,
    }
    kind = next(word for word in fits if word in see.goal)
    while not (numbers_shown(see) and fits[kind](numbers_shown(see)[0])):
        yield click(see.one("button", name="Generate"))
    yield submit(see)


@solves("use-autocomplete", "use-autocomplete-nodelay")
def autocomplete(see: Sight) -> Iterator[str]:
    start, end = [*see.quoted, ""][:2]
    yield f"fill({see.one('textbox').number}, {start!r}, True)"

    def found() -> list[Item]:
        items = [item for item in see.items if item.number is not None and item.name.startswith(start)]
        return [item for item in items if item.name.endswith(end)]

    yield from see.until(found)
    yield click(found()[0])
    yield submit(see)


@solves("search-engine")
def search(see: Sight) -> Iterator[str]:
    place = int(re.findall(r"(\d+)\w\w search result", see.goal)[0])
    yield fill(see.one("textbox"), see.quoted[0])
    yield click(see.one("button", name="Search"))
    page = 1
    while place > 3:
        page, place = page + 1, place - 3
        yield click(see.one("link", "clickable", name=str(page)))
    links = [item for item in see.all("link", "clickable") if not re.fullmatch(r"[\d<>]+", item.name) and item.name]
    yield click(links[place - 1])


@solves("multi-layouts", "multi-orderings")
def search_movies(see: Sight) -> Iterator[str]:
    found = re.search(r"Search for (.*) movies directed by (.*) from year (\d+)", see.goal)
    assert found is not None
    words = dict(zip(("genre", "director", "year"), found.groups(), strict=True))
    label = ""
    steps = []
    for item in see.items:
        if item.role == "textbox":
            steps.append(fill(item, words[(item.name or label).strip(": ").lower()]))
        elif item.name:
            label = item.name
    yield from steps
    yield submit(see)


@solves("copy-paste", "copy-paste-2")
def copy_and_paste(see: Sight) -> Iterator[str]:
    place = re.search(r"the (\d)\w\w text area", see.goal)
    boxes = see.all("textbox")
    empty = next(item for item in boxes if item.attributes["value"] == "")
    areas = [item for item in boxes if item.number != empty.number]
    yield f'press({areas[int(place[1]) - 1 if place else 0].number}, "Control+a")'
    yield 'press("Control+c")'
    yield f'press({empty.number}, "Control+v")'
    yield submit(see)


@solves("highlight-text", "highlight-text-2")
def highlight(see: Sight) -> Iterator[str]:
    place = re.search(r"the (\d)\w\w paragraph", see.goal)
    texts = [item.name for item in see.items if item.role == "text"]
    yield f"select_text({texts[int(place[1]) - 1 if place else 0]!r})"
    yield submit(see)


@solves("text-editor")
def edit(see: Sight) -> Iterator[str]:
    box = see.one("textbox")
    word = re.search(r"give the text (\S+) the (\w+) (\w+)", see.goal)
    style = re.search(r"the (?:style|color) (\w+)", see.goal)
    assert style is not None
    yield f"select_text({(word[1] if word else box.attributes['value'])!r}, {box.number})"
    yield "wait(200)"  # the editor looks for a new selection ten times per second
    name = {"bold": "bold", "italics": "italic", "underlined": "underline"}.get(style[1])
    if name:
        yield click(see.one(looks=f"ql-{name}"))
    else:
        yield click(see.one(looks="ql-picker-label"))
        wanted = {"red": (230, 0, 0), "orange": (255, 153, 0), "yellow": (255, 255, 0), "green": (0, 138, 0),
                  "blue": (0, 102, 204), "purple": (153, 51, 255)}[style[1]]  # fmt: skip
        yield click(next(item for item in see.items if item.rgb == wanted and item.number is not None))
    yield submit(see)


@solves("terminal")
def delete_file(see: Sight) -> Iterator[str]:
    ending = re.search(r"extension (\.\w+)", see.goal)

    def typed(command: str) -> Iterator[str]:
        yield f"type({see.one('textbox').number}, {command!r})"
        yield 'press("Enter")'

    yield from typed("ls")
    files = re.findall(r"[\w.-]+", " ".join(see.texts()).split("ls")[-1])
    name = next(item for item in files if (item.endswith(ending[1]) if ending else "." not in item and item != "user"))
    yield from typed(f"rm {name}")


# Dates, lists and forms of applications

_MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
           "December"]  # fmt: skip


def choose_day(see: Sight, month: int, day: int, field_: Item) -> Iterator[str]:
    yield click(field_)
    yield from see.until(lambda: re.search("|".join(_MONTHS), " ".join(see.texts())))
    while True:
        shown = re.search("|".join(_MONTHS), " ".join(see.texts()))
        assert shown is not None
        difference = _MONTHS.index(shown[0]) + 1 - month
        if not difference:
            break
        yield click(see.one("link", "clickable", "button", name="Prev" if difference > 0 else "Next"))
    yield click(see.one("link", name=str(day)))


@solves("choose-date", "choose-date-easy", "choose-date-medium", "choose-date-nodelay")
def choose_date(see: Sight) -> Iterator[str]:
    month, day, _ = map(int, re.findall(r"\d+", see.goal))
    yield from choose_day(see, month, day, see.one("textbox"))
    yield submit(see)


@solves("book-flight", "book-flight-nodelay")
def book_flight(see: Sight) -> Iterator[str]:
    found = re.search(r"Book the (\w+) one-way flight from: (.*) to: (.*) on (\d+)/(\d+)/\d+", see.goal)
    assert found is not None
    for name, place in (("From:", found[2]), ("To:", found[3])):
        yield f"fill({see.one('textbox', name=name).number}, {place!r}, True)"

        def offered(place: str = place) -> list[Item]:
            return [
                item for item in see.items if item.number is not None and place in item.name and item.role != "textbox"
            ]

        yield from see.until(offered)
        yield click(offered()[0])
    yield from choose_day(see, int(found[4]), int(found[5]), see.all("textbox")[2])
    yield click(see.one("button", name="Search"))
    books = [item for item in see.all("button", "clickable", "link") if "Book" in item.name]
    if found[1] == "cheapest":
        yield click(min(books, key=lambda item: int(re.findall(r"\$(\d+)", item.name)[0])))
    else:
        yield click(books[durations(see).index(min(durations(see)))])


def durations(see: Sight) -> list[int]:
    found = re.findall(r"(\d+)h(?: (\d+)m)?", " ".join(see.texts()))
    return [int(hours) * 60 + int(minutes or 0) for hours, minutes in found]


@solves("buy-ticket")
def buy_ticket(see: Sight) -> Iterator[str]:
    prices = [int(re.findall(r"\$(\d+)", item.name)[0]) for item in see.all("button")]
    values = durations(see) if "duration" in see.goal else prices
    best = (max if "longest" in see.goal or "highest" in see.goal else min)(values)
    yield click(see.all("button")[values.index(best)])


def mails(see: Sight) -> dict[str, list[Item]]:
    """Return the items of each mail in the list by its sender."""
    found: dict[str, list[Item]] = {}
    current: list[Item] = []
    for item in see.items:
        if item.role == "clickable" and re.search(r" 155x\d+$", item.attributes.get("box", "")):
            current = [item]
        elif current:
            if item.role == "text" and len(current) == 1:
                found[item.name] = current
            current.append(item)
    return found


@solves(*(task for task in miniwob_tasks() if task.startswith("email-inbox")))
def mail(see: Sight) -> Iterator[str]:
    people = list(mails(see))
    text = re.findall(r'"([^"]*)"', see.goal)
    plain = re.sub(r'"[^"]*"', "", see.goal)
    named = [word for word in re.findall(r"\w+", re.sub("'s", "", plain)) if word in people]
    others = [word for word in re.findall(r"\b[A-Z]\w+", re.sub("'s", "", plain)) if word not in people]
    forward = re.search(r"forward|send|pass|give", plain.lower()) and not text
    if forward:
        to = re.search(r"\bto ([A-Z]\w+)", plain)
        to = to or re.search(r"(?:[Ff]orward|[Ss]end|[Gg]ive) ([A-Z]\w+)\b(?!'s)", plain)
        receiver = to[1] if to else [*others, *named][-1]
        sender = next(name for name in named if name != receiver) if any(n != receiver for n in named) else named[0]
    else:
        sender, receiver = named[0], ""
    parts = mails(see)[sender]
    if not text and not forward:
        kind = "trash" if re.search(r"trash|delet|remov|rid|toss|throw|discard|erase", plain.lower()) else "star"
        yield click(next(item for item in parts if item.attributes.get("class") == kind))
        return
    yield click(parts[0])
    if forward:
        yield click(see.one(name="Forward"))
        yield fill(see.one("textbox"), receiver)
    else:
        yield click(see.one(name="Reply"))
        yield fill(see.one("textbox", nth=-1), text[0])
    yield click(see.one(looks="send") if see.all(looks="send") else see.all("clickable")[1])


@solves("phone-book")
def phone_book(see: Sight) -> Iterator[str]:
    found = re.search(r"Find (\w+) in the contact book and click on their (phone|email|address)", see.goal)
    assert found is not None
    while see.one("heading").name != found[1]:
        yield click(see.one("link", name=">"))
    values = see.all("clickable")
    yield click(values[("phone", "email", "address").index(found[2])])


@solves("order-food")
def order(see: Sight) -> Iterator[str]:
    names = re.search(r"one of each item: (.*)", see.goal)
    kind = re.search(r"Order (\d+) items that are (.*)", see.goal)
    dishes: list[tuple[str, list[str], Item]] = []
    name, marks = "", []
    for item in see.items:
        if item.role == "text":
            name, marks = item.name, []
        elif item.role == "image":
            marks.append(item.name)
        elif item.name == "+" and item.number is not None:
            dishes.append((name, marks, item))
    if names:
        left = names[1]
        for name, _, plus in sorted(dishes, key=lambda dish: -len(dish[0])):
            if name in left:
                left = left.replace(name, "", 1)
                yield click(plus)
    else:
        assert kind is not None
        fitting = [plus for _, marks, plus in dishes if kind[2].strip(".").lower() in marks]
        for index in range(int(kind[1])):
            yield click(fitting[index % len(fitting)])
    yield click(next(item for item in see.items if item.number is not None and re.match("Order|Submit", item.name)))


def posts(see: Sight) -> list[tuple[str, list[Item]]]:
    found: list[tuple[str, list[Item]]] = []
    for item in see.items:
        if item.role == "text" and (user := re.search(r"@\w+", item.name)):
            found.append((user[0], []))
        elif item.number is not None and found:
            found[-1][1].append(item)
    return found


@solves("social-media", "social-media-all", "social-media-some")
def social(see: Sight) -> Iterator[str]:
    user = re.findall(r"@\w+", see.goal)[0]
    count = re.search(r"on (\d+) post", see.goal)
    kind = see.quoted[0].lower()
    wanted = [items for name, items in posts(see) if name == user][: int(count[1]) if count else None]
    for items in wanted:
        direct = [item for item in items if item.attributes.get("class") == kind]
        if direct:
            yield click(direct[0])
        else:
            more = next(item for item in items if item.attributes.get("class") == "more")
            yield f"hover({more.number})"  # the image under the mouse is another one, which has to be loaded
            yield click(more)
            yield click(next(item for item in see.all("listitem") if item.name.lower().startswith(kind)))
    yield submit(see)


@solves("daily-calendar")
def plan(see: Sight) -> Iterator[str]:
    hours = re.search(r"Create an? ([\d.]+) (hour|min)", see.goal)
    window = re.search(r"between (\d+)(AM|PM) and (\d+)(AM|PM)", see.goal)
    assert hours is not None
    assert window is not None
    slots = round(float(hours[1]) * 2) if hours[2] == "hour" else int(hours[1]) // 30
    start, end = ((int(window[n]) % 12 + 12 * (window[n + 1] == "PM")) * 2 for n in (1, 3))
    # Events are drawn 20 px per half hour, the lines of the calendar are 20.5 px apart: the new one is not where the
    # mouse is, and the button has to be released on it.
    half_hours = see.all(looks="half-hour")
    zero = half_hours[0].box[1] - 32
    taken = {
        round((item.box[1] - zero) / 20) + n
        for item in see.items
        if item.name and item.number is not None and "drop" in item.attributes.get("for", "")
        for n in range(round(item.box[3] / 20))
    }
    first = next(n for n in range(start, end - slots + 1) if not taken & set(range(n - 1, n + slots + 1)))
    numbers = [item.number for item in half_hours]
    yield f"scroll_to({numbers[first]})"
    places = [item.center for item in see.all(looks="half-hour")]
    yield "mouse_down({:.1f}, {:.1f})".format(*places[first])
    yield f"mouse_move({places[first + slots - 1][0]:.1f}, {places[first + slots - 1][1] + 1:.1f})"
    yield "mouse_up({:.1f}, {:.1f})".format(*see.one(name="New event").center)
    yield fill(see.one("textbox"), see.quoted[0])
    yield click(next(item for item in see.items if item.number is not None and item.name == "Create"))


# Drawings, dragging and the mouse

_COLORS = {"red": (255, 0, 0), "green": (0, 128, 0), "blue": (0, 0, 255), "aqua": (0, 255, 255), "black": (0, 0, 0),
           "magenta": (255, 0, 255), "yellow": (255, 255, 0), "orange": (255, 165, 0), "white": (255, 255, 255),
           "gray": (128, 128, 128), "grey": (128, 128, 128), "pink": (255, 192, 203), "purple": (128, 0, 128),
           "lime": (0, 255, 0), "cyan": (0, 255, 255), "olive": (128, 128, 0), "navy": (0, 0, 128),
           "brown": (165, 42, 42)}  # fmt: skip
_KINDS = {"rectangle": "rect", "circle": "circle", "triangle": "polygon"}


def color_in(text: str) -> tuple[int, ...] | None:
    if found := re.search(r"rgb\((\d+), (\d+), (\d+)\)", text):
        return tuple(map(int, found.groups()))
    return next((rgb for name, rgb in _COLORS.items() if re.search(rf"\b{name}\b", text)), None)


def shapes(see: Sight) -> list[Item]:
    return [
        item for item in see.items if item.role in ("rect", "circle", "polygon", "text") and "color" in item.attributes
    ]


def fitting(see: Sight, text: str) -> list[Item]:
    """Return the shapes that a description such as "large red 3s" fits."""
    rgb = color_in(text)
    sizes = [item.box[3] for item in shapes(see)]
    found = []
    for item in shapes(see):
        letter = item.role == "text"
        large = item.box[3] >= (18 if letter else 15)
        wanted = re.search(r"(\w+?)s?\??$", text.replace(" are there?", "").strip())
        assert wanted is not None
        kind = wanted[1]
        fits = {
            "item": True, "letter": letter and item.name.isalpha(), "digit": letter and item.name.isdigit(),
            "shape": not letter, **{word: item.role == role for word, role in _KINDS.items()},
        }.get(kind, letter and item.name == kind)  # fmt: skip
        if (
            fits
            and (rgb is None or item.rgb == rgb)
            and ("large" not in text or large)
            and ("small" not in text or not large)
        ):
            found.append(item)
    assert sizes
    return found


@solves("click-shape")
def click_shape(see: Sight) -> Iterator[str]:
    yield click(fitting(see, see.goal)[0])


@solves("count-shape")
def count_shapes(see: Sight) -> Iterator[str]:
    yield click(see.one("button", name=str(len(fitting(see, see.goal)))))


@solves("identify-shape")
def identify(see: Sight) -> Iterator[str]:
    (shape,) = shapes(see)
    text = "Letter" if shape.name.isalpha() else "Number"
    yield click(
        see.one("button", name={"rect": "Rectangle", "circle": "Circle", "polygon": "Triangle"}.get(shape.role, text))
    )


@solves("click-color")
def click_color(see: Sight) -> Iterator[str]:
    yield click(next(item for item in see.items if item.rgb == color_in(see.goal)))


@solves("click-shades")
def click_shades(see: Sight) -> Iterator[str]:
    part = {"red": 0, "green": 1, "blue": 2}[re.findall(r"shades of (\w+)", see.goal)[0]]
    for item in see.all("clickable"):
        if item.rgb and item.rgb[part] == max(item.rgb) and sorted(item.rgb)[1] < max(item.rgb):
            yield click(item)
    yield submit(see)


@solves("click-widget")
def click_widget(see: Sight) -> Iterator[str]:
    kind = see.quoted[0]
    for item in see.items:
        if item.number is None:
            continue
        tall = item.box[3] > 23
        if item.role == {"text": "textbox", "textarea": "textbox"}.get(kind, kind) and (
            item.role != "textbox" or tall == (kind == "textarea")
        ):
            yield click(item)


@solves("count-sides")
def count_sides(see: Sight) -> Iterator[str]:
    """The corners of an outline are the places that are farthest from its center."""
    left, top, width, height = see.one("canvas").box
    dark = np.argwhere(see.image[top : top + height, left : left + width].sum(2) < 300)
    offsets = dark - dark.mean(0)
    angles, radii = np.arctan2(offsets[:, 0], offsets[:, 1]), np.hypot(offsets[:, 0], offsets[:, 1])
    profile = np.array([radii[np.abs((angles - a + math.pi) % (2 * math.pi) - math.pi) < 0.12].max() for a in
                        np.linspace(-math.pi, math.pi, 240, endpoint=False)])  # fmt: skip
    spectrum = np.abs(np.fft.rfft(profile - profile.mean()))
    yield click(see.one("button", name=str(3 + int(np.argmax(spectrum[3:8])))))


@solves("visual-addition")
def count_blocks(see: Sight) -> Iterator[str]:
    """Blocks are filled boxes of one size: count the columns of colored pixels in every row of them."""
    top = see.one("textbox").box[1]
    colored = (see.image[50 : top - 4, :160].max(2).astype(int) - see.image[50 : top - 4, :160].min(2)) > 40
    yield fill(see.one("textbox"), str(components(colored)))
    yield submit(see)


def components(mask: np.ndarray) -> int:
    left = {(int(y), int(x)) for y, x in np.argwhere(mask)}
    count = 0
    while left:
        count += 1
        waiting = [left.pop()]
        while waiting:
            y, x = waiting.pop()
            for near in ((y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)):
                if near in left:
                    left.remove(near)
                    waiting.append(near)
    return count


@solves("ascending-numbers")
def ascending(see: Sight) -> Iterator[str]:
    places = {item.name: item.center for item in see.all("text") if item.number is not None}
    for name in sorted(places):
        yield at(*places[name])


@solves("grid-coordinate")
def grid(see: Sight) -> Iterator[str]:
    x, y = map(int, re.findall(r"-?\d+", see.goal))
    lines = see.all("line")
    center = max(item.box[0] for item in lines), max(item.box[1] for item in lines)
    yield at(center[0] + 30 * x, center[1] - 30 * y)


@solves("circle-center")
def circle_center(see: Sight) -> Iterator[str]:
    yield at(*max(see.all("circle"), key=lambda item: item.box[2]).center)
    yield submit(see)


@solves("find-midpoint")
def midpoint(see: Sight) -> Iterator[str]:
    (ax, ay), (bx, by) = (item.center for item in see.all("circle"))
    yield at((ax + bx) / 2, (ay + by) / 2)
    yield submit(see)


def inside_drawing(see: Sight, x: float, y: float) -> bool:
    left, top, width, height = see.all("clickable")[0].box
    return left + 5 < x < left + width - 5 and top + 5 < y < top + height - 5


@solves("right-angle", "bisect-angle")
def angle(see: Sight) -> Iterator[str]:
    vertex = next(item.center for item in see.all("circle") if item.rgb == (0, 0, 255))
    ends = [item.center for item in see.all("circle") if item.rgb == (0, 0, 0)]
    directions = [math.atan2(y - vertex[1], x - vertex[0]) for x, y in ends]
    if len(ends) == 1:
        wanted = [directions[0] + math.pi / 2, directions[0] - math.pi / 2]
    else:
        wanted = [math.atan2(sum(map(math.sin, directions)), sum(map(math.cos, directions)))]
    places = [(vertex[0] + r * math.cos(a), vertex[1] + r * math.sin(a)) for r in (50, 30, 20) for a in wanted]
    yield at(*next(place for place in places if inside_drawing(see, *place)))
    yield submit(see)


@solves("draw-circle")
def draw_circle(see: Sight) -> Iterator[str]:
    x, y = see.one("circle").center
    left, top, width, height = see.all("clickable")[0].box
    radius = min(25.0, x - left - 3, y - top - 3, left + width - x - 3, top + height - y - 3)
    path = [(x + radius * math.cos(a), y + radius * math.sin(a)) for a in np.linspace(0, 2 * math.pi, 8)]
    yield f"mouse_down({path[0][0]:.1f}, {path[0][1]:.1f})"
    for px, py in path[1:-1]:
        yield f"mouse_move({px:.1f}, {py:.1f})"
    yield f"mouse_up({path[-1][0]:.1f}, {path[-1][1]:.1f})"
    yield submit(see)


@solves("draw-line")
def draw_line(see: Sight) -> Iterator[str]:
    x, y = see.one("circle").center
    left, top, width, height = see.all("clickable")[0].box
    if "horizontal" in see.goal:
        yield drag((left + 5, y), (left + width - 5, y))
    else:
        yield drag((x, top + 5), (x, top + height - 5))
    yield submit(see)


@solves("drag-circle", "drag-single-shape")
def drag_there(see: Sight) -> Iterator[str]:
    x, y = {"up": (0, -25), "down": (0, 20), "left": (-30, 0), "right": (30, 0)}[
        re.findall("up|down|left|right", see.goal)[0]
    ]
    item = next(item for item in shapes(see) if item.number is not None)
    yield f"drag_to({item.number}, {item.center[0] + x:.0f}, {item.center[1] + y:.0f})"
    yield submit(see)


@solves("drag-box")
def drag_box(see: Sight) -> Iterator[str]:
    small, large = sorted(see.all("clickable"), key=lambda item: item.box[2])
    start = (small.box[0] + 4, small.box[1] + 4)
    if (
        large.box[0] <= start[0] <= large.box[0] + large.box[2]
        and large.box[1] <= start[1] <= large.box[1] + large.box[3]
    ):
        pass
    x = start[0] + large.center[0] - small.center[0]
    y = start[1] + large.center[1] - small.center[1]
    yield drag(start, (x, y))
    yield submit(see)


@solves("drag-shapes", "drag-shapes-2")
def drag_shapes(see: Sight) -> Iterator[str]:
    boxes = sorted(
        (
            item
            for item in see.items
            if item.role == "rect" and "stroke" in item.attributes and "color" not in item.attributes
        ),
        key=lambda item: item.box[0],
    )
    kind = re.search(r"Drag all (\w+)", see.goal)
    assert kind is not None
    role, rgb = _KINDS.get(kind[1].rstrip("s")), color_in(kind[1])
    slots = {0: 0, 1: 0}
    for item in shapes(see):
        if item.number is None:
            continue
        side = 0 if (item.role == role or (role is None and item.rgb == rgb)) else 1
        if side < len(boxes):
            left, top, width, height = boxes[side].box
            place = left + 12 + (slots[side] * 11) % (width - 24), top + height / 2
            slots[side] += 1
            yield f"drag_to({item.number}, {place[0]:.0f}, {place[1]:.0f})"
    yield submit(see)


@solves("drag-items", "drag-items-grid")
def drag_item(see: Sight) -> Iterator[str]:
    items = see.all("listitem")
    columns = 3 if len(items) == 9 else 1
    name = next(item.name for item in items if f"Drag {item.name} " in see.goal)
    start = next(index for index, item in enumerate(items) if item.name == name)
    where = see.goal.split(f"Drag {name} ")[1].strip(".").removesuffix(" position")
    steps = {"up by one": -columns, "down by one": columns, "left by one": -1, "right by one": 1}
    corners = ("top left", "top center", "top right", "center left", "center", "center right", "bottom left",
               "bottom center", "bottom right")  # fmt: skip
    if where in steps:
        end = start + steps[where]
    elif (place := where.removeprefix("to the ")) in corners:
        end = corners.index(place)
    else:
        end = int(re.findall(r"\d+", where)[0]) - 1
    (sx, sy), (ex, ey) = items[start].center, items[end].center
    yield f"mouse_down({sx:.0f}, {sy:.0f})"
    # To take a place before another item, the mouse comes from behind it, and the other way round; it ends a little
    # farther than the middle of the item that has to give way.
    side = np.sign(end - start)
    near, past = (ex - 20 * side, ey), (ex + 9 * side, ey)
    if columns == 1:
        near, past = (ex, ey), (ex, ey + 9 * side)
    for x, y in ((sx + 4, sy), near, past):
        yield f"mouse_move({x:.0f}, {y:.0f})"
    yield f"mouse_up({past[0]:.0f}, {past[1]:.0f})"


@solves("drag-sort-numbers")
def sort_numbers(see: Sight) -> Iterator[str]:
    while True:
        items = see.all("listitem")
        values = [int(item.name) for item in items]
        wrong = next((index for index in range(len(values)) if values[index] != sorted(values)[index]), None)
        if wrong is None:
            break
        from_ = max(index for index in range(len(values)) if values[index] == sorted(values)[wrong])
        (sx, sy), (ex, ey) = items[from_].center, items[wrong].center
        yield drag((sx, sy), (ex, ey - 12))
    yield submit(see)


@solves("resize-textarea")
def resize(see: Sight) -> Iterator[str]:
    sign = 1 if "larger" in see.goal else -1
    x, y = (15 * sign, 0) if "width" in see.goal else (0, 15 * sign)
    handle = next(item for item in see.items if "ui-resizable-handle" in item.attributes.get("class", ""))
    yield drag(handle.center, (handle.center[0] + x, handle.center[1] + y))
    yield submit(see)


@solves("hover-shape")
def hover_shape(see: Sight) -> Iterator[str]:
    for _ in range(8):
        yield f"hover({next(item for item in shapes(see) if item.rgb != (0, 0, 0)).number})"


@solves("hot-cold")
def hot_cold(see: Sight) -> Iterator[str]:
    left, top, width, height = see.all("clickable")[0].box
    levels = ("COLD", "WARM", "HOT")
    best = (-1.0, (0.0, 0.0))
    for y in range(top + 10, top + height, 18):
        for x in range(left + 8, left + width, 18):
            yield f"mouse_move({x}, {y})"
            text = " ".join(see.texts()).upper()
            if "HOT" in text and "NOT HOT" not in text:
                yield at(x, y)
            best = max(best, (max((i for i, word in enumerate(levels) if word in text), default=-1), (x, y)))
    yield at(*best[1])


@solves("tic-tac-toe")
def tic_tac_toe(see: Sight) -> Iterator[str]:
    lines = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
    while True:
        board = [board_mark(item) for item in see.all("clickable")[:9]]
        move = None
        for player in "XO":
            for line in lines:
                marks = [board[cell] for cell in line]
                if move is None and marks.count(player) == 2 and "" in marks:
                    move = line[marks.index("")]
        if move is None:
            move = next(cell for cell in (4, 0, 2, 6, 8, 1, 3, 5, 7) if board[cell] == "")
        yield click(see.all("clickable")[move])


def board_mark(item: Item) -> str:
    words = f"{item.name} {item.attributes.get('class', '')}".lower()
    return (
        "X" if "mark-x" in words or words.startswith("x") else "O" if "mark-o" in words or words.startswith("o") else ""
    )


@solves("find-greatest")
def find_greatest(see: Sight) -> Iterator[str]:
    cards = [item for item in see.all("clickable") if re.fullmatch(r"\d+", item.name)]
    if cards:
        yield click(max(cards, key=lambda item: int(item.name)))
    yield submit(see)


_DIGITS = ("0110 1001 1001 1001 1001 1001 0110", "0010 0110 0010 0010 0010 0010 0010",
           "0110 1001 1001 0010 0100 1000 1111", "0110 1001 0001 0110 0001 1001 0110",
           "1000 1010 1010 1111 0010 0010 0010", "1111 1000 1000 1110 0001 1001 0110",
           "0110 1001 1000 1110 1001 1001 0110", "1111 1001 0001 0010 0010 0100 0100",
           "0110 1001 1001 0110 1001 1001 0110", "0110 1001 1001 0111 0001 1001 0110")  # fmt: skip
"""The examples that the page shows as pictures."""


@solves("number-checkboxes")
def draw_number(see: Sight) -> Iterator[str]:
    boxes = see.all("checkbox")
    for index, cell in enumerate(_DIGITS[int(see.quoted[0])].replace(" ", "")):
        if (cell == "1") != ("checked" in boxes[index].flags):
            yield click(boxes[index])
    yield submit(see)


@solves("use-colorwheel", "use-colorwheel-2")
def pick_color(see: Sight) -> Iterator[str]:
    rgb = color_in(see.goal)
    assert rgb is not None
    yield fill(see.one("textbox"), "{:02X}{:02X}{:02X}".format(*rgb))
    yield "mouse_click(150, 60)"
    yield submit(see)


@solves("stock-market")
def buy_stock(see: Sight) -> Iterator[str]:
    bound = Fraction(re.findall(r"\$([\d.]+\d)", see.goal)[0])
    while True:
        price = re.findall(r"price: \$([\d.]+)", " ".join(see.texts()))
        if price and Fraction(price[0]) < bound:
            yield click(see.one("button", name="Buy"))
        else:
            yield "wait(100)"


@solves("scroll-text-2")
def scroll_to_end(see: Sight) -> Iterator[str]:
    box = see.one("textbox").number
    for _ in range(9):
        yield f'scroll("{"down" if "bottom" in see.goal else "up"}", {box})'
    yield submit(see)


@solves("chase-circle")
def chase(see: Sight) -> Iterator[str]:
    while True:
        yield f"mouse_move({see.one('circle').center[0]:.0f}, {see.one('circle').center[1]:.0f})"


@solves("moving-items")
def catch(see: Sight) -> Iterator[str]:
    while True:
        seen = [item for item in see.all("circle") if 5 < item.center[0] < 155 and 55 < item.center[1] < 205]
        yield at(*seen[0].center) if seen else "wait(50)"


@solves("simon-says")
def simon(see: Sight) -> Iterator[str]:
    order: list[int] = []
    pushed = None
    for _ in range(120):
        now = next((item.number for item in see.all("button") if "push" in item.attributes.get("class", "")), None)
        if now is not None and now != pushed:
            order.append(now)
        pushed = now
        yield "wait(60)"
    yield from (f"click({number})" for number in order)


@solves("drag-cube")
def turn_cube(see: Sight) -> Iterator[str]:
    """The face in front is the one that looks larger than its neighbours and than the face behind it."""
    wanted = see.quoted[0]
    behind = {"1": "6", "2": "4", "3": "5", "6": "1", "4": "2", "5": "3"}[wanted]
    while True:
        boxes = dict.fromkeys("123456", (0, 0, 0, 0))  # a face seen from its edge is not there
        boxes |= {item.name: item.box for item in see.items if re.fullmatch("[1-6]", item.name)}
        areas = {name: box[2] * box[3] for name, box in boxes.items()}
        beside = max(area for name, area in areas.items() if name not in (wanted, behind))
        if areas[wanted] > 1.3 * beside and areas[wanted] > areas[behind]:
            break
        tilted = wanted in "16" or max(boxes[name][3] for name in "16") > 40
        yield "mouse_move(80, 110)"  # in an action of its own: the page adds up what the mouse does within 20 ms
        yield "mouse_down(80, 110)"
        yield "mouse_move(80, 120)" if tilted else "mouse_move(90, 110)"
        yield "mouse_up(80, 120)" if tilted else "mouse_up(90, 110)"
        yield "wait(400)"  # it goes on turning
    yield submit(see)


# Running them


ANY_SEED = {
    "click-pie": "the page ignores a click on the item that it has selected itself, which one in six goals asks for",
    "click-pie-nodelay": "as click-pie",
    "drag-cube": "the cube goes on turning by itself, so that pushes differ",
    "click-checkboxes-soft": "the solver does not know every synonym of the page",
    "email-inbox-forward-nl-turk": "the solver does not understand every sentence",
    "email-inbox-nl-turk": "as email-inbox-forward-nl-turk",
}
"""Tasks whose solver need not win at every seed, and why."""

NO_REWARD = {"hover-shape"}
"""The page never ends the episode."""

IN_TIME = {"moving-items", "simon-says", "chase-circle", "stock-market"}
"""Solved only if the machine is fast enough for what moves, flashes or costs: by hand, ``play(task, range(4))``."""


def play(task: str, seeds: Sequence[int], max_turns: int = 250) -> list[Any]:
    """Return the seeds at which the solver of a task does not win, each with the goal, the end and the last page."""
    mode: Any = "both" if task in PICTURE else "text"
    env = MiniWoBEnv(task=task, boxes=True, observation_mode=mode, max_turns=max_turns)
    wrong = []
    try:
        for seed in seeds:
            env.reset(seed=seed)
            reward, error, trace = 0.0, "", []
            try:
                for action in SOLVERS[task](Sight(env)):
                    _, reward, terminated, truncated, info = env.step(action)
                    trace.append((action, info["action_error"]))
                    if terminated or truncated:
                        break
            except (LookupError, StopIteration, AssertionError, ValueError, TypeError, RuntimeError) as stopped:
                error = repr(stopped)
            if reward != 1:
                wrong.append((task, seed, reward, env.goal, error, trace[-6:], env.page.text))
    finally:
        env.close()
    return wrong


@pytest.mark.parametrize(
    "task",
    ["ascending-numbers", "click-button", "copy-paste", "count-sides", "drag-items-grid", "drag-shapes-2",
     "draw-circle", "highlight-text-2", "login-user", "resize-textarea"],
)  # fmt: skip
def test_a_script_solves_the_task_from_its_observations(task: str) -> None:
    assert play(task, [0]) == []


@pytest.mark.long
@pytest.mark.parametrize("task", sorted(set(SOLVERS) - NO_REWARD - IN_TIME))
def test_every_task_can_be_solved_from_its_observations(task: str) -> None:
    seeds = range(4) if task in ANY_SEED else range(2)
    wrong = play(task, seeds)
    assert wrong == [] or (task in ANY_SEED and len(wrong) < len(seeds))


def test_every_task_has_a_solver() -> None:
    assert set(SOLVERS) == set(miniwob_tasks())


def test_the_mouse_stays_on_the_colored_shape() -> None:
    """``hover-shape`` gives no reward: the page only notes whether the mouse is there."""
    env = MiniWoBEnv(task="hover-shape", boxes=True)
    try:
        env.reset(seed=0)
        action = next(SOLVERS["hover-shape"](Sight(env)))
        assert env.step(action)[4]["action_error"] == ""
        (item,) = [item for item in shapes(Sight(env)) if item.number == int(re.findall(r"\d+", action)[0])]
        assert item.role == "rect"
        hovered = asyncio.run(env._open_session.evaluate("[...document.querySelectorAll('rect:hover')].length"))
        assert hovered == 1
    finally:
        env.close()
