"""The console's own modules agree with the types that their comments declare."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from tests.clients.processes import ENVIRONMENT

STATIC = Path(__file__).parents[3] / "gateway" / "cellgate" / "console" / "static"
TYPES = Path(__file__).parent / "types"
COMPILER = ENVIRONMENT / "generators" / "node_modules" / "typescript" / "bin" / "tsc"
OPTIONS = {
    "noEmit": True,
    "skipDefaultLibCheck": True,
    "allowJs": True,
    "checkJs": True,
    "strict": True,
    "useUnknownInCatchVariables": False,
    "target": "es2023",
    "module": "esnext",
    "moduleResolution": "bundler",
    "lib": ["es2023", "dom", "dom.iterable"],
    "types": [],
}


def test_the_types_in_comments_hold(tmp_path: Path) -> None:
    """Libraries have declarations of ours in their place, as their code is not checked."""
    shutil.copytree(STATIC, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("vendor"))
    shutil.copytree(TYPES, tmp_path / "vendor")
    (tmp_path / "tsconfig.json").write_text(
        json.dumps({"compilerOptions": OPTIONS, "include": ["**/*.js", "**/*.d.ts"]})
    )
    done = subprocess.run(
        ["node", COMPILER, "--pretty", "false"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines() == []
    assert done.returncode == 0
