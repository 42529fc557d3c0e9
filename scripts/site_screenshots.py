"""Take the screenshots of the built-in web sites in docs/images/sites: ``python scripts/site_screenshots.py``.

The same seed gives the same pages; letters look different where other fonts are installed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from rllm_gym.envs.web import WebEnv
from rllm_gym.envs.web.rows import site_task
from rllm_gym.envs.web.sites import TEMPLATES

FOLDER = Path(__file__).parents[1] / "docs" / "images" / "sites"
PAGES: dict[str, Callable[[Any], str]] = {
    "shop": lambda shop: "/",
    "forum": lambda forum: f"/thread/{min(forum.threads)}",
    "wiki": lambda wiki: f"/page/{wiki.of_kind('Mountains')[0].title}",
    "calendar": lambda calendar: "/",
    "mail": lambda mailbox: "/",
    "tracker": lambda tracker: f"/project/{min(tracker.projects)}/board",
    "admin": lambda office: "/invoices",
}
SEED, DIFFICULTY, COLOURS = 3, 2, 96


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sites", nargs="*", help="sites to take again (default: all)")
    wanted = parser.parse_args().sites
    FOLDER.mkdir(parents=True, exist_ok=True)
    env = WebEnv(viewport=(1000, 700), observation_mode="both")
    for site, path in PAGES.items():
        if wanted and site not in wanted:
            continue
        name = next(name for name in TEMPLATES if name.startswith(f"{site}/"))
        env.reset(options={"task": site_task(name, name, SEED, DIFFICULTY)})
        observation, *_ = env.step(f'goto("{path(TEMPLATES[name].build(SEED, DIFFICULTY))}")')
        assert isinstance(observation, dict)
        picture = Image.fromarray(observation["image"]).quantize(COLOURS, dither=Image.Dither.NONE)
        picture.save(FOLDER / f"{site}.png", optimize=True)
    env.close()


if __name__ == "__main__":
    main()
