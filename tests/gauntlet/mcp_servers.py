"""The MCP servers of the gauntlet. Another one is another entry of ``SERVERS``.

``python -m tests.gauntlet.mcp_servers`` lists their packages for ``scripts/gauntlet.sh``, which installs them. Other
servers are in tests/mcp/test_mcp_third_party.py and tests/envs/test_mcp_third_party_servers.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Call = tuple[str, dict[str, Any], str]
"""A tool, its arguments, and a text of the result."""


@dataclass(frozen=True)
class McpServer:
    """A program of npm or PyPI.

    Attributes:
        package: ``name@1.0`` of npm, ``name==1.0`` of PyPI.
        program: A file of the npm package, or a program or module (``-m name``) of the PyPI environment.
        calls: Calls to carry out. ``{page}`` in them, in ``args`` and in ``env`` stands for the URL of a page,
            ``{chromium}`` for the browser.
        args: Arguments of the program.
        env: Environment variables.
        sdk: Version of the MCP SDK that a PyPI package needs; each has its own environment.
    """

    package: str
    program: str
    calls: tuple[Call, ...]
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    sdk: int = 1

    @property
    def name(self) -> str:
        return self.package.rpartition("==")[0] or self.package.rpartition("@")[0]

    @property
    def place(self) -> str:
        """The folder of the installation."""
        return f"mcp-sdk{self.sdk}" if "==" in self.package else "npm"


BUTTON = "data:text/html,<title>T</title><button onclick=\"this.textContent='Done'\">Go</button>"

SERVERS = (
    McpServer(
        "@modelcontextprotocol/server-sequential-thinking@2026.8.31",
        "dist/index.js",
        (
            (
                "sequentialthinking",
                {"thought": "First", "nextThoughtNeeded": True, "thoughtNumber": 1, "totalThoughts": 2},
                '"thoughtHistoryLength": 1',
            ),
        ),
    ),
    McpServer(
        "@playwright/mcp@0.0.83",
        "cli.js",
        (
            ("browser_navigate", {"url": BUTTON}, "Page Title: T"),
            ("browser_snapshot", {}, 'button "Go" [ref=e2]'),
            ("browser_click", {"element": "Go", "target": "e2"}, "click()"),
            ("browser_snapshot", {}, 'button "Done"'),
            ("browser_take_screenshot", {}, "[image image/png"),
        ),
        ("--headless", "--isolated", "--no-sandbox", "--executable-path", "{chromium}"),
    ),
    McpServer(
        "chrome-devtools-mcp@1.11.0",
        "build/src/bin/chrome-devtools-mcp.js",
        (
            ("new_page", {"url": BUTTON}, "2: T ("),
            ("take_snapshot", {"pageId": 2}, 'button "Go"'),
            ("evaluate_script", {"pageId": 2, "function": "() => 6 * 7"}, "42"),
        ),
        ("--headless", "--isolated", "--executablePath", "{chromium}", "--chromeArg=--no-sandbox"),
    ),
    McpServer(
        "@kazuph/mcp-taskmanager@1.1.1",
        "dist/index.js",
        (
            (
                "request_planning",
                {"originalRequest": "Make tea", "tasks": [{"title": "Boil", "description": "Boil water"}]},
                '"totalTasks": 1',
            ),
            ("list_requests", {}, "Make tea"),
        ),
        env={"TASK_MANAGER_FILE_PATH": "{workspace}/tasks.json"},
    ),
    McpServer(
        "@cyanheads/git-mcp-server@2.15.3",
        "dist/index.js",
        (
            ("git_init", {"path": "/workspace"}, '"initialBranch"'),
            ("git_set_working_dir", {"path": "/workspace"}, '"a.txt"'),
            ("git_add", {"paths": ["a.txt"]}, "a.txt"),
            ("git_status", {}, '"stagedChanges"'),
        ),
        env={"MCP_TRANSPORT_TYPE": "stdio", "GIT_BASE_DIR": "{workspace}", "LOGS_DIR": "{workspace}/logs"},
    ),
    McpServer(
        # Its tools come from an OpenAPI document. Without the service every call fails.
        "@notionhq/notion-mcp-server@2.5.2",
        "bin/cli.mjs",
        (("API-get-self", {}, "API-get-self (failed)"),),
        env={"NOTION_TOKEN": "none"},
    ),
    McpServer(
        "@eslint/mcp@0.3.13",
        "src/mcp-cli.js",
        (("lint-files", {"filePaths": ["/workspace/a.txt"]}, "lint-files (failed)"),),
    ),
    McpServer(
        "mcp-hello-world@1.1.2",
        "build/stdio.js",
        (("add", {"a": 2, "b": 3}, "5"), ("echo", {"message": "hi"}, "You said: hi")),
    ),
    McpServer(
        "mcp-server-fetch==2026.10.24",
        "mcp-server-fetch",
        (("fetch", {"url": "{page}"}, "A page of the test"),),
        ("--allow-private-ips", "--ignore-robots-txt"),
        sdk=2,
    ),
    McpServer(
        "excel-mcp-server==2.2.2",
        "excel-mcp-server",
        (("list_workbooks", {}, "list_workbooks"),),
        ("stdio",),
        sdk=2,
    ),
    McpServer(
        "mcp-server-calculator==0.2.1",
        "-m mcp_server_calculator",
        (("calculate", {"expression": "6 * 7"}, "42"), ("calculate", {"expression": "6 *"}, "calculate")),
    ),
    McpServer(
        "mcp-text-editor==1.0.2",
        "mcp-text-editor",
        (
            (
                "get_text_file_contents",
                {"files": [{"file_path": "/workspace/a.txt", "ranges": [{"start": 1}]}]},
                '"content": "one\\ntwo\\n"',
            ),
        ),
    ),
    McpServer(
        "mcp-shell-server==1.1.14",
        "mcp-shell-server",
        (
            ("shell_execute", {"command": ["cat", "a.txt"], "directory": "/workspace"}, "two"),
            ("shell_execute", {"command": ["rm", "a.txt"], "directory": "/workspace"}, "not allowed"),
        ),
        env={"ALLOW_COMMANDS": "ls,cat,echo,wc"},
    ),
    McpServer(
        "cli-mcp-server==0.2.5",
        "cli-mcp-server",
        (("run_command", {"command": "cat a.txt"}, "return code: 0"),),
        env={"ALLOWED_DIR": "{workspace}", "ALLOWED_COMMANDS": "ls,cat,echo", "ALLOWED_FLAGS": "all"},
    ),
    McpServer(
        "mcp-server-duckdb==1.1.0",
        "mcp-server-duckdb",
        (
            ("query", {"query": "CREATE TABLE t AS SELECT 6 * 7 AS n"}, "query"),
            ("query", {"query": "SELECT n FROM t"}, "[(42,)]"),
            ("query", {"query": "SELECT * FROM nowhere"}, "does not exist"),
        ),
        ("--db-path", "{workspace}/shop.duckdb"),
    ),
    McpServer(
        "networkx-mcp-server==2.0.0",
        "-m networkx_mcp.server_minimal",
        (
            ("create_graph", {"name": "g"}, '"created": "g"'),
            ("add_edges", {"graph": "g", "edges": [["a", "b"], ["b", "c"]]}, '"added": 2'),
            ("shortest_path", {"graph": "g", "source": "a", "target": "c"}, '"length": 2'),
        ),
    ),
    McpServer(
        "office-powerpoint-mcp-server==2.0.7",
        "ppt_mcp_server",
        (("create_presentation", {}, '"slide_count": 0'), ("list_slide_templates", {}, "template")),
    ),
)


if __name__ == "__main__":
    for place in sorted({server.place for server in SERVERS}):
        print(place, *(server.package for server in SERVERS if server.place == place))
