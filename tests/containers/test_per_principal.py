"""Containers that hold the kernels of one principal each, as clients of a gateway meet them."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from docker.api.client import APIClient

from cellgate_kernels.engine.container import PRINCIPAL_LABEL
from cellgate_kernels.forking.server import MODULES
from tests.conftest import StartGateway
from tests.containers.conftest import Containers
from tests.support.server import IN_TIME, GatewayProcess, together, until
from tests.support.users import add_user, create_token

pytestmark = [
    pytest.mark.usefixtures("no_container_left"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only a gateway that is root shares containers"),
]

MIB = 1024 * 1024
# Those of this tree, whatever the image was made of.
IMAGE = Path(__file__).parents[2] / "kernels" / "cellgate_kernels" / "inside"
PARTS = (
    *("bootstrap", "keeper", "frames", "programs", "tables", "variables", "columns", "rows"),
    *("zygote", "container_zygote"),
)
MOUNTS = [f"{IMAGE / name}.py:/opt/cellgate/share/cellgate/{name}.py" for name in PARTS]

Start = Callable[..., GatewayProcess]


@pytest.fixture
def start(start_gateway: StartGateway, docker: None) -> Start:
    """Starts gateways whose containers are each a principal's, with small kernels."""

    def begin(data_dir: Path | None = None, **options: object) -> GatewayProcess:
        small = {"memory": "256m", "pids": 64, "disk": "64m", "mounts": MOUNTS, "container_per": "principal"}
        # That a kernel is replaced is told if the next one has come within this time.
        small["interrupt_grace"] = IN_TIME
        return start_gateway(data_dir, backend="docker", **{**small, **options})

    return begin


@pytest.fixture
def gateway(start: Start) -> GatewayProcess:
    return start()


def printed(gateway: GatewayProcess, session: str, code: str) -> str:
    """What a cell printed; it must not fail."""
    result = gateway.execute(session, code)
    assert result["status"] == "ok", result
    return str(result["stdout"])


def told(gateway: GatewayProcess, session: str, expression: str) -> Any:
    """The value of an expression in a session's kernel, by way of JSON."""
    return json.loads(printed(gateway, session, f"import json, os; print(json.dumps({expression}))"))


def as_user(gateway: GatewayProcess, token: str, session: str, code: str) -> dict[str, Any]:
    """The result of a cell of a user's."""
    answer = gateway.post(f"/v1/sessions/{session}/execute", {"code": code}, token=token, timeout=120)
    assert answer.status == 200, answer.body
    result = answer.json()
    assert isinstance(result, dict)
    return result


def left(gateway: GatewayProcess) -> list[str]:
    """Folders of kernels that are still there."""
    data = gateway.data_dir
    folders = [*data.glob("run/*"), *data.glob("workspaces/shared-*"), *data.glob("packages/sites/*")]
    return [str(folder) for folder in folders]


def test_sessions_of_a_principal_share_one_container_and_others_have_theirs(
    gateway: GatewayProcess, containers: Containers, client: APIClient
) -> None:
    info = gateway.get("/v1/info").json()
    assert info["containers"] == {"per": "principal", "limits": "kernel"}
    assert info["fork_server"]["python3"] == "fork"
    assert info["pool"]["warm"] == 0
    add_user(gateway, "ada")
    _, token = create_token(gateway, "ada")
    where = [told(gateway, name, "[os.getcwd(), os.stat('.').st_ino]") for name in ("one", "two")]
    assert [folder for folder, _ in where] == ["/workspace"] * 2
    assert len({inode for _, inode in where}) == 2
    assert len(containers(gateway)) == 1
    folders = told(gateway, "one", "os.listdir('/sessions')")
    assert len(folders) == 4  # and those for their branches
    look = "import os; print(os.listdir('/sessions'), [p for p in os.listdir('/proc') if p.isdigit()])"
    result = as_user(gateway, token, "one", look)
    assert len(containers(gateway)) == 2
    for folder in folders:
        assert folder not in result["stdout"]
    owners = [client.inspect_container(each)["Config"]["Labels"] for each in containers(gateway)]
    assert sorted(labels[PRINCIPAL_LABEL] for labels in owners) == ["ada", "default"]
    ids = containers(gateway)
    for each in ids:
        process = client.inspect_container(each)["State"]["Pid"]
        assert "/cellgate/first" in Path(f"/proc/{process}/cgroup").read_text()

    for name in ("one", "two"):
        gateway.delete(f"/v1/sessions/{name}")
    until(lambda: len(containers(gateway)) == 1, "the first principal's container is left")
    assert as_user(gateway, token, "one", "print(6 * 7)")["stdout"] == "42\n"
    gateway.delete("/v1/sessions/one", token=token)
    until(lambda: not containers(gateway), "a container is left")
    cgroups = Path("/sys/fs/cgroup")
    until(lambda: not any(any(cgroups.glob(f"**/{each}")) for each in ids), "cgroups are left")
    until(lambda: not left(gateway), "folders of kernels are left")


def test_a_shared_container_has_the_walls_of_others(
    gateway: GatewayProcess, containers: Containers, client: APIClient
) -> None:
    status = printed(gateway, "one", "print(open('/proc/self/status').read())")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {fields[name] for name in ("CapEff", "CapBnd", "CapPrm", "CapAmb")} == {"0" * 16}
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    assert fields["Uid"].split() == ["1000"] * 4
    (container,) = containers(gateway)
    host = client.inspect_container(container)["HostConfig"]
    assert host["NetworkMode"] == "none"
    assert host["ReadonlyRootfs"] is True
    assert host["CapDrop"] == ["ALL"]
    assert host["Memory"] > 0
    assert host["PidsLimit"] > 0
    for path in ("/sessions/x", "/run/kernel/x", "/etc/x"):
        result = gateway.execute("one", f"open({path!r}, 'w')")
        assert result["error"]["ename"] in {"OSError", "PermissionError"}, path
    # Nobody can put a link in the place of a neighbour's folder.
    folder = "/sessions/" + told(gateway, "one", "os.listdir('/sessions')")[0]
    result = gateway.execute("one", f"import os; os.rename({folder!r}, {folder + 'x'!r})")
    assert result["error"]["ename"] == "PermissionError"


def test_each_kernel_has_its_own_files_variables_and_state(start: Start) -> None:
    gateway = start(zygote_modules=MODULES)
    for name in ("one", "two"):
        gateway.post("/v1/sessions", {"session": name, "env": {"WHO": name}})
    code = "import os; x = os.environ['WHO']; open('who.txt', 'w').write(x); print(x)"
    for name in ("one", "two"):
        assert printed(gateway, name, code) == f"{name}\n"
    for name in ("one", "two"):
        assert gateway.get(f"/v1/sessions/{name}/files/who.txt").body == name.encode()
        answer = gateway.request("PUT", f"/v1/sessions/{name}/files/given/in.txt", name.encode())
        assert answer.status in {200, 201, 204}, answer.body
    for name in ("one", "two"):
        assert printed(gateway, name, "print(x, open('given/in.txt').read(), os.listdir())").startswith(
            f"{name} {name} "
        )
    # And under all names, in a branch too.
    made = gateway.post("/v1/sessions/one/branch", {"session": "three"}).json()
    assert "absolute_paths" not in made
    printed(gateway, "three", "open('/mnt/data/who.txt', 'w').write('three')")
    for name in ("one", "two", "three"):
        names = ("/workspace", "/mnt/data", "/home/user")
        assert told(gateway, name, f"[open(f'{{each}}/who.txt').read() for each in {names}]") == [name] * 3
        assert gateway.get(f"/v1/sessions/{name}/files/who.txt").body == name.encode()
        assert told(gateway, name, "os.getcwd()") == "/workspace"
    gateway.delete("/v1/sessions/three")
    own = [
        told(gateway, name, "[os.environ['HOME'], __import__('tempfile').gettempdir()]")
        for name in ("one", "two")
    ]
    assert len({path for paths in own for path in paths}) == 4
    drawn = {
        printed(gateway, name, "import numpy; print(numpy.random.rand(), __import__('random').random())")
        for name in ("one", "two")
    }
    assert len(drawn) == 2
    plot = gateway.execute("one", "import matplotlib.pyplot as plt; plt.plot([1, 2])")
    assert any("image/png" in output.get("data", {}) for output in plot["outputs"])


@pytest.mark.nightly
def test_memory_beyond_a_kernels_limit_ends_that_kernel_only(
    gateway: GatewayProcess, containers: Containers
) -> None:
    printed(gateway, "other", "x = 1")
    printed(gateway, "hungry", "open('kept.txt', 'w').write('kept')")
    result = gateway.execute("hungry", "x = bytearray(2_000_000_000)")
    assert (result["status"], result["cause"]) == ("died", "out_of_memory")
    assert "256 MiB" in result["error"]["evalue"]
    assert printed(gateway, "other", "print(x)") == "1\n"
    assert printed(gateway, "hungry", "print(open('kept.txt').read())") == "kept\n"
    # Two together may have more than one of them.
    for name in ("other", "hungry"):
        printed(gateway, name, "y = bytearray(150 * 1024 * 1024)")
    assert len(containers(gateway)) == 1


@pytest.mark.nightly
def test_the_number_of_tasks_is_each_kernels(gateway: GatewayProcess) -> None:
    printed(gateway, "other", "import subprocess")
    code = """
import subprocess
running = []
try:
    while True:
        running.append(subprocess.Popen(["sleep", "60"]))
except OSError as error:
    print(len(running) <= 64, error.errno)
"""
    assert printed(gateway, "many", code) == "True 11\n"
    assert printed(gateway, "other", "print(subprocess.check_output(['echo', 'still']))") == "b'still\\n'\n"


@pytest.mark.nightly
def test_too_large_files_end_that_kernel_only(gateway: GatewayProcess) -> None:
    printed(gateway, "other", "x = 1")
    execution = gateway.submit(
        "large",
        "import time\nfor n in range(3):\n  open(f'{n}', 'wb').write(bytes(40 * 1024**2))\ntime.sleep(100)",
    )
    result = gateway.ended("large", execution)
    assert (result["status"], result["cause"]) == ("died", "disk_full")
    assert printed(gateway, "other", "print(x)") == "1\n"


def test_interrupts_restarts_deadlines_and_ends_are_each_kernels(gateway: GatewayProcess) -> None:
    printed(gateway, "other", "x = 1")
    result = gateway.execute("one", "import time; time.sleep(100)", timeout=IN_TIME)
    assert (result["status"], result["cause"]) == ("timeout", "cell_timeout")
    stubborn = "import time\nwhile True:\n  try: time.sleep(100)\n  except KeyboardInterrupt: pass"
    result = gateway.execute("one", stubborn, timeout=IN_TIME)
    assert (result["status"], result["cause"]) == ("timeout", "cell_timeout")
    assert result["kernel"]["replaced"] is True
    assert printed(gateway, "one", "print('fresh')") == "fresh\n"
    execution = gateway.submit("one", "print('runs', flush=True); time.sleep(100)\nimport time")
    gateway.ended("one", execution)
    assert gateway.post("/v1/sessions/one/restart").status == 200
    assert gateway.execute("one", "stubborn")["error"]["ename"] == "NameError"
    result = gateway.execute("one", "import os; os._exit(3)")
    assert (result["status"], result["cause"]) == ("died", "kernel_exit")
    assert printed(gateway, "other", "print(x)") == "1\n"


def test_what_a_kernel_started_ends_with_it(gateway: GatewayProcess) -> None:
    """Also what has left its process group, and whose keeper was killed."""
    printed(gateway, "other", "import os; x = 1")
    start = "import subprocess, os; print(subprocess.Popen(['sleep', '1000'], start_new_session=True).pid)"
    process = printed(gateway, "one", start).strip()
    gateway.execute("one", f"os.kill(os.getppid(), {int(signal.SIGKILL)}); __import__('time').sleep(10)")
    gateway.delete("/v1/sessions/one")

    def gone() -> bool:
        return printed(gateway, "other", f"print(os.path.exists('/proc/{process}'))") == "False\n"

    until(gone, "a process of a kernel that has ended is left")
    states = (
        "[open(f'/proc/{p}/stat').read().rpartition(')')[2][1] for p in os.listdir('/proc') if p.isdigit()]"
    )
    until(lambda: "Z" not in told(gateway, "other", states), "a zombie is left")
    assert printed(gateway, "other", "print(x)") == "1\n"


def test_kernels_of_a_zygote_that_is_killed_are_replaced(
    gateway: GatewayProcess, containers: Containers
) -> None:
    printed(gateway, "one", "open('kept.txt', 'w').write('kept')")
    (before,) = containers(gateway)
    # Its parent is the keeper, and the keeper's the zygote. They have one user.
    kill = "import os; zygote = open(f'/proc/{os.getppid()}/stat').read().split()[3]; os.kill(int(zygote), 9)"
    result = gateway.execute("one", f"{kill}; __import__('time').sleep(10)")
    assert result["status"] == "died"
    assert printed(gateway, "one", "print(open('kept.txt').read())") == "kept\n"
    until(lambda: before not in containers(gateway), "the container is left")


@pytest.mark.nightly
def test_what_cant_be_forked_has_a_container_of_its_own(
    gateway: GatewayProcess, containers: Containers
) -> None:
    printed(gateway, "one", "x = 1")
    gateway.post(
        "/v1/sessions", {"session": "threads", "env": {"OMP_NUM_THREADS": "1", "PYTHONOPTIMIZE": "1"}}
    )
    assert told(gateway, "threads", "[os.getcwd(), os.environ['PYTHONOPTIMIZE']]") == ["/workspace", "1"]
    gateway.post("/v1/sessions", {"session": "shell", "kernel": "bash"})
    assert printed(gateway, "shell", "pwd") == "/workspace\n"
    assert len(containers(gateway)) == 3
    # With other limits they have another container, which is the principal's too.
    gateway.post("/v1/sessions", {"session": "larger", "limits": {"memory": 300 * MIB}})
    assert told(gateway, "larger", "os.path.isdir('/sessions')")
    assert len(containers(gateway)) == 4
    code = "print(open('/proc/self/environ').read().count('OMP_NUM_THREADS'))"
    assert printed(gateway, "one", code) == "1\n"


def test_what_is_refused_a_place_leaves_nothing(gateway: GatewayProcess, containers: Containers) -> None:
    for name in ("one", "two"):
        gateway.post("/v1/sessions", {"session": name, "env": {"TZ": "UTC"}})
        assert told(gateway, name, "[os.getcwd(), os.environ['TZ']]") == ["/workspace", "UTC"]
    shared = [path for path in left(gateway) if "shared-" in path]
    assert shared == []


@pytest.mark.nightly
def test_a_zygote_is_nobodys_to_look_into(gateway: GatewayProcess) -> None:
    """It has a connection to the gateway."""
    code = """
import ctypes, os
zygote = int(open(f'/proc/{os.getppid()}/stat').read().split()[3])
for name in ('fd', 'cwd', 'mem', 'environ'):
    path = f'/proc/{zygote}/{name}'
    try:
        {'fd': os.listdir, 'cwd': os.readlink}.get(name, open)(path)
        print('opened', name)
    except PermissionError:
        pass
print(ctypes.CDLL(None, use_errno=True).ptrace(16, zygote, 0, 0))
open('/proc/self/mem', 'rb').close()
print(len(os.listdir(f'/proc/{os.getppid()}/fd')) > 0)
"""
    assert printed(gateway, "one", code) == "-1\nTrue\n"


@pytest.mark.nightly
def test_what_sessions_leave_in_memory_is_no_more_than_those_that_are_there_may_have(
    gateway: GatewayProcess, containers: Containers, client: APIClient
) -> None:
    printed(gateway, "stays", "x = 1")
    (container,) = containers(gateway)
    host = client.inspect_container(container)["HostConfig"]
    assert host["ShmSize"] == 64 * MIB
    # System V memory has no size of its own, and stays when its maker has ended.
    leave = """
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
segment = libc.shmget(0, 180 * 1024 * 1024, 0o1600)
ctypes.memset(libc.shmat(segment, None, 0), 1, 180 * 1024 * 1024)
"""
    for number in range(8):
        result = gateway.execute(f"leaves-{number}", leave)
        assert result["status"] in {"ok", "died"}, result
        gateway.delete(f"/v1/sessions/leaves-{number}")
        limits = [*Path("/sys/fs/cgroup").glob(f"**/{container}/cellgate")]
        for folder in limits:
            for name in ("memory.usage_in_bytes", "memory.current"):
                if (folder / name).exists():
                    assert int((folder / name).read_text()) <= (512 + 2 * 256) * MIB
        if container not in containers(gateway):
            break
    until(lambda: container not in containers(gateway), "a container is left with what others have left")
    assert gateway.execute("stays", "y = 1")["status"] in {"ok", "died"}
    assert printed(gateway, "stays", "print(6 * 7)") == "42\n"


def test_without_forks_each_session_has_a_container(start: Start, containers: Containers) -> None:
    gateway = start(fork_server=False)
    assert gateway.get("/v1/info").json()["containers"] == {"per": "session", "limits": "kernel"}
    assert told(gateway, "one", "os.getcwd()") == "/workspace"
    assert "--no-fork-server" in gateway.log.read_text()


@pytest.mark.nightly
def test_programs_and_branches_work(gateway: GatewayProcess, containers: Containers) -> None:
    printed(gateway, "one", "x = 5; open('file.txt', 'w').write('text')")
    ran = gateway.post("/v1/sessions/one/processes", {"argv": ["cat", "file.txt"]})
    assert ran.json()["stdout"] == "text"
    made = gateway.post("/v1/sessions/one/branch", {"session": "two"})
    assert made.status == 201, made.body
    assert printed(gateway, "two", "x += 1; print(x, open('file.txt').read())") == "6 text\n"
    assert len(containers(gateway)) == 1
    gateway.delete("/v1/sessions/one")
    assert printed(gateway, "two", "print(x)") == "6\n"
    gateway.delete("/v1/sessions/two")
    until(lambda: not containers(gateway), "the container is left")
    until(lambda: not left(gateway), "folders are left")


@pytest.mark.nightly
def test_each_kernel_has_its_own_packages(start: Start) -> None:
    gateway = start(packages="six", zygote_modules=MODULES)
    for name in ("one", "two"):
        paths = told(gateway, name, "[each for each in __import__('sys').path if 'packages/' in each]")
        (own,) = (path for path in paths if path.startswith("/run/packages/"))
        (folder,) = gateway.data_dir.glob(f"packages/sites/shared-*/{Path(own).name}")
        (folder / "given.py").write_text(f"who = {name!r}")
    for name in ("one", "two"):
        assert printed(gateway, name, "import given; print(given.who)") == f"{name}\n"
        result = gateway.execute(name, "open(given.__file__, 'a')")
        assert result["error"]["ename"] in {"OSError", "PermissionError"}
        # Neither is pandas there before there are packages, which may bring another.
        assert told(gateway, name, "'pandas' in __import__('sys').modules") is False


@pytest.mark.nightly
def test_a_session_goes_back_to_a_checkpoint(gateway: GatewayProcess, containers: Containers) -> None:
    printed(gateway, "other", "x = 1")
    printed(gateway, "one", "x = 5; open('file.txt', 'w').write('text')")
    made = gateway.post("/v1/sessions/one/checkpoints", {})
    assert made.status == 201, made.body
    printed(gateway, "one", "x = 6; open('file.txt', 'w').write('other')")
    back = gateway.post("/v1/sessions/one/rollback", {})
    assert back.status == 200, back.body
    assert printed(gateway, "one", "print(x, open('file.txt').read())") == "5 text\n"
    assert printed(gateway, "other", "print(x)") == "1\n"
    for name in ("one", "other"):
        gateway.delete(f"/v1/sessions/{name}")
    until(lambda: not containers(gateway), "the container is left")
    until(lambda: not left(gateway), "folders are left")


@pytest.mark.nightly
def test_many_at_once_open_one_container(gateway: GatewayProcess, containers: Containers) -> None:
    results = together(8, lambda n: printed(gateway, f"s{n}", f"print({n})"))
    assert results == [f"{n}\n" for n in range(8)]
    assert len(containers(gateway)) == 1
    together(8, lambda n: gateway.delete(f"/v1/sessions/s{n}"))
    until(lambda: not containers(gateway), "the container is left")
    until(lambda: not left(gateway), "folders are left")


@pytest.mark.nightly
def test_sessions_of_a_killed_gateway_lose_their_variables_and_keep_their_files(
    start: Start, containers: Containers
) -> None:
    gateway = start()
    for name in ("one", "two"):
        printed(gateway, name, f"x = 1; open('kept.txt', 'w').write('{name}')")
    gateway.kill()
    successor = start(gateway.data_dir)
    for name in ("one", "two"):
        result = successor.execute(name, "print(open('kept.txt').read())")
        assert result["stdout"] == f"{name}\n"
        assert result["kernel"]["replaced"] is True
    assert len(containers(successor)) == 1
    assert not list((gateway.data_dir / "workspaces").glob("orphans/*"))


@pytest.mark.nightly
def test_where_cgroups_cant_be_made_kernels_share_the_containers_limits(
    start: Start, containers: Containers, client: APIClient, tmp_path: Path
) -> None:
    program = tmp_path / "cellgate"
    program.write_text(
        f"#!{sys.executable}\n"
        "from cellgate.cli.main import main\n"
        "from cellgate_kernels.limits.cgroups import Cgroups\n"
        "def refused(*_): raise PermissionError(13, 'Permission denied')\n"
        "Cgroups._take_over = refused\n"
        "main()\n"
    )
    program.chmod(0o755)
    gateway = start(command=program)
    printed(gateway, "other", "x = 1")
    assert gateway.get("/v1/info").json()["containers"] == {"per": "principal", "limits": "container"}
    (container,) = containers(gateway)
    assert client.inspect_container(container)["HostConfig"]["Memory"] == 256 * MIB
    result = gateway.execute("hungry", "x = bytearray(2_000_000_000)")
    assert (result["status"], result["cause"]) == ("died", "out_of_memory")
    assert printed(gateway, "other", "print(x)") == "1\n"
    start_it = "import subprocess; print(subprocess.Popen(['sleep', '1000']).pid)"
    process = printed(gateway, "hungry", start_it).strip()
    gateway.delete("/v1/sessions/hungry")
    until(
        lambda: (
            printed(gateway, "other", f"import os; print(os.path.exists('/proc/{process}'))") == "False\n"
        ),
        "a process of a kernel that has ended is left",
    )
