"""Parse the browser action of a reply: one call by name with literal arguments. Nothing is executed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllm_gym.core import InvalidAction
from rllm_gym.parsing.blocks import last_block
from rllm_gym.parsing.function_calls import FunctionCall
from rllm_gym.parsing.literal_calls import LiteralCall, WrittenNumber, looks_like_call, read_call
from rllm_gym.parsing.thinking import THINK_CLOSE, THINK_OPEN, before_end_tokens, think_end
from rllm_gym.parsing.tool_calls import parse_tool_calls


@dataclass(frozen=True, slots=True)
class BrowserAction:
    """One browser action of a turn.

    Attributes:
        name: The name, such as ``click`` or ``fill``; one of :data:`ACTIONS`.
        element: The number of the element on the page, if the action has one.
        text: The text, option, key, URL, direction or answer, if the action has one.
        index: The number of the tab, if the action has one.
        option: A further word, if the action has one (the mouse button of ``click(3, "right")``).
        target: The number of the element on which ``drag`` ends.
        options: All options of ``select``, or files of ``upload_file``; ``text`` is the first of them.
        x: Pixels from the left edge of the viewport, where the action begins; for ``mouse_wheel``, to the right.
        y: Pixels from the upper edge of the viewport; for ``mouse_wheel``, down.
        to_x: Where ``mouse_drag_and_drop`` ends.
        to_y: Where ``mouse_drag_and_drop`` ends.
        modifiers: Keys held during a click.
        by_keys: Whether ``fill`` ends with a key press, for pages that react to keys.
        ms: Milliseconds of ``wait``.
    """

    name: str
    element: int | None = None
    text: str | None = None
    index: int | None = None
    option: str | None = None
    target: int | None = None
    options: tuple[str, ...] = ()
    x: float | None = None
    y: float | None = None
    to_x: float | None = None
    to_y: float | None = None
    modifiers: tuple[str, ...] = ()
    by_keys: bool = False
    ms: float | None = None


@dataclass(frozen=True, slots=True)
class ActionParameter:
    """A parameter of an action.

    Attributes:
        name: The keyword, in calls and in JSON.
        field: The field of :class:`BrowserAction` that stores its value.
        kind: ``"integer"``, ``"number"``, ``"boolean"``, ``"string"``, or ``"strings"`` for one or several.
        description: Description for the model.
        required: Whether it must be given.
        choices: The only allowed values; empty for any.
        default: The default value, as source text.
    """

    name: str
    field: str
    kind: str
    description: str
    required: bool = True
    choices: tuple[str, ...] = ()
    default: str = ""


@dataclass(frozen=True, slots=True)
class ActionSignature:
    """The signature of an action.

    Attributes:
        name: Name of the action.
        parameters: Its parameters, in the order of a call.
        description: What it does, in one sentence.
        group: ``"page"``, ``"tabs"``, ``"mouse"``, ``"files"`` or ``"end"``.
        example: An example call.
    """

    name: str
    parameters: tuple[ActionParameter, ...]
    description: str
    group: str
    example: str

    def __str__(self) -> str:
        parts = []
        for item in self.parameters:
            name = f"*{item.name}" if item.kind == "strings" else item.name
            parts.append(name if item.required else f"[{name}{f'={item.default}' if item.default else ''}]")
        return f"{self.name}({', '.join(parts)})"


_ELEMENT = ActionParameter("element", "element", "integer", "Number of the element, as in [12].")
_INNER = ActionParameter("element", "element", "integer", "Number of an element; without it, the page.", required=False)
_BUTTON = ActionParameter(
    "button", "option", "string", "Mouse button.", required=False, choices=("left", "right", "middle"), default='"left"'
)
_MODIFIERS = ActionParameter(
    "modifiers",
    "modifiers",
    "strings",
    "Keys held meanwhile.",
    required=False,
    choices=("Alt", "Control", "ControlOrMeta", "Meta", "Shift"),
)
_KEY = ActionParameter("key", "text", "string", "A key: Shift, Control, a, ArrowDown.")
_FILES = ActionParameter(
    "file", "options", "strings", "Name of a file of the task; several for a field that takes them."
)
_X = ActionParameter("x", "x", "number", "Pixels from the left edge of the view.")
_Y = ActionParameter("y", "y", "number", "Pixels from its upper edge.")
_TO_X = ActionParameter("to_x", "to_x", "number", "Pixels from the left edge, where the drag ends.")
_TO_Y = ActionParameter("to_y", "to_y", "number", "Pixels from the upper edge.")
_URL = "URL, absolute or relative to the page; only of the sites of the task."

_SIGNATURES = (
    ActionSignature("click", (_ELEMENT, _BUTTON, _MODIFIERS), "Click an element.", "page", "click(12)"),
    ActionSignature("dblclick", (_ELEMENT, _BUTTON, _MODIFIERS), "Double-click an element.", "page", "dblclick(12)"),
    ActionSignature(
        "fill",
        (
            _ELEMENT,
            ActionParameter("text", "text", "string", "The whole new content."),
            ActionParameter(
                "by_keys", "by_keys", "boolean", "Type the last character, for pages that react.", required=False
            ),
        ),
        "Replace the content of a text field, date, number or editable area.",
        "page",
        'fill(3, "blue kettle")',
    ),
    ActionSignature(
        "type",
        (
            ActionParameter(
                "element", "element", "integer", "Number of a field; without it, what has the focus.", required=False
            ),
            ActionParameter("text", "text", "string", "What to type."),
        ),
        "Type at the end of what a field holds, key by key, for pages that react to keys.",
        "page",
        'type(3, "ket")',
    ),
    ActionSignature("clear", (_ELEMENT,), "Empty a field.", "page", "clear(3)"),
    ActionSignature("check", (_ELEMENT,), "Tick a checkbox or choose a radio button.", "page", "check(5)"),
    ActionSignature("uncheck", (_ELEMENT,), "Untick a checkbox.", "page", "uncheck(5)"),
    ActionSignature(
        "select",
        (
            _ELEMENT,
            ActionParameter("option", "options", "strings", "An option as it is shown; several for a multiple list."),
        ),
        "Choose in a combobox or listbox.",
        "page",
        'select(4, "Price")',
    ),
    ActionSignature(
        "press",
        (
            ActionParameter("element", "element", "integer", "Element to focus first.", required=False),
            ActionParameter("key", "text", "string", "A key or combination: Enter, Tab, Escape, ArrowDown, Control+a."),
        ),
        "Press a key, in an element or in the one that has the focus.",
        "page",
        'press("Enter")',
    ),
    ActionSignature("keyboard_down", (_KEY,), "Press a key and hold it.", "page", 'keyboard_down("Shift")'),
    ActionSignature("keyboard_up", (_KEY,), "Release a key.", "page", 'keyboard_up("Shift")'),
    ActionSignature(
        "select_text",
        (
            ActionParameter("text", "text", "string", "The text to select."),
            ActionParameter(
                "element", "element", "integer", "Element that contains it, if not the page.", required=False
            ),
        ),
        'Select a text of the page or of a field, for example to copy it with press("Control+c").',
        "page",
        'select_text("two words")',
    ),
    ActionSignature("hover", (_ELEMENT,), "Move the mouse over an element.", "page", "hover(5)"),
    ActionSignature("focus", (_ELEMENT,), "Give an element the focus.", "page", "focus(3)"),
    ActionSignature(
        "drag",
        (_ELEMENT, ActionParameter("target", "target", "integer", "Number of the element to drop it on.")),
        "Drag an element onto another.",
        "page",
        "drag(3, 4)",
    ),
    ActionSignature(
        "scroll",
        (
            ActionParameter("direction", "text", "string", "Where to.", choices=("up", "down", "left", "right")),
            _INNER,
        ),
        "Scroll by most of a screen.",
        "page",
        'scroll("down")',
    ),
    ActionSignature("scroll_to", (_ELEMENT,), "Scroll until an element is in view.", "page", "scroll_to(12)"),
    ActionSignature(
        "handle_dialog",
        (
            ActionParameter("answer", "option", "string", "The button.", choices=("accept", "dismiss")),
            ActionParameter("text", "text", "string", "Text for a dialog that asks for one.", required=False),
        ),
        "Answer the browser's dialog, if one is open.",
        "page",
        'handle_dialog("accept")',
    ),
    ActionSignature("upload_file", (_ELEMENT, _FILES), "Choose a file to upload.", "files", 'upload_file(3, "cv.pdf")'),
    ActionSignature(
        "mouse_upload_file",
        (_X, _Y, _FILES),
        "Choose a file at a place that opens the choice of a file.",
        "mouse files",
        'mouse_upload_file(320, 200, "cv.pdf")',
    ),
    ActionSignature(
        "goto", (ActionParameter("url", "text", "string", _URL),), "Open a URL.", "page", 'goto("/basket")'
    ),
    ActionSignature("back", (), "Go back in the history of the tab.", "page", "back()"),
    ActionSignature("forward", (), "Go forward in the history of the tab.", "page", "forward()"),
    ActionSignature("reload", (), "Load the page again.", "page", "reload()"),
    ActionSignature(
        "wait",
        (ActionParameter("ms", "ms", "number", "Milliseconds, at most 10000.", required=False, default="1000"),),
        "Wait a second for a page that is still at work.",
        "page",
        "wait()",
    ),
    ActionSignature(
        "new_tab",
        (ActionParameter("url", "text", "string", _URL, required=False),),
        "Open a tab and switch to it.",
        "tabs",
        "new_tab()",
    ),
    ActionSignature(
        "close_tab",
        (ActionParameter("tab", "index", "integer", "Number of the tab; without it, the active one.", required=False),),
        "Close a tab.",
        "tabs",
        "close_tab()",
    ),
    ActionSignature(
        "switch_tab",
        (ActionParameter("tab", "index", "integer", "Number of the tab, as in the list of tabs."),),
        "Switch to another tab.",
        "tabs",
        "switch_tab(1)",
    ),
    ActionSignature("mouse_move", (_X, _Y), "Move the mouse to a place.", "mouse", "mouse_move(320, 200)"),
    ActionSignature("mouse_click", (_X, _Y, _BUTTON), "Click a place.", "mouse", "mouse_click(320, 200)"),
    ActionSignature("mouse_dblclick", (_X, _Y, _BUTTON), "Double-click a place.", "mouse", "mouse_dblclick(320, 200)"),
    ActionSignature("mouse_down", (_X, _Y, _BUTTON), "Press a button and hold it.", "mouse", "mouse_down(320, 200)"),
    ActionSignature("mouse_up", (_X, _Y, _BUTTON), "Move to a place and release it.", "mouse", "mouse_up(350, 200)"),
    ActionSignature(
        "mouse_drag_and_drop",
        (
            ActionParameter("from_x", "x", "number", "Pixels from the left edge, where the drag begins."),
            ActionParameter("from_y", "y", "number", "Pixels from the upper edge."),
            _TO_X,
            _TO_Y,
        ),
        "Drag from a place to another.",
        "mouse",
        "mouse_drag_and_drop(320, 200, 350, 240)",
    ),
    ActionSignature(
        "drag_to", (_ELEMENT, _TO_X, _TO_Y), "Drag an element to a place.", "mouse", "drag_to(3, 350, 240)"
    ),
    ActionSignature(
        "mouse_wheel",
        (
            ActionParameter("delta_x", "x", "number", "Pixels to the right; negative: to the left."),
            ActionParameter("delta_y", "y", "number", "Pixels down; negative: up."),
        ),
        "Turn the wheel where the mouse is.",
        "mouse",
        "mouse_wheel(0, 200)",
    ),
    ActionSignature(
        "answer",
        (ActionParameter("text", "text", "string", "The answer, short and alone.", required=False, default='""'),),
        "End the task, with the answer where one is asked for.",
        "end",
        'answer("42")',
    ),
    ActionSignature(
        "report_infeasible",
        (ActionParameter("reason", "text", "string", "Why.", required=False, default='""'),),
        "End the task because it cannot be done.",
        "end",
        'report_infeasible("There is no such product.")',
    ),
)

ACTIONS: Mapping[str, ActionSignature] = {each.name: each for each in _SIGNATURES}
"""All actions, by name."""

HOW_TO = "Write one action, such as click(12), alone in a last fenced block:\n```\nclick(12)\n```"


_BROWSERGYM: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "noop": ("wait", ("ms",)),
    "select_option": ("select", ("element", "option")),
    "drag_and_drop": ("drag", ("element", "target")),
    "keyboard_press": ("press", ("key",)),
    "keyboard_type": ("type", ("text",)),
    "keyboard_insert_text": ("type", ("text",)),
    "go_back": ("back", ()),
    "go_forward": ("forward", ()),
    "tab_close": ("close_tab", ()),
    "tab_focus": ("switch_tab", ("tab",)),
    "send_msg_to_user": ("answer", ("text",)),
}
"""BrowserGym's names of actions: our name, and our names of its parameters in its order. All others are the same."""

_BROWSERGYM_KEYWORDS = {
    "bid": "element", "from_bid": "element", "to_bid": "target", "value": "text", "options": "option",
    "key_comb": "key", "index": "tab", "wait_ms": "ms", "enable_autocomplete_menu": "by_keys",
}  # fmt: skip


def available_actions(*, tabs: bool = True, mouse: bool = False, files: bool = False) -> tuple[ActionSignature, ...]:
    """Return the actions of an environment with or without tabs, coordinates, and files to upload."""
    left_out = {"tabs"} if not tabs else set()
    left_out |= {"mouse"} if not mouse else set()
    left_out |= {"files"} if not files else set()
    return tuple(item for item in _SIGNATURES if not left_out.intersection(item.group.split()))


def describe_actions(*, tabs: bool = True, mouse: bool = False, files: bool = False) -> str:
    """Return the actions as text for a prompt, one per line: an example and a description."""
    lines = []
    for item in available_actions(tabs=tabs, mouse=mouse, files=files):
        more = "; ".join(f"also {form}" for form in _OTHER_FORMS.get(item.name, ()))
        lines.append(f"{item.example}: {item.description}{f' ({more})' if more else ''}")
    return "\n".join(lines)


_OTHER_FORMS: Mapping[str, tuple[str, ...]] = {
    "click": ('click(12, "right")', 'click(12, modifiers=["Control"])'),
    "type": ('type("ket") into what has the focus',),
    "press": ('press(3, "Control+a")',),
    "select": ('select(4, "Red", "Blue")',),
    "scroll": ('scroll("down", 7)',),
    "new_tab": ('new_tab("/help")',),
    "close_tab": ("close_tab(1)",),
    "answer": ("answer() where nothing is asked",),
}


def action_tools(*, tabs: bool = True, mouse: bool = False, files: bool = False) -> list[dict[str, Any]]:
    """Return the actions as tool schemas in OpenAI format."""
    return [
        {
            "type": "function",
            "function": {
                "name": item.name,
                "description": item.description,
                "parameters": {
                    "type": "object",
                    "properties": {parameter.name: _schema(parameter) for parameter in item.parameters},
                    "required": [parameter.name for parameter in item.parameters if parameter.required],
                    "additionalProperties": False,
                },
            },
        }
        for item in available_actions(tabs=tabs, mouse=mouse, files=files)
    ]


def _schema(parameter: ActionParameter) -> dict[str, Any]:
    kind: dict[str, Any] = {"type": "string" if parameter.kind == "strings" else parameter.kind}
    if parameter.choices:
        kind["enum"] = list(parameter.choices)
    if parameter.kind == "strings":
        kind = {"anyOf": [kind, {"type": "array", "items": kind}]}
    return {**kind, "description": parameter.description}


# Finding the action in a reply


def parse_browser_action(reply: str) -> BrowserAction:
    r"""Return the one action of a reply. Linear time in its length; nothing is executed.

    Text in ``<think>`` is ignored. The action is a call with literal arguments, ``fill(3, "blue")``, or a tool call in
    any notation of :mod:`rllm_gym.parsing.tool_calls`. It is taken from the last fenced block or ``<action>`` tag if
    the reply ends with it; else from the tool call of the reply; else from the last block; else from the last line,
    which must contain a call and nothing else.

    >>> parse_browser_action("I open it.\n```\nclick(12)\n```").element
    12
    >>> parse_browser_action('{"name": "fill", "arguments": {"element": 3, "text": "ket"}}').text
    'ket'
    >>> parse_browser_action('press("Enter")').name
    'press'

    Raises:
        InvalidAction: There is no action, more than one, an unknown one, or one with wrong arguments. The message names
            the problem, its position and the correct form.
    """
    call = find_action_call(reply)
    return _from_literals(call) if isinstance(call, LiteralCall) else _from_json(call)


def find_action_call(reply: str) -> LiteralCall | FunctionCall:
    """Return the one call of a reply, found as :func:`parse_browser_action` says; its name may be any.

    Raises:
        InvalidAction: There is none, or more than one.
    """
    text = reply[: before_end_tokens(reply)].strip()
    if (call := _whole_call(text)) is not None:
        return call
    text = _after_thought(text).strip()
    if not text:
        raise InvalidAction(f"The reply holds no action. {HOW_TO}")
    if (call := _whole_call(text)) is not None:
        return call
    block = _last_block(text)
    if block is not None and text.endswith(_BLOCK_ENDS) and _looks_like_action(block):
        return _only_action(block, "The last block")
    if calls := parse_tool_calls(text).calls:
        return _only_call(calls)
    if block is not None:
        return _only_action(block, "The last block")
    if looks_like_call(text):
        return _only_action(text, "The reply")
    line = text[text.rfind("\n") + 1 :].strip()
    line = line[label.end() :] if (label := _LABEL.match(line)) else line
    if looks_like_call(line.strip("`")):
        return _only_action(line.strip("`"), "The last line")
    raise InvalidAction(f"The reply holds no action: its last line is {_quoted(line)}. {HOW_TO}")


_BLOCK_ENDS = ("```", "</action>")
_LABEL = re.compile(r"\**(?:action|next action)\s{0,4}:\**\s{0,4}", re.IGNORECASE)
_REST = re.compile(r"[\s;.]*+(?:#[^\n]*+\s*+)?")  # a comment, or the end of a sentence
_TOOL_CALL = re.compile(r'<tool_call>|<function=|<\|python_tag\|>|\[?\s*+\{\s*+"')


def _after_thought(text: str) -> str:
    """Return the text after the reasoning. Arguments may contain ``<think>`` and ``</think>`` as well."""
    if text.startswith(THINK_OPEN):
        try:
            return _after_thought(text[think_end(text, 0) :].strip())
        except InvalidAction as error:
            raise InvalidAction(f"{error} {HOW_TO}") from None
    _, mark, after = text.rpartition(THINK_CLOSE)
    block = _last_block(text)
    if block is not None and (THINK_CLOSE in block or THINK_OPEN in block) and _looks_like_action(block):
        return text
    # Many templates open <think> in the prompt: such a reply contains only </think>.
    if mark and THINK_OPEN not in after:
        return after
    if THINK_OPEN in text and not mark:
        raise InvalidAction(f"The reply ends inside <think>, so it holds no action. Close it with </think>. {HOW_TO}")
    return text


def _last_block(text: str) -> str | None:
    block = last_block(text, tags=("action",))
    if block is None:
        return None
    if looks_like_call(block.label) or not (block.content.strip() or block.label == "action"):
        # "```click(12)\n```": the action is on the line of the opening fence.
        return f"{block.label}\n{block.content}".strip()
    return block.content.strip()


def _looks_like_action(text: str) -> bool:
    return looks_like_call(text) or _TOOL_CALL.match(text) is not None


def _whole_call(text: str) -> LiteralCall | None:
    """Return the call if the text is exactly one, whatever its string arguments contain, else ``None``."""
    if not looks_like_call(text):
        return None
    try:
        call = read_call(text)
    except InvalidAction:
        return None
    return call if _end_of_rest(text, call.end) == len(text) else None


def _end_of_rest(text: str, at: int) -> int:
    rest = _REST.match(text, at)
    return rest.end() if rest else at


def _only_action(text: str, where: str) -> LiteralCall | FunctionCall:
    """Return the call of a text that must contain nothing else."""
    if not text:
        raise InvalidAction(f"{where} is empty. {HOW_TO}")
    if not looks_like_call(text):
        if calls := parse_tool_calls(text).calls:
            return _only_call(calls)
        raise InvalidAction(f"{where} is {_quoted(text)}, which is no action.{_nearest(text)} {HOW_TO}")
    call = read_call(text)
    at = _end_of_rest(text, call.end)
    if at < len(text):
        if looks_like_call(text, at):
            raise InvalidAction(f"{where} holds more than one action; nothing was done. Take one a turn.")
        raise InvalidAction(f"{where} goes on after the action: {_quoted(text[at:])}. Write the action alone.")
    return call


def _only_call(calls: Sequence[FunctionCall]) -> FunctionCall:
    if len(calls) > 1:
        raise InvalidAction(f"The reply holds {len(calls)} tool calls; nothing was done. Take one action a turn.")
    return calls[0]


# Interpreting the arguments


def _our_name(name: str, arguments: Mapping[str, Any], positional: Sequence[Any] = ()) -> str:
    """Return our name of an action that may have BrowserGym's."""
    if name == "scroll" and ("delta_y" in arguments or (len(positional) == 2 and _is_number(positional[0]))):
        return "mouse_wheel"
    return _BROWSERGYM[name][0] if name in _BROWSERGYM else name


def _is_number(value: Any) -> bool:
    return isinstance(value, WrittenNumber)


def _signature(name: str) -> ActionSignature:
    found = ACTIONS.get(name)
    if found is None:
        raise InvalidAction(
            f"There is no action {_quoted(name)}.{_nearest(name)} The actions are {', '.join(ACTIONS)}."
        )
    return found


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name[:40].lower(), list(ACTIONS), n=1)
    return f" Did you mean {ACTIONS[near[0]]}?" if near else ""


def _from_json(call: FunctionCall) -> BrowserAction:
    return _bound(_signature(_our_name(call.name, call.arguments)), call.arguments)


def _from_literals(call: LiteralCall) -> BrowserAction:
    signature = _signature(_our_name(call.name, call.keyword, call.positional))
    values, parameters = list(call.positional), signature.parameters
    if call.name in _BROWSERGYM:
        order = _BROWSERGYM[call.name][1]
        parameters = tuple(item for name in order for item in parameters if item.name == name)
    elif call.name in ("press", "type") and len(values) == 1 and not call.keyword:
        parameters = parameters[1:]  # without an element
    arguments: dict[str, Any] = {}
    for parameter in parameters:
        if not values:
            break
        if parameter.kind == "strings" and parameter is parameters[-1]:
            arguments[parameter.name] = values[0] if len(values) == 1 else values
            values = []
        else:
            arguments[parameter.name] = values.pop(0)
    if values:
        raise InvalidAction(f"{call.name} takes at most {len(parameters)} arguments: {signature}.")
    for key, value in _our_keywords(call.keyword).items():
        if key in arguments:
            raise InvalidAction(f"{call.name} is given {key} twice; give it once: {signature}.")
        arguments[key] = value
    return _bound(signature, arguments)


def _our_keywords(arguments: Mapping[str, Any]) -> dict[str, Any]:
    ours = {_BROWSERGYM_KEYWORDS.get(key, key): value for key, value in arguments.items()}
    return ours if len(ours) == len(arguments) else dict(arguments)


def _bound(signature: ActionSignature, arguments: Mapping[str, Any]) -> BrowserAction:
    arguments = _our_keywords(arguments)
    known = {item.name: item for item in signature.parameters}
    for key in arguments:
        if key not in known:
            near = difflib.get_close_matches(key[:40].lower(), list(known), n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise InvalidAction(f"{signature.name} takes no {_quoted(key)}.{hint} It is {signature}.")
    fields: dict[str, Any] = {}
    for parameter in signature.parameters:
        value = arguments.get(parameter.name)
        if value is None:
            if parameter.required:
                raise InvalidAction(f"{signature.name} lacks its {parameter.name}: {signature}.")
            continue
        fields[parameter.field] = _value(signature, parameter, value)
    if "options" in fields:
        fields["text"] = fields["options"][0]
    return BrowserAction(signature.name, **fields)


def _value(signature: ActionSignature, parameter: ActionParameter, value: Any) -> Any:
    wrong = f"The {parameter.name} of {signature.name} is {_quoted(value)}"
    if parameter.kind == "strings":
        several = value if isinstance(value, list) else [value]
        if (not several and parameter.required) or len(several) > 64:
            raise InvalidAction(f"{wrong}; give one option, or up to 64 of them: {signature}.")
        return tuple(_choice(_text(item, wrong, signature), parameter, wrong, signature) for item in several)
    if parameter.kind == "boolean":
        if not isinstance(value, bool):
            raise InvalidAction(f"{wrong}; it is true or false: {signature}.")
        return value
    if parameter.kind == "integer":
        return _integer(value, wrong, signature)
    if parameter.kind == "number":
        return _number(value, wrong, signature)
    return _choice(_text(value, wrong, signature), parameter, wrong, signature)


def _choice(text: str, parameter: ActionParameter, wrong: str, signature: ActionSignature) -> str:
    if parameter.choices and text not in parameter.choices:
        raise InvalidAction(f"{wrong}; it is one of {', '.join(parameter.choices)}: {signature}.")
    return text


_DIGITS = re.compile(r"\s*\[?([0-9]{1,9})\]?\s*")
_DECIMAL = re.compile(r"\s*([+-]?[0-9]{1,9}(?:\.[0-9]{0,9})?)\s*")


def _integer(value: Any, wrong: str, signature: ActionSignature) -> int:
    digits = _DIGITS.fullmatch(_as_written(value))
    if digits is None:
        raise InvalidAction(f"{wrong}; it is a whole number such as 12: {signature}.")
    return int(digits[1])


def _number(value: Any, wrong: str, signature: ActionSignature) -> float:
    decimal = _DECIMAL.fullmatch(_as_written(value))
    if decimal is None:
        raise InvalidAction(f"{wrong}; it is a number of pixels such as 320: {signature}.")
    return float(decimal[1])


def _text(value: Any, wrong: str, signature: ActionSignature) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float | WrittenNumber):
        raise InvalidAction(f"{wrong}; it is a text in quotes: {signature}.")
    text = _as_written(value)
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise InvalidAction(f"A text of {signature.name} holds half of a surrogate pair, which is no character.")
    return text


def _as_written(value: Any) -> str:
    """Return the text of a text or number, ``""`` for other types. JSON numbers are decimal: 12.0 becomes 12."""
    if isinstance(value, str):
        return value
    if isinstance(value, WrittenNumber):
        return value.written
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    return str(value) if abs(value) < 10**40 else ""


def _quoted(value: Any) -> str:
    # repr() also escapes lone surrogates and control characters: the observation stays printable text.
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a number of more than 40 digits"
    shown = repr(value[:60]) if isinstance(value, str | list) else repr(value)
    return shown if len(shown) <= 70 else f"{shown[:66]}…"
