"""JupyterLab in an empty folder. Run by the Python of its own environment: ``jupyter_lab.py PORT FOLDER``."""

import os
import sys

port, folder = sys.argv[1:]
os.environ |= {f"JUPYTER_{kind}_DIR": folder for kind in ("CONFIG", "DATA", "RUNTIME")}
os.environ |= {"IPYTHONDIR": folder, "JUPYTER_PREFER_ENV_PATH": "1"}
options = {"port": port, "ip": "127.0.0.1", "token": "", "root_dir": folder, "allow_root": "True"}
words = [
    f"--{'IdentityProvider' if name == 'token' else 'ServerApp'}.{name}={value}" for name, value in options.items()
]
os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", "--no-browser", *words])
