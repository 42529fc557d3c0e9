"""Pictures in results of tools: passed on as parts of messages, whatever a server sends as a picture."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="needs the extra: pip install 'rllm-gym[mcp]'")
pytest.importorskip("PIL", reason="needs the extra: pip install 'rllm-gym[render]'")

from mcp.server import MCPServer
from mcp_types import ImageContent
from PIL import Image

from rllm_gym.agents import default_agent
from rllm_gym.agents.mcp import MCPAgent
from rllm_gym.envs.mcp import MCPEnv
from rllm_gym.envs.mcp.images import MAX_SIDE, as_png, data_urls
from tests.envs.tool_call import call


def encoded(size: tuple[int, int], kind: str = "PNG", mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new(mode, size).save(file, kind, **options)
    return file.getvalue()


def claiming(width: int, height: int) -> bytes:
    """Return a PNG file of a few bytes whose header claims a size."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def size_of(png: bytes) -> tuple[str, str, tuple[int, int]]:
    picture = Image.open(io.BytesIO(png))
    return picture.format, picture.mode, picture.size


def camera(workspace: Path, seed: int) -> MCPServer:
    server = MCPServer("camera", log_level="ERROR")

    @server.tool()
    def shoot(widths: list[int]) -> list[ImageContent]:
        """Take pictures; one of width 0 is none."""
        pictures = [encoded((width, 8)) if width else b"no picture" for width in widths]
        return [
            ImageContent(type="image", data=base64.b64encode(data).decode(), mime_type="image/png") for data in pictures
        ]

    return server


def make(**arguments: Any) -> MCPEnv:
    rows = [{"prompt": "Look.", "answer": {"type": "number", "value": 5}}]
    return MCPEnv(tasks=rows, servers=camera, **arguments)


@pytest.mark.parametrize(
    ("image", "size"),
    [
        (encoded((7, 5)), (7, 5)),
        (encoded((7, 5), "JPEG"), (7, 5)),
        (encoded((7, 5), "WEBP"), (7, 5)),
        (encoded((7, 5), "GIF", "P", save_all=True, append_images=[Image.new("P", (7, 5), 1)]), (7, 5)),
        (encoded((7, 5), mode="LA"), (7, 5)),
        (encoded((7, 5), mode="I;16"), (7, 5)),
        (encoded((4 * MAX_SIDE, MAX_SIDE)), (MAX_SIDE, MAX_SIDE // 4)),
    ],
    ids=["png", "jpeg", "webp", "animation", "transparent", "16 bits", "large"],
)
def test_pictures_become_png_files(image: bytes, size: tuple[int, int]) -> None:
    assert size_of(as_png(image)) == ("PNG", "RGB", size)


@pytest.mark.parametrize(
    "image",
    [b"", b"hi", b"\x89PNG", encoded((90, 90))[:-60], claiming(60_000, 60_000), claiming(1, 2**31 - 1)]
    + [encoded((9, 9), kind) for kind in ("TIFF", "BMP", "ICO", "PPM")]
    + [b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"],
)
def test_what_is_no_picture_or_too_large_is_left_out(image: bytes) -> None:
    assert as_png(image) is None
    assert len(data_urls([image, encoded((9, 9)), image], 2)) == 1


def test_pictures_reach_the_model_as_parts_of_the_message() -> None:
    assert default_agent("rllm/MCP-v0") is MCPAgent
    env, agent = make(max_images=2), MCPAgent()
    agent.reset()
    try:
        observation, info = env.reset(seed=0)
        assert info["images"] == "[]"
        agent.update_from_env(observation, 0.0, False, info)
        agent.update_from_model(reply := call("shoot", widths=[3, 0, 4, 5]))
        observation, reward, terminated, _, info = env.step(reply)
        assert observation.count("[image image/png, ") == 4
        urls = json.loads(info["images"])
        assert [size_of(base64.b64decode(url.partition(",")[2]))[2] for url in urls] == [(3, 8), (4, 8)]
        agent.update_from_env(observation, reward, terminated, info)
        assert agent.chat_completions[-1]["content"] == [
            {"type": "text", "text": observation},
            *({"type": "image_url", "image_url": {"url": url}} for url in urls),
        ]
        assert env.step(call("shoot", widths="many"))[-1]["images"] == "[]"  # not sent
        assert env.step(call("shoot", widths=[]))[-1]["images"] == "[]"
        assert env.step("5")[1] == 1.0
    finally:
        env.close()


def test_without_the_option_pictures_are_described() -> None:
    env = make()
    try:
        assert "images" not in env.reset(seed=0)[1]
        observation, *_, info = env.step(call("shoot", widths=[3]))
        assert "[image image/png, " in observation
        assert "images" not in info
    finally:
        env.close()


def test_invalid_limits_and_a_missing_library_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in (-1, 17, True):
        with pytest.raises(ValueError, match="max_images"):
            make(max_images=limit)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "PIL" else find(name, *rest))
    with pytest.raises(ModuleNotFoundError, match=r"rllm-gym\[render\]"):
        make(max_images=1)
