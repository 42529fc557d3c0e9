"""Pages of the site that show the notebooks of examples/notebooks with their stored outputs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FENCE = "````"  # outputs contain ``` themselves


def markdown(path: Path) -> str:
    """Return the Markdown of a notebook, with a link to the file itself below the title."""
    title, _, rest = "\n\n".join(_parts(json.loads(path.read_text()))).partition("\n")
    return f'{title}\n\n<a href="{path.name}" download>Download this notebook</a>\n{rest}\n'


def _parts(notebook: dict[str, Any]) -> Iterator[str]:
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield source
            continue
        yield _block("python", source)
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                yield f"![Output of the code above](data:image/png;base64,{''.join(data['image/png']).strip()})"
            else:
                yield _block("{.text .output}", "".join(output.get("text") or data["text/plain"]))


def _block(language: str, text: str) -> str:
    return f"{FENCE}{language}\n{text.rstrip()}\n{FENCE}"
