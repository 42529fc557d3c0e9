"""``rllm-gym serve-sites``: serve the built-in sites of a web task, for a person with a browser."""

from __future__ import annotations

import argparse
import html
import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from rllm_gym.envs.web.rows import SiteTaskRow
from rllm_gym.envs.web.task_instance import SiteTaskInstance, WebEpisodeEnd
from rllm_gym.envs.web.tasks import site_tasks, templates_of
from rllm_gym.sites.http import Request, Response
from rllm_gym.sites.task import WebTaskTemplate

_EXAMPLES = """examples:
  rllm-gym serve-sites                              some errand of the shop
  rllm-gym serve-sites --site calendar --seed 7
  rllm-gym serve-sites --template shop/buy-one --difficulty 3 --port 8080
  rllm-gym serve-sites --list                       the templates
"""

_COOKIE = "rllm_gym_session"
_TASK_PAGE = "/_task"
_MAX_SESSIONS = 64
_MAX_BODY = 1_000_000
_IDLE_S = 30.0
_LOOPBACK = ("127.0.0.1", "localhost")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="rllm-gym serve-sites",
        description="Serve the built-in sites on this machine alone and do an errand on them yourself. Every browser "
        "has a state of its own; the page /_errand shows the goal and says whether it is reached.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--site", help="draw an errand of this site; default: shop")
    parser.add_argument("--template", help="this errand, such as shop/buy-one")
    parser.add_argument("--difficulty", type=int, help="1 (easy) to 5; default: any the template has")
    parser.add_argument("--seed", type=int, default=0, help="another seed, another errand; default: 0")
    parser.add_argument("--port", type=int, default=8000, help="first port to listen on, 0 for any; default: 8000")
    parser.add_argument("--list", action="store_true", help="print the templates and leave")
    options = parser.parse_args(argv)
    if options.list:
        for name, template in templates_of(sites=options.site).items():
            print(f"{name}  (difficulty {', '.join(map(str, template.difficulties))})")
        return 0
    site = options.site or (None if options.template else "shop")
    templates = templates_of(options.template, site)
    task = site_tasks(templates, difficulty=options.difficulty, seed=options.seed)[0]
    row = SiteTaskRow(task.data["template"], task.data["seed"], task.data["difficulty"])
    with SiteServers(templates[row.template], row, port=options.port) as sites:
        print(f"Errand: {row.template}, difficulty {row.difficulty}, world {row.seed}")
        print(f"Goal:   {sites.goal}\n")
        print(f"Begin:  {sites.start}")
        print(f"Done?   {sites.url}{_TASK_PAGE}")
        print("Ctrl-C ends it.", flush=True)
        threading.Event().wait()
    return 0


class SiteServers:
    """The sites of one task on loopback ports, one port per origin. Use it in ``with``.

    Args:
        template: The task's template.
        row: Its seed and difficulty.
        port: Port of the first origin; the others use the following ones. 0 uses any free ports.

    Raises:
        OSError: A port is taken.
    """

    def __init__(self, template: WebTaskTemplate, row: SiteTaskRow, *, port: int = 0) -> None:
        self._template, self._row = template, row
        self._sessions: OrderedDict[str, SiteTaskInstance] = OrderedDict()
        self._lock = threading.Lock()
        sample = SiteTaskInstance(template, row)
        self.goal = sample.goal
        self._servers: list[ThreadingHTTPServer] = []
        self._addresses: dict[str, str] = {}
        try:
            for number, origin in enumerate(sample.sites):
                server = self._server(origin, port + number if port else 0)
                self._servers.append(server)
                self._addresses[origin] = f"http://127.0.0.1:{server.server_address[1]}"
        except BaseException:
            self._close()
            raise
        parts = urlsplit(sample.start)
        begin = self._addresses[f"{parts.scheme}://{parts.netloc}"]
        self.start = sample.start.replace(f"{parts.scheme}://{parts.netloc}", begin, 1)
        self.url = begin

    def __enter__(self) -> SiteServers:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, name="serve-sites", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.shutdown()
        self._close()

    def _close(self) -> None:
        for server in self._servers:
            server.server_close()

    def _server(self, origin: str, port: int) -> ThreadingHTTPServer:
        sites = self

        class Answering(BaseHTTPRequestHandler):
            timeout = _IDLE_S

            def do_GET(self) -> None:
                sites._answer(self, origin)

            do_HEAD = do_POST = do_GET

            def log_message(self, format: str, *args: object) -> None:
                """Log no requests: the terminal shows only the goal."""

        return ThreadingHTTPServer(("127.0.0.1", port), Answering)

    def _answer(self, request: BaseHTTPRequestHandler, origin: str) -> None:
        # Reject DNS rebinding: a public page could point its own name to this machine.
        if request.headers.get("Host", "").rpartition(":")[0] not in _LOOPBACK:
            _send(request, Response(b"this answers to 127.0.0.1 and localhost alone", 421), {})
            return
        length = request.headers.get("Content-Length", "0")
        if not length.isascii() or not length.isdecimal() or int(length) > _MAX_BODY:
            request.close_connection = True
            _send(request, Response(b"the body is too long", 413), {})
            return
        body = request.rfile.read(int(length))
        token, instance = self._session(request.headers.get("Cookie", ""))
        headers = {name.lower(): value for name, value in request.headers.items()}
        method = "GET" if request.command == "HEAD" else request.command
        asked = Request(method, origin + request.path, headers, body)
        if asked.path == _TASK_PAGE:
            answer = self._task_page(asked, instance)
        else:
            handler = instance.sites[origin]
            answer = self._translated(handler(asked))
        _send(request, answer, {"set-cookie": f"{_COOKIE}={token}; Path=/; HttpOnly; SameSite=Lax"})

    def _session(self, cookies: str) -> tuple[str, SiteTaskInstance]:
        """Return the site state of a browser. The oldest is removed when there are too many."""
        try:
            morsel = SimpleCookie(cookies).get(_COOKIE)
        except CookieError:
            morsel = None
        with self._lock:
            if morsel is not None and morsel.value in self._sessions:
                self._sessions.move_to_end(morsel.value)
                return morsel.value, self._sessions[morsel.value]
            token = secrets.token_urlsafe(16)
            self._sessions[token] = SiteTaskInstance(self._template, self._row)
            if len(self._sessions) > _MAX_SESSIONS:
                self._sessions.popitem(last=False)
            return token, self._sessions[token]

    def _translated(self, response: Response) -> Response:
        """Return the response with the sites' own addresses replaced by those of this machine."""
        body, headers = response.body, dict(response.headers)
        for origin, address in self._addresses.items():
            if headers.get("content-type", "").startswith("text/"):
                body = body.replace(origin.encode(), address.encode())
            if "location" in headers:
                headers["location"] = headers["location"].replace(origin, address)
        return Response(body, response.status, headers)

    def _task_page(self, request: Request, instance: SiteTaskInstance) -> Response:
        verdict = ""
        if request.method == "POST":
            form = {name: values[-1] for name, values in parse_qs(request.body.decode("utf-8", "replace")).items()}
            answer = form.get("said", "")
            ending = WebEpisodeEnd(infeasible=answer) if "infeasible" in form else WebEpisodeEnd(answer=answer)
            verdict = "<p><b>Solved.</b></p>" if instance.is_solved(ending) else "<p><b>Not solved.</b></p>"
        page = f"""<!doctype html><meta charset=utf-8><title>The errand</title>
<body style="font: 16px sans-serif; max-width: 40em; margin: 3em auto">
<h1>The errand</h1><p>{html.escape(self.goal)}</p><p><a href="{html.escape(self.start)}">To the site</a></p>
<form method=post><label>Answer, where one is asked for: <input name=said></label>
<button>Done</button> <button name=infeasible value=1>It cannot be done</button></form>{verdict}"""
        return Response(page.encode())


def _send(request: BaseHTTPRequestHandler, response: Response, more: Mapping[str, str]) -> None:
    request.send_response(response.status)
    for name, value in {**response.headers, **more, "content-length": str(len(response.body))}.items():
        request.send_header(name, value)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(response.body)
