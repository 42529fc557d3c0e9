"""Actions on a page: they do what a person's mouse and keyboard would, or return an error with the reason."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping

import pytest

from rllm_gym.envs.web.browser import BrowserSession
from rllm_gym.envs.web.browser.cdp import CDPSession, ProtocolError
from rllm_gym.envs.web.browser.key_names import UnknownKey, checked_key
from rllm_gym.envs.web.browser.observation import PageView
from rllm_gym.envs.web.sites.http import Handler, Request, Response
from rllm_gym.parsing.browser_actions import BrowserAction, parse_browser_action

pytestmark = pytest.mark.usefixtures("long_timeouts")


class BrowserDriver:
    """A session whose elements are addressed by name."""

    def __init__(self, session: BrowserSession) -> None:
        self.session = session
        self.view: PageView | None = None

    async def look(self) -> PageView:
        self.view = await self.session.observe()
        return self.view

    async def do(self, call: str) -> str:
        """``await do("fill <Search> 'x'")``: run an action with element names in angle brackets, then observe."""
        assert self.view is not None
        for number, element in self.view.elements.items():
            call = call.replace(f"<{element.name}>", str(number))
        error = await self.session.act(parse_browser_action(call))
        await self.look()
        return error

    async def output_text(self) -> str:
        """Return what the page wrote into ``#out``."""
        return await self.session.evaluate("document.getElementById('out').textContent")


def run_scenario(
    pool, handler: Handler | str, scenario: Callable[[BrowserDriver], Awaitable[None]], origin: str = "http://a.test"
) -> None:
    """Run a scenario on a site."""
    page = "<!doctype html><title>T</title><p id=out></p>" + handler if isinstance(handler, str) else ""
    site = handler if callable(handler) else (lambda request: Response(page.encode()))

    async def run() -> None:
        session = await pool.open(sites={origin: site})
        try:
            await session.goto(f"{origin}/")
            driver = BrowserDriver(session)
            await driver.look()
            await scenario(driver)
        finally:
            await session.close()

    asyncio.run(run())


def pages(served: Mapping[str, str]) -> Handler:
    def handle(request: Request) -> Response:
        html = served.get(request.path)
        return Response(
            f"<!doctype html><title>{request.path}</title>{html}".encode(), 200 if html is not None else 404
        )

    return handle


def test_mouse_events_are_trusted(pool):
    page = """<button id=b>B</button><button id=d ondblclick="say('double ' + event.isTrusted)">D</button>
    <div style="height:3000px"></div><button onclick="say('far ' + event.isTrusted)">Far</button>
    <iframe srcdoc="<p style=height:900px></p><button onclick='parent.say(`framed ${event.isTrusted}`)'>In</button>"
     style="height:100px;margin-left:50px;border:7px solid"></iframe>
    <div id=h>Over</div><script>function say(text) { out.textContent = text }
    b.oncontextmenu = (event) => say('right ' + event.isTrusted); b.onclick = () => say('left');
    h.onmouseenter = () => say('entered');</script>"""

    async def scenario(driver: BrowserDriver) -> None:
        for call, output in (
            ("click(<B>)", "left"),
            ('click(<B>, "right")', "right true"),
            ("dblclick(<D>)", "double true"),
            ("click(<Far>)", "far true"),
            ("click(<In>)", "framed true"),
            ("mouse_click(20, 600)", "framed true"),
        ):
            assert await driver.do(call) == "", call
            assert await driver.output_text() == output
        assert "outside of the view" in await driver.do("mouse_click(5000, 1)")

    run_scenario(pool, page, scenario)


def test_fields_accept_valid_values(pool):
    page = """<input aria-label=Text value=old oninput="out.textContent += 'i'" onchange="out.textContent += 'c'">
    <input aria-label=Short maxlength=3><input aria-label=Fixed readonly><input aria-label=Off disabled>
    <input aria-label=Day type=date oninput="out.textContent = 'day'"><input aria-label=Count type=number>
    <input aria-label=Size type=range min=1 max=9><input aria-label=Tint type=color>
    <textarea aria-label=Area></textarea>
    <div contenteditable aria-label=Free>old <b>text</b></div><input type=checkbox aria-label=Box>
    <select aria-label=Pick><option>A</select><input type=file aria-label=Photo><button>Go</button>
    <input aria-label=Keys onkeydown="out.textContent = event.key + event.isTrusted">"""

    async def scenario(driver: BrowserDriver) -> None:
        async def value(name: str) -> str:
            assert driver.view is not None
            return next(item.value for item in driver.view.elements.values() if item.name == name)

        good = {
            "Text": 'new "ü" 😀', "Day": "2025-03-04", "Count": "-1.5", "Size": "7", "Tint": "#00ff7f",
            "Area": "two\nlines", "Free": "free text",
        }  # fmt: skip
        for name, text in good.items():
            action = f"fill(<{name}>, {text!r})"
            assert await driver.do(action) == "", name
            assert await value(name) == text
        assert await driver.do('type(<Text>, "er")') == ""
        assert await value("Text") == 'new "ü" 😀er'
        assert await driver.do("clear(<Text>)") == ""
        assert await value("Text") == ""
        for action, error in (
            ('fill(<Short>, "abcdef")', 'takes at most 3 characters; it now holds "abc"'),
            ('fill(<Fixed>, "x")', "is read-only"),
            ('fill(<Off>, "x")', "is disabled"),
            ('fill(<Day>, "4 March")', 'takes YYYY-MM-DD, which "4 March" is not'),
            ('fill(<Count>, "many")', 'takes a number, which "many" is not'),
            ('fill(<Size>, "12")', "takes a number from 1 to 9"),
            ('fill(<Tint>, "green")', "takes #rrggbb"),
            ('fill(<Box>, "x")', "is a checkbox; use click("),
            ('fill(<Pick>, "A")', "choose with select("),
            ('fill(<Photo>, "x")', "upload_file("),
            ('fill(<Go>, "x")', "is not a field"),
            ("click(<Off>)", "is disabled"),
            ("click(<Pick>)", "choose with select("),
        ):
            assert error in await driver.do(action), action
        assert await value("Day") == "2025-03-04"
        assert await driver.do('type(<Keys>, "k")') == ""
        assert await driver.output_text() == "ktrue"

    run_scenario(pool, page, scenario)


def test_selects_and_checkboxes_are_set_and_the_page_gets_the_events(pool):
    page = """<select aria-label=One onchange="out.textContent = value"><option value=p>Price<option value=n>Name
    <option disabled>Never</select><select multiple aria-label=Many><option>Red<option>Blue<option>Green</select>
    <label><input type=checkbox onchange="out.textContent = checked"> Gift</label>
    <label><input type=radio name=r checked> Post</label><label><input type=radio name=r> Pick up</label>
    <div role=checkbox aria-checked=false tabindex=0 onclick="this.ariaChecked = 'true'">Own</div>"""

    async def scenario(driver: BrowserDriver) -> None:
        def flags(name: str) -> tuple[str, ...]:
            assert driver.view is not None
            return next(item.flags for item in driver.view.elements.values() if item.name == name)

        for option, value in (("Name", "n"), ("price", "p"), ("n", "n")):
            assert await driver.do(f"select(<One>, {option!r})") == ""
            assert await driver.output_text() == value
        assert await driver.do('select(<Many>, "Red", "Green")') == ""
        assert next(item.value for item in driver.view.elements.values() if item.name == "Many") == "Red\nGreen"
        error = await driver.do('select(<One>, "Size")')
        assert 'has no option "Size". It has "Price", "Name", "Never"' in error
        assert "it is disabled" in await driver.do('select(<One>, "Never")')
        assert "takes one option only" in await driver.do('select(<One>, "Price", "Name")')
        for call in ("check(<Gift>)", "check(<Gift>)"):
            assert await driver.do(call) == ""
            assert await driver.output_text() == "true"
        assert await driver.do("uncheck(<Gift>)") == ""
        assert await driver.output_text() == "false"
        assert await driver.do("check(<Pick up>)") == ""
        assert "checked" in flags("Pick up")
        assert "checked" not in flags("Post")
        assert "choosing another" in await driver.do("uncheck(<Pick up>)")
        assert await driver.do("check(<Own>)") == ""
        assert "checked" in flags("Own")
        assert "is no list of options" in await driver.do('select(<Gift>, "x")')

    run_scenario(pool, page, scenario)


def test_covered_stale_and_forged_elements_are_reported(pool):
    page = """<button onclick="out.textContent = 'paid'">Pay</button><button id=g>Gone</button>
    <div id=c style="position:fixed;inset:0;background:#fff8">We use cookies<button onclick="c.remove()">Accept</button>
    </div>"""

    async def scenario(driver: BrowserDriver) -> None:
        error = await driver.do("click(<Pay>)")
        assert 'Element [1] button "Pay" is covered by' in error
        assert "We use cookies" in error
        assert await driver.output_text() == ""
        assert await driver.do("click(<Accept>)") == ""
        assert await driver.do("click(<Pay>)") == ""
        assert await driver.output_text() == "paid"
        await driver.session.evaluate("document.getElementById('g').remove()")
        gone = await driver.session.act(parse_browser_action("click(2)"))
        assert gone.startswith(
            'Element [2] button "Gone" is no longer on the page. The nearest numbers are [1] button "Pay"'
        )
        forged = await driver.do("click(99999)")
        assert forged.startswith("There is no element 99999 on the page. The nearest numbers are [")

    run_scenario(pool, page, scenario)


def test_a_click_waits_for_what_fades_out(pool):
    """As lists of widgets do after a choice. On a busy machine they do not change in every frame."""
    page = """<button style="position:absolute; left:0; top:0" onclick="out.textContent = 'paid'">Pay</button>
    <div id=c style="position:fixed; left:0; top:0; width:200px; height:200px; background:#fff8">Closing</div>
    <script>let left = 40; const fade = () => { if (!left--) return c.remove();
    if (left % 4 == 0) c.style.opacity = left / 40; requestAnimationFrame(fade) }; fade()</script>"""

    async def scenario(driver: BrowserDriver) -> None:
        assert await driver.do("click(<Pay>)") == ""
        assert await driver.output_text() == "paid"

    run_scenario(pool, page, scenario)


def test_a_partly_covered_element_is_clicked_at_a_free_point(pool):
    free = ("left: 12px", "right: 12px", "top: 6px", "bottom: 6px", "left: 12px; top: 6px")
    site = pages({
        f"/{n if n else ''}": f"""<p id=out></p><div style="position:relative; width:300px; height:100px">
        <button style="width:300px; height:100px" onclick="out.textContent = 'paid'">Pay</button>
        <div style="position:absolute; inset:0; {at}; background:#fff8" onclick="out.textContent = 'covered'">Wait
        </div></div>"""
        for n, at in enumerate(free)
    })  # fmt: skip

    async def scenario(driver: BrowserDriver) -> None:
        for n, at in enumerate(free):
            assert await driver.do(f'goto("/{n if n else ""}")') == ""
            assert await driver.do("click(<Pay>)") == "", at
            assert await driver.output_text() == "paid", at

    run_scenario(pool, site, scenario)


def test_keys_reach_the_element_or_the_focus(pool):
    page = """<form onsubmit="out.textContent = 'sent ' + q.value; return false"><input id=q aria-label=Query></form>
    <input aria-label=Other>"""

    async def scenario(driver: BrowserDriver) -> None:
        assert await driver.do('fill(<Query>, "tea")') == ""
        assert await driver.do('press("Enter")') == ""
        assert await driver.output_text() == "sent tea"
        assert await driver.do('press(<Query>, "ctrl+a")') == ""
        assert await driver.do('press("Backspace")') == ""
        assert await driver.session.evaluate("document.getElementById('q').value") == ""
        assert await driver.do('press("Tab")') == ""
        assert [item.name for item in driver.view.elements.values() if "focused" in item.flags] == ["Other"]
        assert "Did you mean 'Escape'" in await driver.do('press("Escpe")')

    run_scenario(pool, page, scenario)


def test_texts_are_selected_copied_and_pasted_within_the_episode(pool):
    page = """<style>p {white-space: pre-wrap}</style><p>The <b>quick</b>
    brown fox</p><p hidden>never quick</p><input id=i value=SECRET aria-label=Field>
    <input aria-label=Target><textarea aria-label=Own onpaste="event.preventDefault();
    this.value = 'got ' + event.clipboardData.getData('text')"></textarea>
    <iframe srcdoc="<input aria-label=Inner value=framed>"></iframe>
    <button onclick="i.select(); document.execCommand('copy')">Copy</button>"""

    async def scenario(driver: BrowserDriver) -> None:
        async def value(name: str) -> str:
            view = await driver.look()
            return next(item.value for item in view.elements.values() if item.name == name)

        assert await driver.do('select_text("quick brown")') == ""
        assert (await driver.session.evaluate("getSelection().toString()")).split() == ["quick", "brown"]
        assert "does not contain" in await driver.do('select_text("never quick")')
        assert await driver.do('press("Control+c")') == ""
        assert await driver.do('press(<Target>, "Control+v")') == ""
        assert (await value("Target")).split() == ["quick", "brown"]
        assert await driver.do('press(<Own>, "Shift+Insert")') == ""
        assert (await value("Own")).split() == ["got", "quick", "brown"]
        assert await driver.do('select_text("SEC", <Field>)') == ""
        assert await driver.do('keyboard_down("Control")') == ""
        assert await driver.do('press("x")') == ""
        assert await driver.do('keyboard_up("Control")') == ""
        assert await value("Field") == "RET"
        assert await driver.do('press(<Inner>, "Control+a")') == ""
        assert await driver.do('press("Control+v")') == ""
        assert await value("Inner") == "SEC"

    run_scenario(pool, page, scenario)

    async def pasting(driver: BrowserDriver) -> None:
        # All contexts of a browser share a clipboard: no episode may read another one's data through it.
        for call in ('click(<Target>, "middle")', 'press(<Target>, "Control+v")', 'press(<Target>, "Meta+V")'):
            assert await driver.do(call) == ""
        await driver.session.evaluate("document.execCommand('paste')")
        assert [item.value for item in (await driver.look()).elements.values() if item.name == "Target"] == [""]

    async def copying(driver: BrowserDriver) -> None:
        assert await driver.do("click(<Copy>)") == ""

    run_scenario(pool, page, copying)
    run_scenario(pool, page, pasting)


def test_the_mouse_by_coordinates(pool):
    page = """<style>body {margin: 0; user-select: none} #b {position: absolute; left: 100px; top: 100px; width: 200px;
    height: 100px; background: #eee} #s {position: absolute; top: 300px; height: 50px; width: 100px; overflow: auto}
    </style><div id=b></div><div id=s><div style="height: 900px"></div></div><script>
    let path = [];
    const kinds = ["down", "up", "move"].map((kind) => "mouse" + kind);
    for (const kind of [...kinds, "dblclick", "contextmenu"]) b.addEventListener(kind, (e) => {
      path.push(`${e.type.replace("mouse", "")} ${e.clientX},${e.clientY} ${e.buttons}${e.shiftKey ? "S" : ""}`);
      out.textContent = path.join("; ");
    });
    s.onscroll = () => out.textContent = "scrolled " + s.scrollTop;
    s.onwheel = () => path = [];
    </script>"""

    async def scenario(driver: BrowserDriver) -> None:
        async def does(*calls: str) -> str:
            await driver.session.evaluate("path = []", world="main")
            for call in calls:
                assert await driver.do(call) == "", call
            return await driver.output_text()

        assert await does("mouse_move(150, 120)") == "move 150,120 0"
        drawn = await does(
            "mouse_down(150, 120)", "mouse_move(160.0, 130)", 'keyboard_down("Shift")', "mouse_up(170, 140)",
            'keyboard_up("Shift")',
        )  # fmt: skip
        assert drawn == "move 150,120 0; down 150,120 1; move 160,130 1; move 170,140 1S; up 170,140 0S"
        assert "dblclick 150,120 0" in await does("mouse_dblclick(150, 120)")
        assert "contextmenu 150,120" in await does('mouse_click(150, 120, "right")')
        assert (await does('keyboard_down("Shift")', "mouse_move(151, 121)", 'keyboard_up("Shift")')).endswith("0S")
        dragged = (await does("mouse_drag_and_drop(110, 110, 190, 190)")).split("; ")
        assert [dragged[1], dragged[-2], dragged[-1]] == ["down 110,110 1", "move 190,190 1", "up 190,190 0"]
        assert len(dragged) > 6
        assert await does("mouse_move(10, 310)", "scroll(0, 100)") == "scrolled 100"
        assert await does("mouse_wheel(0, -40)") == "scrolled 60"
        for wrong in ("mouse_move(1280, 1)", "mouse_down(-1, 5)", "mouse_drag_and_drop(1, 1, 1, 720)"):
            assert "outside of the view" in await driver.do(wrong), wrong
        await does("mouse_down(150, 120)")
        assert "held already" in await driver.do("mouse_down(150, 120)")
        assert await driver.do("reload()") == ""  # the button is still held when the page is gone
        assert await driver.do("mouse_up(150, 120)") == ""

    run_scenario(pool, page, scenario)


def test_native_drags_by_coordinates(pool):
    page = """<style>body {margin: 0} div {position: absolute; top: 100px; width: 80px; height: 80px}</style>
    <div id=a draggable=true style="left: 0">Source</div>
    <div id=z style="left: 300px" ondragover="event.preventDefault()"
     ondrop="out.textContent = event.dataTransfer.getData('text') + ' dropped'">Target</div>
    <script>a.ondragstart = (event) => event.dataTransfer.setData("text", "a")</script>"""

    async def scenario(driver: BrowserDriver) -> None:
        for calls in (
            ["mouse_drag_and_drop(20, 120, 320, 120)"],
            ["mouse_down(20, 120)", "mouse_move(60, 120)", "mouse_move(310, 120)", "mouse_up(320, 120)"],
            ["drag_to(<Source>, 320, 120)"],
            ["drag_and_drop('<Source>', '<Target>')"],
        ):
            await driver.session.evaluate("document.getElementById('out').textContent = ''")
            for call in calls:
                assert await driver.do(call) == "", call
            assert await driver.output_text() == "a dropped", calls

    run_scenario(pool, page, scenario)


def test_a_dialog_is_answered_as_the_model_chooses(pool):
    page = """<button onclick="out.textContent = confirm('Sure?')">Ask</button>
    <button onclick="out.textContent = prompt('Name?', 'Ada') + confirm('Twice?')">Name</button>
    <button onclick="setTimeout(() => out.textContent = 'late ' + confirm('Late?'), 30)">Later</button>
    <button onclick="if (confirm('Go?')) location = '/next'">Go</button>
    <button onclick="alert('told'); out.textContent = 'alerted'">Tell</button>
    <button onclick="while (true) confirm('Again?')">Endless</button>"""

    async def scenario(driver: BrowserDriver) -> None:
        accept, dismiss = 'handle_dialog("accept")', 'handle_dialog("dismiss")'
        assert "No dialog" in await driver.do(accept)
        for answer, result in ((accept, "true"), (dismiss, "false")):
            assert await driver.do("click(<Ask>)") == ""
            assert 'Dialog (confirm): "Sure?"' in driver.view.text
            # No other action hangs or does anything until it is answered.
            assert "handle_dialog" in await driver.do("reload()")
            assert 'Dialog (confirm): "Sure?"' in driver.view.text
            assert await driver.do(answer) == ""
            assert await driver.output_text() == result
        await driver.do("click(<Name>)")
        assert 'Dialog (prompt): "Name?" value="Ada"' in driver.view.text
        assert await driver.do('handle_dialog("accept", "Bo")') == ""
        assert "Twice?" in driver.view.text
        assert await driver.do(dismiss) == ""
        assert await driver.output_text() == "Bofalse"
        await driver.do("click(<Later>)")
        while "Late?" not in driver.view.text:
            await driver.look()
        assert (await driver.session.observe(screenshot=True)).image.shape == (720, 1280, 3)
        # What the environment reads at the end of an episode does not wait for an answer.
        assert await driver.session.evaluate("document.title") == "T"
        await driver.look()
        assert await driver.output_text() == "late false"
        assert await driver.do("click(<Tell>)") == ""
        assert "'told'" in driver.view.text
        assert await driver.output_text() == "alerted"
        await driver.do("click(<Endless>)")
        assert await driver.session.evaluate("1 + 1") == 2  # which dismisses them, until the scripts are stopped
        await driver.do("reload()")
        await driver.do("click(<Endless>)")
        for _ in range(20):
            if "its scripts stopped" in driver.view.text:
                break
            await driver.do(accept)
        assert "its scripts stopped" in driver.view.text
        await driver.do("reload()")
        await driver.do("click(<Go>)")
        await driver.do(accept)
        assert driver.view.url.endswith("/next")

    run_scenario(pool, page, scenario)


def test_files_of_the_task_are_uploaded(pool, site):
    page = """<title>T</title><p id=out></p><input type=file aria-label=One><input type=file multiple aria-label=Many>
    <label>Styled <input type=file style="display:none"></label><input type=file id=f style="display:none">
    <button onclick="f.click()">Browse</button><button>Plain</button>
    <script>addEventListener("change", async ({target}) => out.textContent = (await Promise.all([...target.files].map(
    async (file) => `${file.name} ${file.type} ${await file.text()}`))).join("; "))</script>"""
    files = {"a.txt": b"first", "b.csv": "zwölf".encode()}

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            for given in (files, {}):
                session = await pool.open(sites={"http://a.test": site(page)}, files=given)
                stack.push_async_callback(session.close)
                await session.goto("http://a.test/")
                driver = BrowserDriver(session)
                await driver.look()
                if not given:
                    assert "no files" in await driver.do('upload_file(<One>, "a.txt")')
                    continue
                for call, output in (
                    ('upload_file(<One>, "a.txt")', "a.txt text/plain first"),
                    ('upload_file(<Many>, ["a.txt", "b.csv"])', "a.txt text/plain first; b.csv text/csv zwölf"),
                    ('upload_file(<Styled>, "b.csv")', "b.csv text/csv zwölf"),
                    ('upload_file(<Browse>, "a.txt")', "a.txt text/plain first"),
                ):
                    assert await driver.do(call) == "", call
                    await driver.look()
                    assert await driver.output_text() == output
                box = (await session.observe(boxes=True)).elements
                x, y, *_ = next(item.box for item in box.values() if item.name == "Browse")
                assert await driver.do(f'mouse_upload_file({x + 3}, {y + 3}, "b.csv")') == ""
                for call, message in (
                    ('upload_file(<One>, "../a.txt")', 'the files of the task are "a.txt", "b.csv"'),
                    ('upload_file(<One>, "/etc/passwd")', "There is no file"),
                    ('upload_file(<One>, ["a.txt", "b.csv"])', "one file only"),
                    ("click(<One>)", "upload_file("),
                ):
                    assert message in await driver.do(call), call

    asyncio.run(run())


def test_goto_works_from_any_page(pool):
    site = pages({"/": "<p>home", "/loop": "<script>location.href = '/loop?' + Math.random()</script>", "/b": "<p>b"})

    async def scenario(driver: BrowserDriver) -> None:
        assert await driver.do("new_tab()") == ""
        assert driver.view.url == "about:blank"
        assert await driver.do('goto("/loop")') == ""
        assert "again and again" in driver.view.text
        assert await driver.do('goto("/b")') == ""
        assert '"b"' in driver.view.text

    run_scenario(pool, site, scenario)


def test_a_navigation_while_the_tab_is_checked_is_no_hang(pool, monkeypatch):
    interrupted = []

    async def send(self, method, parameters=None, real=CDPSession.send):
        if parameters == {"expression": "1"} and len(interrupted) < 3:
            interrupted.append(method)
            raise ProtocolError("Inspected target navigated or closed")
        return await real(self, method, parameters)

    async def scenario(driver: BrowserDriver) -> None:
        monkeypatch.setattr(CDPSession, "send", send)
        assert await driver.do('goto("/b")') == ""
        assert '"b"' in driver.view.text
        assert "hung" not in driver.view.text
        assert len(interrupted) == 3

    run_scenario(pool, pages({"/": "<p>home", "/b": "<p>b"}), scenario)


def test_dragging_works_for_mouse_listeners_and_for_drag_and_drop(pool):
    page = """<div id=m style="width:40px;height:40px;background:red;position:absolute;left:10px;top:80px"
     aria-label=Mouse onmousedown="down = 1"></div>
    <div draggable=true id=d style="position:absolute;left:10px;top:150px" ondragstart="
     event.dataTransfer.setData('text/plain', 'dropped')">Card</div>
    <div role=button id=t style="width:90px;height:90px;background:blue;position:absolute;left:300px;top:80px"
     aria-label=Target onmouseup="if (down) out.textContent = 'moved'" ondragover="event.preventDefault()"
     ondrop="out.textContent = event.dataTransfer.getData('text/plain')"></div><script>let down = 0</script>"""

    async def scenario(driver: BrowserDriver) -> None:
        assert await driver.do("drag(<Mouse>, <Target>)") == ""
        assert await driver.output_text() == "moved"
        await driver.session.evaluate("down = 0", world="main")
        assert await driver.do("drag(<Card>, <Target>)") == ""
        assert await driver.output_text() == "dropped"

    run_scenario(pool, page, scenario)


def test_a_drag_that_the_browser_does_not_start_moves_the_mouse(pool, monkeypatch):
    """A page can claim that one began; and the browser may not report one that began."""
    page = """<style>body {margin: 0} div {position: absolute; top: 100px; width: 80px; height: 80px}</style>
    <div id=a style="left: 0">Source</div><div draggable=true style="left: 100px">Card</div>
    <script>
      addEventListener("mousemove", () => a.dispatchEvent(new DragEvent("dragstart", {bubbles: true})));
      addEventListener("mouseup", (event) => out.textContent += `up at ${event.clientX}; `);
    </script>"""

    async def scenario(driver: BrowserDriver) -> None:
        assert await driver.do("mouse_drag_and_drop(20, 120, 320, 120)") == ""
        assert await driver.output_text() == "up at 320; "
        monkeypatch.setattr("rllm_gym.envs.web.browser.drag._DRAG_S", 0.05)
        monkeypatch.setattr("rllm_gym.envs.web.browser.drag.Drag._intercepted", lambda self, event: None)
        assert await driver.do("mouse_drag_and_drop(120, 120, 320, 120)") == ""

    run_scenario(pool, page, scenario)


def test_a_button_held_in_another_tab_is_released_when_one_is_pressed_here(pool):
    page = """<script>addEventListener("mouseup", () => out.textContent = "released")</script>"""

    async def scenario(driver: BrowserDriver) -> None:
        for call in ("mouse_down(150, 120)", 'new_tab("/")', "mouse_down(20, 20)", "mouse_up(30, 20)", "switch_tab(0)"):
            assert await driver.do(call) == "", call
        assert await driver.output_text() == "released"

    run_scenario(pool, page, scenario)


def test_scrolling_the_page_and_its_scrollable_elements(pool):
    page = """<div id=box style="height:100px;overflow:auto" aria-label=Box><p style="height:900px">long</p></div>
    <div style="height:2000px"></div>"""

    async def scenario(driver: BrowserDriver) -> None:
        where = "[scrollY, document.getElementById('box').scrollTop]"
        assert "cannot be scrolled further up" in await driver.do('scroll("up")')
        assert await driver.do('scroll("down")') == ""
        assert await driver.session.evaluate(where) == [576, 0]
        assert await driver.do('scroll("down", <Box>)') == ""
        assert await driver.session.evaluate(where) == [576, 80]
        assert 'scrolled="80 of' in driver.view.text
        assert "nothing to scroll left" in await driver.do('scroll("left")')

    run_scenario(pool, page, scenario)


def test_the_scrollable_pane_of_an_application_is_scrolled(pool):
    page = (
        "<div style='position:fixed;inset:0;overflow:auto'><p style='height:3000px'>long</p><button>End</button></div>"
    )

    async def scenario(driver: BrowserDriver) -> None:
        assert await driver.do('scroll("down")') == ""
        assert await driver.session.evaluate("document.querySelector('div').scrollTop") == 576

    run_scenario(pool, page, scenario)


# Waiting

LEADING = (
    "location.href = '/next'",
    "setTimeout(() => location.href = '/next', 1)",
    "document.forms[0].submit()",
    "document.forms[0].requestSubmit()",
    "fetch('/data').then(() => location.assign('/next'))",
    "Promise.resolve().then(() => document.querySelector('a').click())",
    "history.pushState(0, '', '/x'), location.replace('/next')",
    "location.href = '/hop'",
)


def test_the_observation_shows_the_page_that_an_action_opens(pool):
    site = pages({
        "/": "<p>start",
        **{
            f"/{n}": f"<form action=/next></form><a href=/next>a</a><button onclick=\"{begin}\">Go</button>"
            for n, begin in enumerate(LEADING)
        },
        "/next": "<p>arrived",
        "/hop": "<meta http-equiv=refresh content='0;url=/next'>",
        "/data": "",
    })  # fmt: skip

    async def scenario(driver: BrowserDriver) -> None:
        for n, begin in enumerate(LEADING):
            assert await driver.do(f'goto("/{n}")') == ""
            assert await driver.do("click(<Go>)") == "", begin
            assert '"arrived"' in driver.view.text, begin

    run_scenario(pool, site, scenario)


CHANGING = (
    "show()",
    "setTimeout(show, 2)",
    "requestAnimationFrame(() => requestAnimationFrame(show))",
    "fetch('/data').then((answer) => answer.text()).then(show)",
    "fetch('/data').then(() => fetch('/data')).then(show)",
    "box.animate([{opacity: 0}, {opacity: 1}], 300).finished.then(show)",
)


def test_the_observation_shows_changes_of_an_action(pool):
    script = "<script>function show() { out.textContent = 'shown' }</script>"
    site = pages({
        "/": "<p>start",
        "/data": "x",
        **{
            f"/{n}": f"<p id=out></p><button onclick=\"{begin}\">Go</button><p id=box>box</p>{script}"
            for n, begin in enumerate(CHANGING)
        },
    })  # fmt: skip

    async def scenario(driver: BrowserDriver) -> None:
        for n, begin in enumerate(CHANGING):
            assert await driver.do(f'goto("/{n}")') == ""
            assert await driver.do("click(<Go>)") == "", begin
            assert '"shown"' in driver.view.text, begin

    run_scenario(pool, site, scenario)


def test_a_page_that_never_settles_is_observed_at_the_deadline(pool, monkeypatch):
    """An action that ignored it would reach the deadline of all actions, which is an error."""
    monkeypatch.setattr("rllm_gym.envs.web.browser.load_state.REQUESTS_S", 0.5)
    monkeypatch.setattr("rllm_gym.envs.web.browser.load_state._CHANGES_MS", 500)
    html = """<p id=out></p><button onclick="setInterval(() => out.textContent = Math.random(), 0)">Change</button>
    <button onclick="out.textContent = 'polls'; (async () => { for (;;) await fetch('/poll') })()">Poll</button>"""

    def site(request: Request) -> Response:
        return Response(html.encode() if request.path == "/" else b"x")

    async def scenario(driver: BrowserDriver) -> None:
        assert await driver.do("click(<Poll>)") == ""
        assert '"polls"' in driver.view.text
        assert await driver.do("click(<Change>)") == ""
        assert '"0.' in driver.view.text

    run_scenario(pool, site, scenario)


# Navigation


def test_goto_opens_only_the_sites_of_the_task(pool):
    site = pages({"/": "home", "/b": "<p>other", "/dir/": "<p>dir"})

    async def scenario(driver: BrowserDriver) -> None:
        for url, path in (("/b", "/b"), ("http://a.test/dir/", "/dir/"), ("../b", "/b"),
                          ("a.test/dir/", "/dir/"), ("HTTP://A.TEST:80/b", "/b"), (" http:\\\\a.test\\b ", "/b"),
                          ("?q=1#x", "/b?q=1#x")):  # fmt: skip
            assert await driver.session.act(BrowserAction("goto", text=url)) == "", url
            assert (await driver.look()).url == f"http://a.test{path}"
        before = driver.view.url
        for url, word in (
            ("javascript:document.title=1", "javascript:"),
            ("\tjava\nscript:document.title=1", "javascript:"),
            ("JaVaScRiPt:1", "javascript:"),
            ("file:///etc/hostname", "file:"),
            ("view-source:http://a.test/", "view-source:"),
            ("data:text/html,x", "data:"),
            ("blob:http://a.test/x", "blob:"),
            ("chrome://version", "chrome:"),
            ("about:blank", "about:"),
            ("http://b.test/", "outside of this task"),
            ("//b.test/", "outside of this task"),
            ("http:\\\\b.test", "outside of this task"),
            ("http://a.test.b.test/", "outside of this task"),
            ("http://a.test:81/", "outside of this task"),
            ("https://a.test/", "outside of this task"),
            ("http://127.0.0.1/", "outside of this task"),
            ("http://a.test@b.test/", "user name"),
            ("http://x:y@a.test/", "user name"),
            ("http://a\u3002test\u200b.b/", "outside of this task"),
            ("http://[", "is not a URL"),
            ("http://a b/", "outside of this task"),
            ("http://b.test/http://a.test/", "outside of this task"),
            ("http://b.test\\@a.test/", "outside of this task"),
            ("http://a.test:99999/", "URL"),
        ):
            error = await driver.session.act(BrowserAction("goto", text=url))
            assert word in error, url
            assert (await driver.look()).url == before
            assert driver.view.title == "/b"

    run_scenario(pool, site, scenario)


def test_going_back_stops_at_the_start_page(pool):
    site = pages({"/": "<a href=/b>go</a>", "/b": "<p>other"})

    async def scenario(driver: BrowserDriver) -> None:
        assert "no page to go back to" in await driver.do("back()")
        assert await driver.do("click(<go>)") == ""
        assert await driver.do("back()") == ""
        assert driver.view.url == "http://a.test/"
        assert "no page to go back to" in await driver.do("back()")
        assert await driver.do("forward()") == ""
        assert driver.view.url == "http://a.test/b"
        assert "no page to go forward to" in await driver.do("forward()")
        assert await driver.do("reload()") == ""
        assert '"other"' in driver.view.text

    run_scenario(pool, site, scenario)


def test_tabs_are_opened_switched_and_closed(pool):
    site = pages({"/": "<a href=/b target=_blank>new</a><button>Here</button>", "/b": "<button>There</button>"})

    async def scenario(driver: BrowserDriver) -> None:
        assert await driver.do("click(<new>)") == ""
        assert 'Tabs: 0 "/", 1 "/b" (active)' in driver.view.text
        assert [item.name for item in driver.view.elements.values()] == ["There"]
        assert "Element 2 is in tab 0; switch_tab(0) first" in await driver.do("click(2)")
        assert await driver.do("switch_tab(0)") == ""
        assert [(number, item.name) for number, item in driver.view.elements.items()] == [(1, "new"), (2, "Here")]
        assert "There is no tab 7; there are 0 to 1" in await driver.do("switch_tab(7)")
        assert await driver.do("close_tab(1)") == ""
        assert "Tabs:" not in driver.view.text
        assert "only tab" in await driver.do("close_tab()")
        assert await driver.do('new_tab("/b")') == ""
        assert driver.view.url == "http://a.test/b"
        assert "outside of this task" in await driver.do('new_tab("http://b.test/")')
        for _ in range(6):
            assert await driver.do("new_tab()") == ""
        assert "8 tabs already" in await driver.do("new_tab()")

    run_scenario(pool, site, scenario)


def test_a_link_that_leaves_the_task_is_reported(pool):
    async def scenario(driver: BrowserDriver) -> None:
        for call in ("click(<out>)", "click(<window>)"):
            assert 'tried to open "http://b.test/", which is outside' in await driver.do(call)
            assert driver.view.url == "http://a.test/"
            assert len(driver.view.tabs) == 1

    run_scenario(pool, "<a href=http://b.test/>out</a><a href=http://b.test/ target=_blank>window</a>", scenario)


# Without a browser


def test_usual_key_names_are_accepted():
    for text, key in (
        ("enter", "Enter"), ("Ctrl+Shift+k", "Control+Shift+k"), ("cmd+a", "Meta+a"), ("+", "+"),
        ("Control++", "Control++"), ("a", "a"), ("é", "é"), ("PageDown", "PageDown"),
        ("esc", "Escape"), ("f5", "F5"), (" ", " "),
    ):  # fmt: skip
        assert checked_key(text) == key, text


def test_unknown_keys_are_refused():
    for text in ("", "Entr", "Foo+a", "Control+Alt+Shift+Meta+a", "\n", "\x00", "a" * 10_000, "+" * 10_000):
        with pytest.raises(UnknownKey) as error:
            checked_key(text)
        assert len(str(error.value)) < 600, text[:100]


def test_text_goes_into_an_editor_that_keeps_its_field_hidden(pool):
    """Code editors draw the text themselves; the field that receives the keys cannot be seen."""
    page = """<div id=editor onmousedown="setTimeout(() => field.focus())" style="border: 1px solid">Editor</div>
    <textarea id=field style="position: absolute; left: -999px; width: 5px"
    oninput="out.textContent = value"></textarea>
    <div onclick="1">Other</div>"""

    async def scenario(driver: BrowserDriver) -> None:
        assert await driver.do('type(<Editor>, "ab")') == ""
        assert await driver.output_text() == "ab"
        assert await driver.do('fill(<Editor>, "cd")') == ""
        assert await driver.output_text() == "cd"
        assert "is not a field" in await driver.do('fill(<Other>, "x")')

    run_scenario(pool, page, scenario)
