"""An API server of Kubernetes for tests/clients/test_hub_spawners.py; its one node runs pods as processes.

    python kube_api.py FOLDER COMMAND...

kmock answers as an API server does. A pod's only container is a process here, with the pod's environment
and arguments, in which COMMAND stands for the image's `cellgate`. Each pod and claim is checked with the
schemas of Kubernetes. The first line on standard output is `{"url": ...}`; FOLDER/made.jsonl has what was
made, with what is wrong with each.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import aiohttp
import kmock
import kubernetes_validate

VERSION = "1.32"
PLURALS = ("pods", "persistentvolumeclaims", "events", "secrets", "services", "configmaps")
PODS = "/api/v1/namespaces/default/pods"


def problem(made):
    """Return why an object is not one of Kubernetes; empty if it is."""
    try:
        kubernetes_validate.validate(made, VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{list(error.path)}: {error.message}"
    return ""


async def run(pod, command, folder):
    """Start the process of a pod."""
    (container,) = pod["spec"]["containers"]
    program, *arguments = container["args"] if "args" in container else container["command"]
    assert program == "cellgate", program
    home = folder / "homes" / pod["metadata"]["name"]
    home.mkdir(parents=True, exist_ok=True)
    given = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    with (folder / f"{pod['metadata']['name']}.log").open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *(*command, *arguments),
            env={"PATH": os.environ["PATH"], **given, "HOME": str(home)},
            cwd=home,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


async def main(folder, command):
    """Serve until the end of the program."""
    async with (
        kmock.KubernetesEmulator() as api,
        kmock.Server(api) as server,
        aiohttp.ClientSession() as client,
    ):
        for plural in PLURALS:
            api.resources[f"v1/{plural}"] = {}
        url = str(server.url).rstrip("/")
        sys.stdout.write(json.dumps({"url": url}) + "\n")
        sys.stdout.flush()
        running, seen = {}, set()
        while True:
            with (folder / "made.jsonl").open("a") as made:
                for plural in ("pods", "persistentvolumeclaims"):
                    async with client.get(f"{url}/api/v1/namespaces/default/{plural}") as answer:
                        found = (await answer.json())["items"]
                    for each in found:
                        name = each["metadata"]["name"]
                        if (plural, name) not in seen:
                            seen.add((plural, name))
                            made.write(json.dumps({"made": each, "problem": problem(each)}) + "\n")
                    if plural == "pods":
                        there = {pod["metadata"]["name"]: pod for pod in found}
            for name in running.keys() - there.keys():
                seen.discard(("pods", name))
                process = running.pop(name)
                if process.returncode is None:
                    process.terminate()
                await process.wait()
            for name in there.keys() - running.keys():
                running[name] = await run(there[name], command, folder)
                ready = {"name": "notebook", "ready": True, "state": {"running": {}}}
                status = {"phase": "Running", "podIP": "127.0.0.1", "containerStatuses": [ready]}
                async with client.patch(f"{url}{PODS}/{name}", json={"status": status}) as answer:
                    assert answer.status == 200, await answer.text()
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))
