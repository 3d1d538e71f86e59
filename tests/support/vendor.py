"""Renews the third-party files of the console. `make vendor` runs it and needs npm; users need neither.

What they are made of is pinned by ``vendoring/package.json`` and, with hashes, by the lock beside it; of the
other files there esbuild makes one script each. Whoever renews them edits the versions, runs ``make vendor``
and commits what comes of it; npm writes the lock anew where the versions differ.

A folder's name has the version and, because several packages make one script, the beginning of the script's
hash: its content never changes, so browsers may keep it for ever. ``tests/pure/test_vendor.py`` checks the
files against the manifest; ``tests/clients/console/test_vendored.py`` makes them anew and compares.

Scripts that draw stills beside kernels have a folder among the kernels' start-up files, each with its
licences at its top; the manifest tells of them too. plotly.js itself is there that of the environment's
plotly, and the console's is of the same version: renew both together.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCES = Path(__file__).parent / "vendoring"
LICENCES = SOURCES / "licences"
"""Texts that some packages do not ship themselves, by the scope of their names."""
VENDOR = ROOT / "gateway" / "cellgate" / "console" / "static" / "vendor"
IMAGE = ROOT / "kernels" / "cellgate_kernels" / "inside"
DRAWING = IMAGE / "drawing"
MANIFEST = "manifest.json"
LOCK = "package-lock.json"
LONGEST_NPM = 600
PACKAGE = re.compile(r"(.*node_modules/(?:@[^/]+/)?[^/]+)/")


@dataclass(frozen=True)
class Made:
    """One script: its name, the package that its version is of, and whether the page imports it.

    The others are for the outputs' frame: classic scripts, found by their names in ``renderers.js``.
    """

    name: str
    package: str
    module: bool = False


SCRIPTS = (
    Made("preact", "preact", module=True),
    Made("codemirror", "@codemirror/view", module=True),
    Made("sha256", "@noble/hashes", module=True),
    Made("tables", "hyparquet", module=True),
    Made("markdown-it", "markdown-it"),
    Made("katex", "katex"),
    Made("vega", "vega"),
    Made("plotly", "plotly.js-dist-min"),
    Made("widgets", "@jupyter-widgets/controls"),
)
STILLS = (Made("stills_dom", "linkedom"), Made("stills_vega", "vega"))
"""Scripts for stills; each has its exports under its own name."""
STILLS_MAPS = "stills_maps"
MAPS = {
    "name": "plotly.js",
    "version": "3.7.0",
    "licence": "MIT",
    "integrity": "sha512-"
    "r17/w3Ob/E+A1vqN382PV/6Dz+IAxAsxNCpWcnGfGFLqE0M6vPUa+ve7HPhivrl9LMicZg2Fy0U5GbpauHo32A==",
}
"""The package with the outlines of maps. It is only unpacked: what it depends on is not needed for that."""


def make(target: Path, work: Path, image: Path) -> None:
    """Write all third-party files into `target`, from packages that are installed in `work`.

    Those that draw stills are written into `image`.
    """
    packages = json.loads((work / LOCK).read_text())["packages"]
    entries: list[dict[str, Any]] = []
    for script in SCRIPTS:
        code, parts, licences = _made(script, work, packages)
        entries.append(
            _write(target, (script.name, _version(script, work)), code, parts, licences)
            | {"module": script.module}
        )
    stills: list[dict[str, Any]] = []
    image.mkdir(exist_ok=True)
    for script in STILLS:
        code, parts, licences = _made(script, work, packages, f"--global-name={script.name}")
        stills.append(_put(image, (script.name, _version(script, work)), code, parts, licences))
    code, licence = _maps(work)
    stills.append(_put(image, (STILLS_MAPS, MAPS["version"]), code, [MAPS], [licence]))
    entries.append(
        _write(target, ("plotly-maps", MAPS["version"]), code, [MAPS], [licence]) | {"module": False}
    )
    for name, text in _index(entries):
        (target / name).write_text(text)
    index = {name: _facts(target / name) for name, _ in _index(entries)}
    manifest = {"scripts": entries, "index": index, "stills": stills}
    (target / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")


def _version(script: Made, work: Path) -> str:
    told = json.loads((work / "node_modules" / script.package / "package.json").read_text())
    return str(told["version"])


def _made(
    script: Made, work: Path, packages: dict[str, Any], *more: str
) -> tuple[bytes, list[dict[str, str]], list[str]]:
    """The script, the packages in it, and their licences. `more`: options of esbuild."""
    code, used = _bundle(script, work, *more)
    parts = [_part(path, packages[path]) for path in used]
    return code, parts, [_licence(part, work / path) for part, path in zip(parts, used, strict=True)]


def _bundle(script: Made, work: Path, *more: str) -> tuple[bytes, list[str]]:
    """The script, and the folders of the packages in it."""
    out, facts = work / f"{script.name}.out.js", work / f"{script.name}.facts.json"
    options = [f"--format={'esm' if script.module else 'iife'}", "--bundle", "--minify", "--target=es2022"]
    options += ["--legal-comments=none", "--charset=utf8", "--platform=browser", "--log-level=warning"]
    options += ['--define:process.env.NODE_ENV="production"', "--main-fields=browser,module,main"]
    options += ["--alias:canvas=./stills_canvas.cjs", "--loader:.css=text", *more]
    command = [work / "node_modules" / ".bin" / "esbuild", f"{script.name}.js", *options]
    subprocess.run([*command, f"--outfile={out}", f"--metafile={facts}"], cwd=work, check=True)
    (output,) = json.loads(facts.read_text())["outputs"].values()
    # What packages have for other places than browsers stands as "(disabled):" and is empty.
    inside = (name for name, part in output["inputs"].items() if part["bytesInOutput"])
    folders = {found[1] for name in inside if (found := PACKAGE.match(name)) and name[0] != "("}
    return out.read_bytes(), sorted(folders)


def _part(path: str, package: dict[str, Any]) -> dict[str, str]:
    """A package as the manifest tells of it. `path`: where it is installed."""
    return {
        "name": path.rpartition("node_modules/")[2],
        "version": package["version"],
        "licence": package["license"],
        "integrity": package["integrity"],
    }


def _maps(work: Path) -> tuple[bytes, str]:
    """The script with the outlines of maps, and its licence."""
    package = f"{MAPS['name']}@{MAPS['version']}"
    command = ["npm", "pack", "--json", "--loglevel=error", package]
    packed = subprocess.run(command, cwd=work, check=True, timeout=LONGEST_NPM, stdout=subprocess.PIPE).stdout
    archive = work / json.loads(packed)[0]["filename"]
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if MAPS["integrity"] != f"sha512-{digest}":
        raise ValueError(f"{package} is not the one that is known: its hash is sha512-{digest}")
    # Not tarfile's, which has no safe way to do so before Python 3.11.4.
    (work / "maps").mkdir()
    subprocess.run(["tar", "--extract", f"--file={archive}", f"--directory={work / 'maps'}"], check=True)
    whole, made = work / "maps" / "package" / "dist" / "plotly-geo-assets.js", work / "maps.js"
    subprocess.run(["node", SOURCES / "plotly-maps.mjs", whole, made], check=True)
    return made.read_bytes(), _licence(MAPS, work / "maps" / "package")


def _write(
    target: Path, named: tuple[str, str], code: bytes, parts: list[dict[str, str]], licences: list[str]
) -> dict[str, Any]:
    """Write a script with its licences; returns its entry of the manifest. `named`: its name and version."""
    name, version = named
    folder = target / f"{name}-{version}-{hashlib.sha256(code).hexdigest()[:8]}"
    folder.mkdir(parents=True)
    (folder / f"{name}.js").write_bytes(code)
    (folder / "LICENSE").write_text("\n\n".join(licences))
    files = {path.name: _facts(path) for path in sorted(folder.iterdir())}
    return {"name": name, "version": version, "folder": folder.name, "made_of": parts, "files": files}


def _put(
    image: Path, named: tuple[str, str], code: bytes, parts: list[dict[str, str]], licences: list[str]
) -> dict[str, Any]:
    """Write a script for stills, below its licences; returns its entry of the manifest."""
    name, version = named
    told = "\n\n".join(licences).replace("*/", "* /")
    (image / f"{name}.js").write_bytes(f"/*!\n{told}\n*/\n".encode() + code)
    return {"name": name, "version": version, "made_of": parts, "file": _facts(image / f"{name}.js")}


def _facts(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def _licence(part: dict[str, str], folder: Path) -> str:
    """The text of a package's licence: its own, that of its family in ``licences``, or its declaration."""
    found = sorted(file for file in folder.iterdir() if re.match(r"(?i)(licen[sc]e|copying)\b", file.name))
    family = LICENCES / f"{part['name'].partition('/')[0].removeprefix('@')}.txt"
    if not found and family.exists():
        found = [family]
    text = found[0].read_text().strip() if found else "(The package ships no text of its licence.)"
    return f"==== {part['name']} {part['version']}: {part['licence']}\n\n{text}\n"


def _index(entries: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Short names for the scripts, whose folders have a new name with every renewal."""
    made = "Made by `make vendor`."
    for entry in entries:
        if entry["module"]:
            path = f"./{entry['folder']}/{entry['name']}.js"
            yield f"{entry['name']}.js", f'// {made}\nexport * from "{path}";\n'
    paths = {
        entry["name"]: f"{entry['folder']}/{entry['name']}.js" for entry in entries if not entry["module"]
    }
    yield "renderers.js", f"// {made}\nwindow.RENDERERS = {json.dumps(paths, indent=2)};\n"


def install(work: Path) -> None:
    """Copy the sources into `work` and install their packages there, as the lock says if it fits."""
    shutil.copytree(SOURCES, work, dirs_exist_ok=True)
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--omit-lockfile-registry-resolved"]
    command = ["npm", "install", "--loglevel=error", *options]
    subprocess.run(command, cwd=work, check=True, timeout=LONGEST_NPM, stdout=subprocess.DEVNULL)


def main() -> int:
    """Make all files anew, in place."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        install(work)
        made, image = work / "made", work / "image"
        make(made, work, image)
        shutil.copy(work / LOCK, SOURCES / LOCK)
        shutil.rmtree(VENDOR, ignore_errors=True)
        shutil.copytree(made, VENDOR)
        for path in sorted(image.iterdir()):
            shutil.copy(path, DRAWING / path.name)
    for path in (*sorted(VENDOR.rglob("*.js")), *sorted(DRAWING.glob("*.js"))):
        sys.stdout.write(f"{path.stat().st_size:>9,} {path.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
