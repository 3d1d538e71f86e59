"""Run by the clients' interpreter: clients are generated from the gateway's own document, and one is used.

Arguments as in server.py. Prints one JSON object: what each generator said and made, and what happened.
"""

import ast
import importlib
import io
import json
import re
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

URL, TOKEN, FOLDER = sys.argv[1:]
DOCUMENT, MODELS, TYPES = (Path(FOLDER, name) for name in ("openapi.json", "models.py", "types.ts"))
CLIENT = Path(FOLDER, "generated_client")
IN_JAVASCRIPT = Path(sys.executable).parents[1] / "generators" / "node_modules" / ".bin"
ANY_BYTES = bytes(range(256)) * 300
SESSION = "generated"
PROGRAM = """
import type { operations } from "./types";
type Asked = operations["run_cell"]["requestBody"]["content"]["application/json"];
type Got = operations["run_cell"]["responses"][200]["content"]["application/json"];
export const asked: Asked = { code: "6 * 7" };
export const told = (got: Got): unknown[] => [got.text, got.outputs[0].data, got.error?.ename];
"""


def generate(*command):
    """What a generator says beside that it is at work; fails when it fails."""
    joined = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, check=False, cwd=FOLDER, **joined)
    assert done.returncode == 0, done.stdout
    progress = re.compile(r"Generating .*|.*openapi-typescript \d.*|.*→.*")
    return [line for line in done.stdout.splitlines() if line.strip() and not progress.fullmatch(line)]


def in_python():
    place = ["--meta", "none", "--output-path", CLIENT]
    said = generate("openapi-python-client", "generate", "--path", DOCUMENT, "--fail-on-warning", *place)
    functions = [path.stem for path in (CLIENT / "api").rglob("*.py") if path.stem != "__init__"]
    names = importlib.import_module("generated_client.models").__all__
    return {"said": said, "operations": functions, "classes": list(names)}


def in_typescript():
    said = generate(IN_JAVASCRIPT / "openapi-typescript", DOCUMENT, "-o", TYPES)
    operations = TYPES.read_text().partition("export interface operations {")[2]
    program = Path(FOLDER, "program.ts")
    program.write_text(PROGRAM)
    said += generate(IN_JAVASCRIPT / "tsc", "--noEmit", "--strict", program)
    return {"said": said, "operations": re.findall(r"^    (\w+): \{$", operations, re.MULTILINE)}


def as_models():
    kind = ["--input-file-type", "openapi", "--output-model-type", "pydantic_v2.BaseModel"]
    more = ["--formatters", "builtin", "--use-operation-id-as-name"]
    more += ["--openapi-scopes", "schemas", "paths", "parameters"]
    said = generate("datamodel-codegen", "--input", DOCUMENT, "--output", MODELS, *kind, *more)
    importlib.import_module("models")
    found = [each.name for each in ast.parse(MODELS.read_text()).body if isinstance(each, ast.ClassDef)]
    return {"said": said, "classes": found}


def use():
    from generated_client import AuthenticatedClient, models
    from generated_client.api.executions import run_cell
    from generated_client.api.files import get_file, head_file, list_files, put_file, upload_files
    from generated_client.api.notebook import get_bundle, get_notebook
    from generated_client.api.sessions import end_session, get_session
    from generated_client.types import File

    client = AuthenticatedClient(base_url=URL, token=TOKEN, raise_on_unexpected_status=True)
    put = put_file.sync(SESSION, "a folder/ü.bin", client=client, body=File(payload=io.BytesIO(ANY_BYTES)))
    got = get_file.sync(SESSION, "a folder/ü.bin", client=client).payload.read()
    form = models.FilesForm(file=[File(io.BytesIO(ANY_BYTES[:n]), f"{n}.bin") for n in (1, 256)])
    uploaded = upload_files.sync(SESSION, client=client, body=form)
    code = "[len(open(name, 'rb').read()) for name in ('a folder/ü.bin', '1.bin', '256.bin')]"
    cell = models.ExecuteBody(code=code, on_disconnect=models.OnDisconnect.CONTINUE)
    ran = run_cell.sync(SESSION, client=client, body=cell)
    refused = get_file.sync(SESSION, "none", client=client)
    missing = head_file.sync_detailed(SESSION, "none", client=client)
    bundle = get_bundle.sync(SESSION, client=client).payload
    notebook = get_notebook.sync(SESSION, client=client)
    known = get_session.sync(SESSION, client=client)
    happened = {
        "put": put.action,
        "same": got == ANY_BYTES,
        "uploaded": sorted(each.path for each in uploaded.files),
        "listed": sorted(each.path for each in list_files.sync(SESSION, client=client).files),
        "ran": [ran.status, ran.text],
        "refused": [type(refused).__name__, refused.reason is models.Reason.NOT_FOUND],
        "missing": int(missing.status_code),
        "bundle": zipfile.ZipFile(bundle).testzip() is None,
        "cells": len(notebook["cells"]),
        "network": known.network is models.NetworkAccess.NONE,
    }
    end_session.sync_detailed(SESSION, client=client)
    return happened


def main():
    sys.path.insert(0, FOLDER)
    with urllib.request.urlopen(f"{URL}/openapi.json") as answer:
        DOCUMENT.write_bytes(answer.read())
    made = {"python": in_python(), "typescript": in_typescript(), "models": as_models()}
    print(json.dumps({**made, "used": use()}))


main()
