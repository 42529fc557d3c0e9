"""``rllm-gym serve-sites``: a person can solve a web task, isolated per browser, and sees when it is solved."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar

import pytest

from rllm_gym.commands.main import main
from rllm_gym.commands.serve_sites import SiteServers
from rllm_gym.envs.task_templates import TemplateTaskRow
from rllm_gym.envs.web.sites import TEMPLATES
from rllm_gym.envs.web.sites.http import Request, Response
from rllm_gym.envs.web.sites.task import WebTask, WebTaskTemplate


class Bell:
    """A bell with a counter, on two origins that link to each other."""

    def __init__(self) -> None:
        self.rings = 0

    def handlers(self):
        return {"http://bell.test": self.bell, "http://tower.test": lambda request: Response(b"<p>A tower</p>")}

    def facts(self):
        return self.rings

    def bell(self, request: Request) -> Response:
        if request.method == "POST":
            self.rings += 1
            return Response(status=303, headers={"location": "http://bell.test/"})
        return Response(f'{self.rings} rings <a href="http://tower.test/up">tower</a>'.encode())


BELL = WebTaskTemplate(
    "bell/ring",
    lambda seed, difficulty: Bell(),
    lambda state, rng, difficulty: WebTask(
        "Ring <once>.", "http://bell.test/?from=start", (), outcome=lambda site: setattr(site, "rings", 1)
    ),
)


@pytest.fixture(scope="module")
def sites() -> Iterator[SiteServers]:
    with SiteServers(BELL, TemplateTaskRow("bell/ring", 1, 1)) as sites:
        yield sites


def browser() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))


def read(opener: urllib.request.OpenerDirector, url: str, body: bytes | None = None) -> str:
    with opener.open(url, body, timeout=120) as answer:
        return answer.read().decode()


def test_every_browser_has_its_own_session_and_sees_when_the_task_is_done(sites: SiteServers) -> None:
    one, other = browser(), browser()
    assert sites.start.endswith("/?from=start")
    assert "0 rings" in read(one, sites.start)
    assert "1 rings" in read(one, sites.start, b"x=1")
    assert "0 rings" in read(other, sites.start)
    task = f"{sites.url}/_task"
    assert "Ring &lt;once&gt;." in read(one, task)
    assert "Solved" in read(one, task, b"answer=")
    assert "Not solved" in read(other, task, b"answer=")
    assert "Not solved" in read(one, task, b"infeasible=1")
    tower = re.search(r'href="(http://127\.0\.0\.1:\d+/up)"', read(one, sites.start))
    assert "A tower" in read(one, tower[1])


def test_requests_with_a_foreign_host_name_are_rejected(sites: SiteServers) -> None:
    for headers in ({"Host": "evil.example"}, {"Host": "127.0.0.1.evil.example:80"}):
        with pytest.raises(urllib.error.HTTPError, match="421"):
            urllib.request.urlopen(urllib.request.Request(sites.start, headers=headers), timeout=120)
    request = urllib.request.Request(sites.start, headers={"Content-Length": "99999999999"}, data=b"x")
    with pytest.raises(urllib.error.HTTPError, match="413"):
        urllib.request.urlopen(request, timeout=120)


def test_a_head_request_gets_the_headers_of_the_page(sites: SiteServers) -> None:
    for url in (sites.start, f"{sites.url}/_task"):
        page = browser().open(url, timeout=120)
        head = browser().open(urllib.request.Request(url, method="HEAD"), timeout=120)
        assert head.status == 200
        assert head.headers["content-length"] == page.headers["content-length"] != "0"
        assert head.read() == b""


def test_the_command_prints_the_address_and_exits_on_ctrl_c() -> None:
    command = [sys.executable, "-m", "rllm_gym", "serve-sites", "--site", "shop", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            output = ""
            while "Ctrl-C" not in output and (line := process.stdout.readline()):
                output += line
            start = re.search(r"Start:\s+(\S+)", output)
            assert start, output
            assert "Goal:" in output
            assert "<title>" in read(browser(), start[1])
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=120) == 130
        finally:
            process.kill()  # otherwise leaving the block would wait for a server that nobody stops


def test_templates_are_listed_and_an_unknown_name_is_a_one_line_error(capsys) -> None:
    assert main(["serve-sites", "--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in TEMPLATES)
    assert main(["serve-sites", "--template", "shop/nothing"]) == 2
    assert "shop/nothing" in capsys.readouterr().err
