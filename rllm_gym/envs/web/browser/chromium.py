"""A Chromium process, started and ended by Playwright and driven directly over its protocol."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import secrets
import shlex
import shutil
import socket
import stat
import sys
import tempfile
import threading
from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllm_gym.envs.web.browser.cdp import CDPConnection, ProtocolError
from rllm_gym.envs.web.browser.errors import BrowserFault
from rllm_gym.envs.web.browser.pages import Contexts

if TYPE_CHECKING:
    from playwright.async_api import Browser, Playwright

_START_S = 60.0
_PROBE_S = 30.0
_CLOSE_S = 5.0
_FOLDER = "rllm-gym-browser-"

_MEMORY_BYTES = 3 * 2**30
"""Memory limit of each process of the browser. A page that exceeds it ends its own renderer, not the machine."""

_FLAGS = (
    # Disable the browser's own network traffic and user interface.
    "--disable-background-networking",
    "--disable-domain-reliability",
    "--disable-client-side-phishing-detection",
    "--disable-sync",
    "--no-pings",
    "--dns-prefetch-disable",
    "--disable-notifications",
    "--disable-print-preview",
    "--deny-permission-prompts",
    "--mute-audio",
    # WebRTC and QUIC bypass a proxy, over UDP.
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-quic",
    # Pages look the same on every machine.
    "--font-render-hinting=none",
    "--disable-lcd-text",
    "--hide-scrollbars",
    # The clipboard is shared by all contexts: a middle click would paste in one episode what another copied. The other
    # settings are those of Playwright, which this flag replaces.
    "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4,"
    "middleClickPasteAllowed=false",
    # A renderer that fills its heap ends itself and its own tab.
    "--js-flags=--max-old-space-size=512",
    # All episodes draw in one GPU process. A page that fills it with images ends it. Without this flag the browser
    # would end itself after several such crashes within a few minutes; with it, it starts a new GPU process each time.
    "--disable-gpu-process-crash-limit",
)
# Flags of Playwright that disable the protection against hostile pages.
_FLAGS_OFF = ("--disable-ipc-flooding-protection", "--disable-popup-blocking", "--disable-hang-monitor")
_BLINK_FEATURES_OFF = "WebTransport,DirectSockets,SharedStorageAPI,Fledge,InterestGroupStorage,BackgroundFetch"

# The driver ends when the thread that started it ends, for any reason. A closed pipe is not a reliable sign, because a
# fork of the trainer may hold the other end. TERM lets the driver close the browser and clean up.
_DRIVER = """#!/bin/sh
export TMPDIR={folder} HOME={folder}
exec {python} -I -S -c '
import ctypes, os, resource, signal, sys
hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
cap = {memory} if hard == resource.RLIM_INFINITY else min({memory}, hard)
resource.setrlimit(resource.RLIMIT_DATA, (cap, cap))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
if os.getppid() != {owner}:
    sys.exit(1)
os.execv(sys.argv[1], sys.argv[1:])
' {node} --require {tidy} "$@"
"""
# The driver survives a killed trainer for the time it takes to end the browser, so it removes the folder.
_CLEANUP_JS = """
process.on("exit", () => require("fs").rmSync(__dirname, {recursive: true, force: true}));
process.on("SIGTERM", () => setTimeout(() => process.exit(143), 2000).unref());
"""
# Playwright starts this script as the browser. It passes the pipe to Playwright over to this process, creates another
# one for the browser and passes its ends over too. Relaying through Playwright's driver would cost 80 of the 260 ms of
# CPU time of an episode of MiniWoB, in the driver, Playwright's Python side and the browser.
_BROWSER = """#!/bin/sh
exec {python} -I -S -c '
import os, socket, sys
down, up = os.pipe(), os.pipe()
with socket.socket(socket.AF_UNIX) as sock:
    os.chdir(sys.argv[1])
    sock.connect("socket")
    socket.send_fds(sock, [b"pipes"], [down[1], up[0], 4, 3])
os.dup2(down[0], 3)
os.dup2(up[1], 4)
os.execv(sys.argv[2], sys.argv[2:])
' {folder} {executable} "$@"
"""
_environment_lock = threading.Lock()


class Chromium:
    """A running browser. All methods run on one event loop; the processes end with the loop's thread.

    Attributes:
        contexts: Its contexts.
        proxy_host: A name for this machine's loopback address that only this browser knows. It is the only name that
            the browser can resolve; IP addresses are unreachable too. Contexts use it for their proxy; pages never see
            it.
    """

    def __init__(
        self, playwright: Playwright, browser: Browser, connection: CDPConnection, folder: Path, proxy_host: str
    ) -> None:
        self.proxy_host = proxy_host
        self.contexts = Contexts(connection)
        self._playwright = playwright
        self._browser = browser
        self._connection = connection
        self._folder = folder
        self.dead = False
        connection.closed.add_done_callback(lambda _: self._mark_dead())

    @classmethod
    async def start(cls, executable: Path) -> Chromium:
        """Start the browser within one minute.

        Args:
            executable: The Chromium to start.

        Raises:
            BrowserFault: It cannot be started; ``kind`` is ``"browser_unavailable"``.
        """
        _ignore_driver_errors()
        folder = _profile_folder()
        host = f"{secrets.token_hex(16)}.invalid"
        playwright = None
        connection = CDPConnection()
        try:
            async with asyncio.timeout(_START_S):
                playwright = await _start_driver(folder)
                browser = await _launch(playwright, executable, host, folder, connection)
                chromium = cls(playwright, browser, connection, folder, host)
                await chromium.contexts.start()
        except BaseException as error:
            connection.close()
            if playwright is not None:
                await _stop(playwright)
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, TimeoutError):
                raise BrowserFault(
                    f"{executable} did not start within {_START_S:g} s", kind="browser_unavailable"
                ) from error
            if _is_playwright_error(error) or isinstance(error, OSError | ProtocolError):
                raise BrowserFault(f"{executable} cannot be started: {error}", kind="browser_unavailable") from error
            raise
        return chromium

    async def alive(self) -> bool:
        """Return whether the browser answers."""
        if self.dead:
            return False
        try:
            async with asyncio.timeout(_PROBE_S):
                await self._connection.root.send("Browser.getVersion")
        except Exception:
            self._mark_dead()
        return not self.dead

    async def close(self) -> None:
        """End the browser and its driver, by force if they do not end on their own. May be called twice."""
        self._mark_dead()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_CLOSE_S):
                await self._browser.close()
        self._connection.close()
        await _stop(self._playwright)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _mark_dead(self) -> None:
        self.dead = True


async def _launch(
    playwright: Playwright, executable: Path, proxy_host: str, folder: Path, connection: CDPConnection
) -> Browser:
    options: dict[str, Any] = {
        "executable_path": str(_browser_script(executable, folder)),
        "args": [
            *_FLAGS,
            f"--disable-blink-features={_BLINK_FEATURES_OFF}",
            f"--host-resolver-rules=MAP {proxy_host} 127.0.0.1, MAP * ~NOTFOUND",
            # A request without a context's own proxy (there should be none) goes to a closed port.
            f"--proxy-server=http://{proxy_host}:9",
            "--proxy-bypass-list=<-loopback>",
        ],
        "ignore_default_args": list(_FLAGS_OFF),
        "env": {
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
        },
        "handle_sigint": False,
        "handle_sigterm": True,
        "handle_sighup": False,
        "timeout": _START_S * 1000,
    }
    if os.geteuid() != 0:
        try:
            return await _connected_browser(
                playwright.chromium.launch(chromium_sandbox=True, **options), folder, connection
            )
        except Exception as error:
            # Chromium's own sandbox needs user namespaces, which containers often lack.
            if "sandbox" not in str(error):
                raise
    return await _connected_browser(playwright.chromium.launch(chromium_sandbox=False, **options), folder, connection)


async def _connected_browser(launching: Awaitable[Browser], folder: Path, connection: CDPConnection) -> Browser:
    """Return Playwright's browser once its messages pass through the connection."""
    with _listening_socket(folder) as listener:
        joining = asyncio.ensure_future(_take_pipes(listener, connection))
        try:
            return await launching
        finally:
            joining.cancel()
            await asyncio.wait([joining])
            if not joining.cancelled() and (error := joining.exception()) is not None:
                raise error


async def _take_pipes(listener: socket.socket, connection: CDPConnection) -> None:
    caller, _ = await asyncio.get_running_loop().sock_accept(listener)
    with caller:
        caller.setblocking(True)
        _, ends, _, _ = await asyncio.to_thread(socket.recv_fds, caller, 16, 4)
    to_browser, from_browser, to_driver, from_driver = ends
    await connection.open(to_browser, from_browser, to_driver, from_driver)


def _listening_socket(folder: Path) -> socket.socket:
    """Create a socket in the folder, which only this user can access."""
    listener = socket.socket(socket.AF_UNIX)
    path = folder / "socket"
    path.unlink(missing_ok=True)
    inside = os.open(folder, os.O_RDONLY)
    try:
        # A socket's path is limited to 108 bytes; the folder's may be longer.
        listener.bind(f"/proc/self/fd/{inside}/socket" if sys.platform == "linux" else str(path))
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(inside)
    listener.listen(1)
    listener.setblocking(False)
    return listener


def _browser_script(executable: Path, folder: Path) -> Path:
    script = folder / "browser"
    values = {"python": sys.executable, "folder": folder, "executable": executable}
    script.write_text(_BROWSER.format(**{name: shlex.quote(str(word)) for name, word in values.items()}))
    script.chmod(stat.S_IRWXU)
    return script


async def _start_driver(folder: Path) -> Playwright:
    try:
        api = importlib.import_module("playwright.async_api")
    except ModuleNotFoundError as error:
        raise BrowserFault(
            f"the browser needs Playwright ({error}): pip install 'rllm-gym[web]'", kind="browser_unavailable"
        ) from error
    started: Playwright
    if sys.platform != "linux":
        started = await api.async_playwright().start()
        return started
    script = folder / "driver"
    # Playwright reads the driver's program only from the environment.
    with _environment_lock:
        before = os.environ.get("PLAYWRIGHT_NODEJS_PATH")
        node = before or str(Path(str(api.__file__)).parent.parent / "driver" / "node")
        tidy = folder / "tidy.cjs"
        tidy.write_text(_CLEANUP_JS)
        words = {"folder": folder, "python": sys.executable, "node": node, "tidy": tidy}
        quoted = {name: shlex.quote(str(word)) for name, word in words.items()}
        script.write_text(_DRIVER.format(**quoted, owner=os.getpid(), memory=_MEMORY_BYTES))
        script.chmod(stat.S_IRWXU)
        os.environ["PLAYWRIGHT_NODEJS_PATH"] = str(script)
        try:
            started = await api.async_playwright().start()
        finally:
            if before is None:
                del os.environ["PLAYWRIGHT_NODEJS_PATH"]
            else:
                os.environ["PLAYWRIGHT_NODEJS_PATH"] = before
    script.unlink()
    return started


async def _stop(playwright: Playwright) -> None:
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_CLOSE_S):
            await playwright.stop()


def _profile_folder() -> Path:
    """Create a folder for profiles and downloads, after removing those of killed processes."""
    parent = Path(tempfile.gettempdir())
    for folder in parent.glob(f"{_FOLDER}*"):
        pid = folder.name.removeprefix(_FOLDER).partition("-")[0]
        with contextlib.suppress(OSError):
            if pid.isdecimal() and folder.stat().st_uid == os.geteuid() and not Path(f"/proc/{pid}").exists():
                shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-"))


def _is_playwright_error(error: BaseException) -> bool:
    return type(error).__module__.startswith("playwright.")


def _ignore_driver_errors() -> None:
    """Silence futures that Playwright abandons when its driver dies: their callers have already received the error."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "driver" not in str(context.get("exception")) and not _is_playwright_error(
            context.get("exception") or OSError()
        ):
            loop.default_exception_handler(context)

    asyncio.get_running_loop().set_exception_handler(handle)
