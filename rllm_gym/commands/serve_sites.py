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

from rllm_gym.envs.task_templates import TemplateTaskRow, choose_templates, template_tasks
from rllm_gym.envs.web import sites as built_in
from rllm_gym.envs.web.sites.http import Request, Response
from rllm_gym.envs.web.sites.task import WebTaskTemplate
from rllm_gym.envs.web.task_instance import SiteTaskInstance, WebEpisodeEnd

_EXAMPLES = """examples:
  rllm-gym serve-sites                              # a task of the shop
  rllm-gym serve-sites --site calendar --seed 7
  rllm-gym serve-sites --template shop/buy --difficulty 3 --port 8080
  rllm-gym serve-sites --list                       # list the task templates
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
        description="Serve one task of the built-in web sites on localhost, to be solved in your own browser.\n"
        "Each browser has its own site state. The page /_task shows the goal and checks whether it is reached.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--site", help="site to generate a task for (default: shop)")
    parser.add_argument("--template", help="task template, e.g. shop/buy")
    parser.add_argument(
        "--difficulty", type=int, help="difficulty, 1 (easy) to 5 (default: any that the template supports)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the generated task (default: 0)")
    parser.add_argument(
        "--port", type=int, default=8000, help="first port to listen on, 0 for any free port (default: 8000)"
    )
    parser.add_argument("--list", action="store_true", help="list the task templates and exit")
    options = parser.parse_args(argv)
    known = built_in.templates()
    if options.list:
        for name, template in choose_templates(known, WebTaskTemplate, None, options.site, "site").items():
            print(f"{name}  (difficulty {', '.join(map(str, template.difficulties))})")
        return 0
    site = options.site or (None if options.template else "shop")
    templates = choose_templates(known, WebTaskTemplate, options.template, site, "site")
    task = template_tasks(templates, "web", difficulty=options.difficulty, seed=options.seed)[0]
    row = TemplateTaskRow(task.data["template"], task.data["seed"], task.data["difficulty"])
    with SiteServers(templates[row.template], row, port=options.port) as sites:
        print(f"Task:   {row.template}, difficulty {row.difficulty}, seed {row.seed}")
        print(f"Goal:   {sites.goal}\n")
        print(f"Start:  {sites.start}")
        print(f"Check:  {sites.url}{_TASK_PAGE}")
        print("Press Ctrl-C to quit.", flush=True)
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

    def __init__(self, template: WebTaskTemplate, row: TemplateTaskRow, *, port: int = 0) -> None:
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

        class SiteRequestHandler(BaseHTTPRequestHandler):
            timeout = _IDLE_S

            def do_GET(self) -> None:
                sites._answer(self, origin)

            do_HEAD = do_POST = do_GET

            def log_message(self, format: str, *args: object) -> None:
                """Log no requests: the terminal shows only the goal."""

        return ThreadingHTTPServer(("127.0.0.1", port), SiteRequestHandler)

    def _answer(self, request: BaseHTTPRequestHandler, origin: str) -> None:
        # Reject DNS rebinding: a public page could point its own name to this machine.
        if request.headers.get("Host", "").rpartition(":")[0] not in _LOOPBACK:
            _send(request, Response(b"only requests to 127.0.0.1 and localhost are served", 421), {})
            return
        length = request.headers.get("Content-Length", "0")
        if not length.isascii() or not length.isdecimal() or int(length) > _MAX_BODY:
            request.close_connection = True
            _send(request, Response(b"request body too large", 413), {})
            return
        body = request.rfile.read(int(length))
        token, instance = self._session(request.headers.get("Cookie", ""))
        headers = {name.lower(): value for name, value in request.headers.items()}
        method = "GET" if request.command == "HEAD" else request.command
        site_request = Request(method, origin + request.path, headers, body)
        if site_request.path == _TASK_PAGE:
            response = self._task_page(site_request, instance)
        else:
            handler = instance.sites[origin]
            response = self._translated(handler(site_request))
        _send(request, response, {"set-cookie": f"{_COOKIE}={token}; Path=/; HttpOnly; SameSite=Lax"})

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
            answer = form.get("answer", "")
            ending = WebEpisodeEnd(infeasible=answer) if "infeasible" in form else WebEpisodeEnd(answer=answer)
            verdict = "<p><b>Solved.</b></p>" if instance.is_solved(ending) else "<p><b>Not solved.</b></p>"
        page = f"""<!doctype html><meta charset=utf-8><title>Task</title>
<body style="font: 16px sans-serif; max-width: 40em; margin: 3em auto">
<h1>Task</h1><p>{html.escape(self.goal)}</p><p><a href="{html.escape(self.start)}">Open the site</a></p>
<form method=post><label>Answer, if the task asks for one: <input name=answer></label>
<button>Check</button> <button name=infeasible value=1>Report infeasible</button></form>{verdict}"""
        return Response(page.encode())


def _send(request: BaseHTTPRequestHandler, response: Response, more: Mapping[str, str]) -> None:
    request.send_response(response.status)
    for name, value in {**response.headers, **more, "content-length": str(len(response.body))}.items():
        request.send_header(name, value)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(response.body)
