"""Writes what an environment has: its Python, its packages with their versions, and programs beside it.

Run once by the environment's own interpreter, when the environment or the image is made; the gateway reads
the file when it starts (``specs/manifest.py``). It needs nothing but the standard library::

    python manifest.py FILE [NAME]      # the environment's name, such as standard; default: the former one
"""

import importlib.metadata
import json
import platform
import shutil
import sys
from pathlib import Path

PROGRAMS = (
    *("bash", "git", "curl", "wget", "jq", "zip", "unzip", "sqlite3"),
    *("make", "gcc", "deno", "node", "ffmpeg", "pandoc"),
)
SYSTEM = "/usr/local/bin:/usr/bin:/bin"  # with the environment's own folder, the path of a kernel


def manifest(name):
    """Return the environment of this interpreter as JSON values."""
    found = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}
    path = f"{sys.prefix}/bin:{SYSTEM}"
    return {
        "environment": name,
        "python": platform.python_version(),
        "packages": dict(sorted(found.items(), key=lambda item: item[0].lower())),
        "programs": [program for program in PROGRAMS if shutil.which(program, path=path)],
    }


def former_name(file):
    """Return the name in the file, if it is there."""
    try:
        return json.loads(Path(file).read_text(encoding="utf-8"))["environment"]
    except FileNotFoundError:
        return ""


def main(file, name=None):
    """Write the file as a whole: a gateway that starts in the meantime reads the old one or the new one."""
    name = former_name(file) if name is None else name
    draft = Path(f"{file}.new")
    draft.write_text(json.dumps(manifest(name)) + "\n", encoding="utf-8")
    draft.replace(file)


if __name__ == "__main__":
    main(*sys.argv[1:])
