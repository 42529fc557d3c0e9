"""Container images that contain a repository: their tree becomes the base, and programs run in the image.

The workspace is a copy with one new commit, separate from the image's own directory: the files the image was built
with stay in place, and the copy comes first on Python's path.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rllm_gym.core import TaskError
from rllm_gym.envs.swe.checkout import MAX_BYTES, MAX_FILES, Checkout, prepare_from
from rllm_gym.sandbox.tree import FileTree, TreeTooLarge

if TYPE_CHECKING:
    from rllm_gym.sandbox import Runtime, SandboxPool, Tier
    from rllm_gym.sandbox.session import PendingSession, SessionLimits

WORKDIR = "/testbed"
"""Directory of the repository in the images of SWE-bench, SWE-smith and R2E-Gym."""

# The environments in SWE-bench's and R2E-Gym's images; directories that do not exist are harmless.
_PATH = (
    "/opt/miniconda3/envs/testbed/bin:/testbed/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)


class ImagePool:
    """A pool whose sessions are created from one image; used for all sessions of a task.

    Args:
        pool: A pool of containers.
        image: The image, pulled when the first session is opened.
    """

    def __init__(self, pool: SandboxPool, image: str) -> None:
        self._pool, self.image = pool, image

    @property
    def tier(self) -> Tier:
        return self._pool.tier

    def open_session(
        self,
        base: Path | None = None,
        *,
        limits: SessionLimits | None = None,
        runtime: Runtime | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> PendingSession:
        """Call :meth:`SandboxPool.open_session` with the image.

        Raises:
            ValueError: ``runtime`` is given; the image is the runtime.
        """
        variables = {"PATH": _PATH, **(environment or {})}
        return self._pool.open_session(base, limits=limits, runtime=runtime, environment=variables, image=self.image)

    def checkout(self, workdir: str, patch: str | None) -> Checkout:
        """Return the tree at ``workdir`` of the image, with a patch applied; it is read once.

        Raises:
            TaskError: It is too large, or cannot be read.
            EnvironmentFault: The container failed.
        """
        return prepare_from(
            ("image", self.image, workdir), f"{workdir} of {self.image}", lambda: self.read(workdir), patch=patch
        )

    def read(self, workdir: str) -> FileTree:
        """Return all files at ``workdir`` of the image except ``.git``."""
        with self._pool.open_session_sync(image=self.image, workdir=workdir) as session:
            try:
                return session.read_tree_sync(max_bytes=MAX_BYTES, max_files=MAX_FILES)
            except (TreeTooLarge, OSError) as error:
                raise TaskError(f"{workdir} of the image {self.image!r} cannot be copied: {error}") from error

    def texts(self, folder: str, prefix: str) -> dict[str, str]:
        """Return the text files of the image below ``folder``, by path with a different prefix."""
        found = {}
        for path, file in self.read(folder).items():
            if file.kind == "file" and b"\0" not in file.data:
                found[f"{prefix}/{path}"] = file.data.decode("utf-8", "replace")
        return found
