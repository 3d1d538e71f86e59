"""An API server of Kubernetes for tests/clients/test_hub_spawners.py; its one node runs pods as processes.

    python kube_api.py FOLDER COMMAND...

It keeps objects of one namespace in memory, and lists, watches, makes and removes them. A pod's only
container is a process here, with the pod's environment and arguments, in which COMMAND stands for the image's
`cellgate`. Each object is checked with the schemas of Kubernetes. The first line on standard output is
`{"url": ...}`; FOLDER/made.jsonl has the pods and claims that were made, with what is wrong with each.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import kubernetes_validate
from aiohttp import web

VERSION = "1.32"
ALL = "/api/v1/namespaces/{namespace}/{plural}"


def problem(made):
    """Return why an object is not one of Kubernetes; empty if it is."""
    try:
        kubernetes_validate.validate(made, VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{list(error.path)}: {error.message}"
    return ""


def missing():
    """Return the answer for an object that is not there."""
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
    return web.json_response(status, status=404)


class Api:
    """The objects by plural and name, and those who watch them."""

    def __init__(self, folder, command):
        self.folder = folder
        self.command = command
        self.objects = {}
        self.watchers = set()
        self.version = 0
        self.processes = {}

    def tell(self, kind, plural, made):
        """Give an object its version, and tell whoever watches its plural."""
        self.version += 1
        made["metadata"]["resourceVersion"] = str(self.version)
        for known, events in self.watchers:
            if known == plural:
                events.put_nowait({"type": kind, "object": made})

    async def list(self, request):
        """List all objects of a plural, or watch them."""
        plural = request.match_info["plural"]
        if request.query.get("watch", "").lower() != "true":
            items = [made for (known, _), made in self.objects.items() if known == plural]
            kind = {"pods": "PodList", "persistentvolumeclaims": "PersistentVolumeClaimList"}.get(
                plural, "List"
            )
            version = {"resourceVersion": str(self.version)}
            return web.json_response({"kind": kind, "apiVersion": "v1", "metadata": version, "items": items})
        answer = web.StreamResponse()
        await answer.prepare(request)
        watcher = (plural, asyncio.Queue())
        self.watchers.add(watcher)
        try:
            while True:
                await answer.write(json.dumps(await watcher[1].get()).encode() + b"\n")
        finally:
            self.watchers.discard(watcher)

    async def make(self, request):
        """Make an object; a pod begins to run."""
        plural, made = request.match_info["plural"], await request.json()
        key = plural, made["metadata"]["name"]
        if key in self.objects:
            return web.json_response({"kind": "Status", "apiVersion": "v1", "code": 409}, status=409)
        with (self.folder / "made.jsonl").open("a") as file:
            file.write(json.dumps({"made": made, "problem": problem(made)}) + "\n")
        made["status"] = {"phase": "Pending"}
        made["metadata"] |= {"namespace": request.match_info["namespace"], "uid": f"uid-{self.version}"}
        self.objects[key] = made
        self.tell("ADDED", plural, made)
        if plural == "pods":
            self.processes[key] = await self.run(made)
            ready = {
                "name": "notebook",
                "ready": True,
                "restartCount": 0,
                "image": made["spec"]["containers"][0]["image"],
                "imageID": "",
                "state": {"running": {}},
            }
            made["status"] = {"phase": "Running", "podIP": "127.0.0.1", "containerStatuses": [ready]}
            self.tell("MODIFIED", plural, made)
        return web.json_response(made, status=201)

    async def run(self, pod):
        """Start the process of a pod."""
        name = pod["metadata"]["name"]
        (container,) = pod["spec"]["containers"]
        program, *arguments = container["args"]
        assert program == "cellgate", program
        home = self.folder / "homes" / name
        home.mkdir(parents=True, exist_ok=True)
        given = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        with (self.folder / f"{name}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *(*self.command, *arguments),
                env={"PATH": os.environ["PATH"], **given, "HOME": str(home)},
                cwd=home,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def read(self, request):
        """Return one object."""
        found = self.objects.get((request.match_info["plural"], request.match_info["name"]))
        return missing() if found is None else web.json_response(found)

    async def remove(self, request):
        """Remove an object; a pod's process ends in order before that."""
        key = request.match_info["plural"], request.match_info["name"]
        if key not in self.objects:
            return missing()
        if (process := self.processes.pop(key, None)) is not None:
            process.terminate()
            await process.wait()
        made = self.objects.pop(key)
        self.tell("DELETED", key[0], made)
        return web.json_response(made)


async def main(folder, command):
    """Serve until the end of the program."""
    api, app = Api(folder, command), web.Application()
    app.add_routes(
        [
            web.get(ALL, api.list),
            web.post(ALL, api.make),
            web.get(ALL + "/{name}", api.read),
            web.delete(ALL + "/{name}", api.remove),
        ]
    )
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = site._server.sockets[0].getsockname()
    sys.stdout.write(json.dumps({"url": f"http://{host}:{port}"}) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))
