"""What a model's actions do to a page: what a person's mouse and keyboard would, or an error that says why not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest

from rllm_gym.browser import BrowserSession
from rllm_gym.browser.key_names import UnknownKey, checked_key
from rllm_gym.browser.observation import PageView
from rllm_gym.parsing.browser_actions import BrowserAction, parse_browser_action
from rllm_gym.sites.http import Handler, Request, Response

pytestmark = pytest.mark.usefixtures("long_timeouts")


class BrowserDriver:
    """A session whose elements are called by their names."""

    def __init__(self, session: BrowserSession) -> None:
        self.session = session
        self.view: PageView | None = None

    async def look(self) -> PageView:
        self.view = await self.session.observe()
        return self.view

    async def do(self, call: str) -> str:
        """``await do("fill <Search> 'x'")``: an action with names of elements in angle brackets. Then looks."""
        assert self.view is not None
        for number, element in self.view.elements.items():
            call = call.replace(f"<{element.name}>", str(number))
        error = await self.session.act(parse_browser_action(call))
        await self.look()
        return error

    async def out(self) -> str:
        """What the page wrote into ``#out``."""
        return await self.session.evaluate("document.getElementById('out').textContent")


def play(
    pool, handler: Handler | str, scene: Callable[[BrowserDriver], Awaitable[None]], origin: str = "http://a.test"
) -> None:
    """Run a scene on a site."""
    page = "<!doctype html><title>T</title><p id=out></p>" + handler if isinstance(handler, str) else ""
    site = handler if callable(handler) else (lambda request: Response(page.encode()))

    async def run() -> None:
        session = await pool.open(sites={origin: site})
        try:
            await session.goto(f"{origin}/")
            hands = BrowserDriver(session)
            await hands.look()
            await scene(hands)
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


def test_the_mouse_is_a_real_one(pool):
    page = """<button id=b>B</button><button id=d ondblclick="say('double ' + event.isTrusted)">D</button>
    <div style="height:3000px"></div><button onclick="say('far ' + event.isTrusted)">Far</button>
    <iframe srcdoc="<p style=height:900px></p><button onclick='parent.say(`framed ${event.isTrusted}`)'>In</button>"
     style="height:100px;margin-left:50px;border:7px solid"></iframe>
    <div id=h>Over</div><script>function say(text) { out.textContent = text }
    b.oncontextmenu = (event) => say('right ' + event.isTrusted); b.onclick = () => say('left');
    h.onmouseenter = () => say('entered');</script>"""

    async def scene(hands: BrowserDriver) -> None:
        for call, output in (
            ("click(<B>)", "left"),
            ('click(<B>, "right")', "right true"),
            ("dblclick(<D>)", "double true"),
            ("click(<Far>)", "far true"),
            ("click(<In>)", "framed true"),
            ("mouse_click(20, 600)", "framed true"),
        ):
            assert await hands.do(call) == "", call
            assert await hands.out() == output
        assert "outside of the screenshot" in await hands.do("mouse_click(5000, 1)")

    play(pool, page, scene)


def test_fields_take_what_fits_them(pool):
    page = """<input aria-label=Text value=old oninput="out.textContent += 'i'" onchange="out.textContent += 'c'">
    <input aria-label=Short maxlength=3><input aria-label=Fixed readonly><input aria-label=Off disabled>
    <input aria-label=Day type=date oninput="out.textContent = 'day'"><input aria-label=Count type=number>
    <input aria-label=Size type=range min=1 max=9><input aria-label=Tint type=color>
    <textarea aria-label=Area></textarea>
    <div contenteditable aria-label=Free>old <b>text</b></div><input type=checkbox aria-label=Box>
    <select aria-label=Pick><option>A</select><input type=file aria-label=Photo><button>Go</button>
    <input aria-label=Keys onkeydown="out.textContent = event.key + event.isTrusted">"""

    async def scene(hands: BrowserDriver) -> None:
        async def value(name: str) -> str:
            assert hands.view is not None
            return next(item.value for item in hands.view.elements.values() if item.name == name)

        good = {
            "Text": 'new "ü" 😀', "Day": "2025-03-04", "Count": "-1.5", "Size": "7", "Tint": "#00ff7f",
            "Area": "two\nlines", "Free": "free text",
        }  # fmt: skip
        for name, text in good.items():
            action = f"fill(<{name}>, {text!r})"
            assert await hands.do(action) == "", name
            assert await value(name) == text
        assert await hands.do('type(<Text>, "er")') == ""
        assert await value("Text") == 'new "ü" 😀er'
        assert await hands.do("clear(<Text>)") == ""
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
            ('fill(<Photo>, "x")', "none here to upload"),
            ('fill(<Go>, "x")', "is not a field"),
            ("click(<Off>)", "is disabled"),
            ("click(<Pick>)", "choose with select("),
        ):
            assert error in await hands.do(action), action
        assert await value("Day") == "2025-03-04"
        assert await hands.do('type(<Keys>, "k")') == ""
        assert await hands.out() == "ktrue"

    play(pool, page, scene)


def test_selects_and_checkboxes_are_set_and_the_page_gets_the_events(pool):
    page = """<select aria-label=One onchange="out.textContent = value"><option value=p>Price<option value=n>Name
    <option disabled>Never</select><select multiple aria-label=Many><option>Red<option>Blue<option>Green</select>
    <label><input type=checkbox onchange="out.textContent = checked"> Gift</label>
    <label><input type=radio name=r checked> Post</label><label><input type=radio name=r> Pick up</label>
    <div role=checkbox aria-checked=false tabindex=0 onclick="this.ariaChecked = 'true'">Own</div>"""

    async def scene(hands: BrowserDriver) -> None:
        def flags(name: str) -> tuple[str, ...]:
            assert hands.view is not None
            return next(item.flags for item in hands.view.elements.values() if item.name == name)

        for option, value in (("Name", "n"), ("price", "p"), ("n", "n")):
            assert await hands.do(f"select(<One>, {option!r})") == ""
            assert await hands.out() == value
        assert await hands.do('select(<Many>, "Red", "Green")') == ""
        assert next(item.value for item in hands.view.elements.values() if item.name == "Many") == "Red\nGreen"
        error = await hands.do('select(<One>, "Size")')
        assert 'has no option "Size". It has "Price", "Name", "Never"' in error
        assert "it is disabled" in await hands.do('select(<One>, "Never")')
        assert "takes one option only" in await hands.do('select(<One>, "Price", "Name")')
        for call in ("check(<Gift>)", "check(<Gift>)"):
            assert await hands.do(call) == ""
            assert await hands.out() == "true"
        assert await hands.do("uncheck(<Gift>)") == ""
        assert await hands.out() == "false"
        assert await hands.do("check(<Pick up>)") == ""
        assert "checked" in flags("Pick up")
        assert "checked" not in flags("Post")
        assert "choosing another" in await hands.do("uncheck(<Pick up>)")
        assert await hands.do("check(<Own>)") == ""
        assert "checked" in flags("Own")
        assert "is no list of options" in await hands.do('select(<Gift>, "x")')

    play(pool, page, scene)


def test_covered_stale_and_forged_elements_are_reported(pool):
    page = """<button onclick="out.textContent = 'paid'">Pay</button><button id=g>Gone</button>
    <div id=c style="position:fixed;inset:0;background:#fff8">We use cookies<button onclick="c.remove()">Accept</button>
    </div>"""

    async def scene(hands: BrowserDriver) -> None:
        error = await hands.do("click(<Pay>)")
        assert 'Element [1] button "Pay" is covered by' in error
        assert "We use cookies" in error
        assert await hands.out() == ""
        assert await hands.do("click(<Accept>)") == ""
        assert await hands.do("click(<Pay>)") == ""
        assert await hands.out() == "paid"
        await hands.session.evaluate("document.getElementById('g').remove()")
        gone = await hands.session.act(parse_browser_action("click(2)"))
        assert gone.startswith(
            'Element [2] button "Gone" is no longer on the page. The nearest numbers are [1] button "Pay"'
        )
        forged = await hands.do("click(99999)")
        assert forged.startswith("There is no element 99999 on the page. The nearest numbers are [")

    play(pool, page, scene)


def test_an_element_is_clicked_where_what_lies_over_it_leaves_it_free(pool):
    free = ("left: 12px", "right: 12px", "top: 6px", "bottom: 6px", "left: 12px; top: 6px")
    site = pages({
        f"/{n if n else ''}": f"""<p id=out></p><div style="position:relative; width:300px; height:100px">
        <button style="width:300px; height:100px" onclick="out.textContent = 'paid'">Pay</button>
        <div style="position:absolute; inset:0; {at}; background:#fff8" onclick="out.textContent = 'covered'">Wait
        </div></div>"""
        for n, at in enumerate(free)
    })  # fmt: skip

    async def scene(hands: BrowserDriver) -> None:
        for n, at in enumerate(free):
            assert await hands.do(f'goto("/{n if n else ""}")') == ""
            assert await hands.do("click(<Pay>)") == "", at
            assert await hands.out() == "paid", at

    play(pool, site, scene)


def test_keys_reach_the_element_or_what_has_the_focus(pool):
    page = """<form onsubmit="out.textContent = 'sent ' + q.value; return false"><input id=q aria-label=Query></form>
    <input aria-label=Other>"""

    async def scene(hands: BrowserDriver) -> None:
        assert await hands.do('fill(<Query>, "tea")') == ""
        assert await hands.do('press("Enter")') == ""
        assert await hands.out() == "sent tea"
        assert await hands.do('press(<Query>, "ctrl+a")') == ""
        assert await hands.do('press("Backspace")') == ""
        assert await hands.session.evaluate("document.getElementById('q').value") == ""
        assert await hands.do('press("Tab")') == ""
        assert [item.name for item in hands.view.elements.values() if "focused" in item.flags] == ["Other"]
        assert "Did you mean 'Escape'" in await hands.do('press("Escpe")')
        # All contexts of a browser share a clipboard: nothing may pass through it from one episode to another.
        assert "clipboard" in await hands.do('press(<Other>, "Control+v")')

    play(pool, page, scene)


def test_what_one_episode_copies_no_other_can_paste(pool):
    page = """<input id=i value=SECRET aria-label=Field><input aria-label=Target>
    <button onclick="i.select(); document.execCommand('copy')">Copy</button>"""

    async def copying(hands: BrowserDriver) -> None:
        assert await hands.do("click(<Copy>)") == ""

    async def pasting(hands: BrowserDriver) -> None:
        assert await hands.do('click(<Target>, "middle")') == ""
        await hands.session.evaluate("document.execCommand('paste')")
        assert [item.value for item in (await hands.look()).elements.values() if item.name == "Target"] == [""]

    play(pool, page, copying)
    play(pool, page, pasting)


def test_an_address_is_understood_whatever_the_page_is_at(pool):
    site = pages({"/": "<p>home", "/loop": "<script>location.href = '/loop?' + Math.random()</script>", "/b": "<p>b"})

    async def scene(hands: BrowserDriver) -> None:
        assert await hands.do("new_tab()") == ""
        assert hands.view.url == "about:blank"
        assert await hands.do('goto("/loop")') == ""
        assert "again and again" in hands.view.text
        assert await hands.do('goto("/b")') == ""
        assert '"b"' in hands.view.text

    play(pool, site, scene)


def test_dragging_works_for_mouse_listeners_and_for_drag_and_drop(pool):
    page = """<div id=m style="width:40px;height:40px;background:red;position:absolute;left:10px;top:80px"
     aria-label=Mouse onmousedown="down = 1"></div>
    <div draggable=true id=d style="position:absolute;left:10px;top:150px" ondragstart="
     event.dataTransfer.setData('text/plain', 'dropped')">Card</div>
    <div role=button id=t style="width:90px;height:90px;background:blue;position:absolute;left:300px;top:80px"
     aria-label=Target onmouseup="if (down) out.textContent = 'moved'" ondragover="event.preventDefault()"
     ondrop="out.textContent = event.dataTransfer.getData('text/plain')"></div><script>let down = 0</script>"""

    async def scene(hands: BrowserDriver) -> None:
        assert await hands.do("drag(<Mouse>, <Target>)") == ""
        assert await hands.out() == "moved"
        await hands.session.evaluate("down = 0", world="main")
        assert await hands.do("drag(<Card>, <Target>)") == ""
        assert await hands.out() == "dropped"

    play(pool, page, scene)


def test_scrolling_the_page_and_what_scrolls_within_it(pool):
    page = """<div id=box style="height:100px;overflow:auto" aria-label=Box><p style="height:900px">long</p></div>
    <div style="height:2000px"></div>"""

    async def scene(hands: BrowserDriver) -> None:
        where = "[scrollY, document.getElementById('box').scrollTop]"
        assert "cannot be scrolled further up" in await hands.do('scroll("up")')
        assert await hands.do('scroll("down")') == ""
        assert await hands.session.evaluate(where) == [576, 0]
        assert await hands.do('scroll("down", <Box>)') == ""
        assert await hands.session.evaluate(where) == [576, 80]
        assert 'scrolled="80 of' in hands.view.text
        assert "nothing to scroll left" in await hands.do('scroll("left")')

    play(pool, page, scene)


def test_an_application_that_scrolls_in_a_pane_is_scrolled(pool):
    page = (
        "<div style='position:fixed;inset:0;overflow:auto'><p style='height:3000px'>long</p><button>End</button></div>"
    )

    async def scene(hands: BrowserDriver) -> None:
        assert await hands.do('scroll("down")') == ""
        assert await hands.session.evaluate("document.querySelector('div').scrollTop") == 576

    play(pool, page, scene)


# Waiting --------------------------------------------------------------------------------------------------------

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


def test_the_page_that_an_action_leads_to_is_the_one_that_is_seen(pool):
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

    async def scene(hands: BrowserDriver) -> None:
        for n, begin in enumerate(LEADING):
            assert await hands.do(f'goto("/{n}")') == ""
            assert await hands.do("click(<Go>)") == "", begin
            assert '"arrived"' in hands.view.text, begin

    play(pool, site, scene)


CHANGING = (
    "show()",
    "setTimeout(show, 2)",
    "requestAnimationFrame(() => requestAnimationFrame(show))",
    "fetch('/data').then((answer) => answer.text()).then(show)",
    "fetch('/data').then(() => fetch('/data')).then(show)",
    "box.animate([{opacity: 0}, {opacity: 1}], 300).finished.then(show)",
)


def test_what_an_action_changes_is_seen(pool):
    script = "<script>function show() { out.textContent = 'shown' }</script>"
    site = pages({
        "/": "<p>start",
        "/data": "x",
        **{
            f"/{n}": f"<p id=out></p><button onclick=\"{begin}\">Go</button><p id=box>box</p>{script}"
            for n, begin in enumerate(CHANGING)
        },
    })  # fmt: skip

    async def scene(hands: BrowserDriver) -> None:
        for n, begin in enumerate(CHANGING):
            assert await hands.do(f'goto("/{n}")') == ""
            assert await hands.do("click(<Go>)") == "", begin
            assert '"shown"' in hands.view.text, begin

    play(pool, site, scene)


def test_a_page_that_never_rests_costs_the_deadline_and_is_seen_as_it_is(pool, monkeypatch):
    """An action that did not end by it would end by that of all actions, with an error."""
    monkeypatch.setattr("rllm_gym.browser.load_state.REQUESTS_S", 0.5)
    monkeypatch.setattr("rllm_gym.browser.load_state._CHANGES_MS", 500)
    html = """<p id=out></p><button onclick="setInterval(() => out.textContent = Math.random(), 0)">Change</button>
    <button onclick="out.textContent = 'polls'; (async () => { for (;;) await fetch('/poll') })()">Poll</button>"""

    def site(request: Request) -> Response:
        return Response(html.encode() if request.path == "/" else b"x")

    async def scene(hands: BrowserDriver) -> None:
        assert await hands.do("click(<Poll>)") == ""
        assert '"polls"' in hands.view.text
        assert await hands.do("click(<Change>)") == ""
        assert '"0.' in hands.view.text

    play(pool, site, scene)


# Places ---------------------------------------------------------------------------------------------------------


def test_goto_opens_the_sites_of_the_task_and_nothing_else(pool):
    site = pages({"/": "home", "/b": "<p>other", "/dir/": "<p>dir"})

    async def scene(hands: BrowserDriver) -> None:
        for url, path in (("/b", "/b"), ("http://a.test/dir/", "/dir/"), ("../b", "/b"),
                          ("a.test/dir/", "/dir/"), ("HTTP://A.TEST:80/b", "/b"), (" http:\\\\a.test\\b ", "/b"),
                          ("?q=1#x", "/b?q=1#x")):  # fmt: skip
            assert await hands.session.act(BrowserAction("goto", text=url)) == "", url
            assert (await hands.look()).url == f"http://a.test{path}"
        before = hands.view.url
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
        ):
            error = await hands.session.act(BrowserAction("goto", text=url))
            assert word in error, url
            assert (await hands.look()).url == before
            assert hands.view.title == "/b"

    play(pool, site, scene)


def test_the_history_goes_back_to_the_start_and_no_further(pool):
    site = pages({"/": "<a href=/b>go</a>", "/b": "<p>other"})

    async def scene(hands: BrowserDriver) -> None:
        assert "no page to go back to" in await hands.do("back()")
        assert await hands.do("click(<go>)") == ""
        assert await hands.do("back()") == ""
        assert hands.view.url == "http://a.test/"
        assert "no page to go back to" in await hands.do("back()")
        assert await hands.do("forward()") == ""
        assert hands.view.url == "http://a.test/b"
        assert "no page to go forward to" in await hands.do("forward()")
        assert await hands.do("reload()") == ""
        assert '"other"' in hands.view.text

    play(pool, site, scene)


def test_tabs_are_opened_switched_and_closed(pool):
    site = pages({"/": "<a href=/b target=_blank>new</a><button>Here</button>", "/b": "<button>There</button>"})

    async def scene(hands: BrowserDriver) -> None:
        assert await hands.do("click(<new>)") == ""
        assert 'Tabs: 0 "/", 1 "/b" (active)' in hands.view.text
        assert [item.name for item in hands.view.elements.values()] == ["There"]
        assert "Element 2 is in tab 0; switch_tab(0) first" in await hands.do("click(2)")
        assert await hands.do("switch_tab(0)") == ""
        assert [(number, item.name) for number, item in hands.view.elements.items()] == [(1, "new"), (2, "Here")]
        assert "There is no tab 7; there are 0 to 1" in await hands.do("switch_tab(7)")
        assert await hands.do("close_tab(1)") == ""
        assert "Tabs:" not in hands.view.text
        assert "only tab" in await hands.do("close_tab()")
        assert await hands.do('new_tab("/b")') == ""
        assert hands.view.url == "http://a.test/b"
        assert "outside of this task" in await hands.do('new_tab("http://b.test/")')
        for _ in range(6):
            assert await hands.do("new_tab()") == ""
        assert "8 tabs already" in await hands.do("new_tab()")

    play(pool, site, scene)


def test_a_link_that_leads_out_of_the_task_is_named(pool):
    async def scene(hands: BrowserDriver) -> None:
        for call in ("click(<out>)", "click(<window>)"):
            assert 'tried to open "http://b.test/", which is outside' in await hands.do(call)
            assert hands.view.url == "http://a.test/"
            assert len(hands.view.tabs) == 1

    play(pool, "<a href=http://b.test/>out</a><a href=http://b.test/ target=_blank>window</a>", scene)


def test_an_answer_is_no_business_of_the_browser(pool):
    async def scene(hands: BrowserDriver) -> None:
        with pytest.raises(ValueError, match="'answer' is not an action of a browser"):
            await hands.do('answer("x")')

    play(pool, "x", scene)


# Without a browser ----------------------------------------------------------------------------------------------


def test_keys_by_their_usual_names():
    for text, key in (
        ("enter", "Enter"), ("Ctrl+Shift+k", "Control+Shift+k"), ("cmd+a", "Meta+a"), ("+", "+"),
        ("Control++", "Control++"), ("a", "a"), ("é", "é"), ("PageDown", "PageDown"),
        ("esc", "Escape"), ("f5", "F5"), (" ", " "),
    ):  # fmt: skip
        assert checked_key(text) == key, text


def test_keys_that_there_are_none_of():
    for text in ("", "Entr", "Foo+a", "Control+Alt+Shift+Meta+a", "\n", "\x00", "a" * 10_000, "+" * 10_000,
                 "Control+C", "Meta+v", "Shift+Insert", "Control+Shift+v"):  # fmt: skip
        with pytest.raises(UnknownKey) as error:
            checked_key(text)
        assert len(str(error.value)) < 600, text[:100]
