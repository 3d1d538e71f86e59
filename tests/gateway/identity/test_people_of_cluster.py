"""Users, tokens, secrets and sign-ins are the same at every gateway of a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import psycopg
import pytest

from tests.conftest import StartGateway, serving
from tests.gateway.console.conftest import Browser
from tests.support.commands import cellgate, refusal
from tests.support.postgresql import PostgresServer, postgresql
from tests.support.server import GatewayProcess, until

HOST = "cellgate.test"
"""The name of the proxy in front of all gateways."""
OPTIONS: dict[str, Any] = {"advertise": "http://127.0.0.1:9", "allowed_hosts": [HOST]}


class Cluster:
    """Two gateways, and the commands of an operator on a third machine."""

    def __init__(self, url: str, gateways: tuple[GatewayProcess, GatewayProcess], folder: Path) -> None:
        self.url = url
        self.one, self.two = gateways
        self.folder = folder

    def run(self, *words: str, stdin: str = "") -> str:
        """Run a command about the cluster's users; return its output."""
        where = ("--data-dir", str(self.folder), "--cluster", self.url)
        done = cellgate(*words, *where, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def token(self, user: str, *options: str) -> tuple[str, str]:
        """The id and the text of a new token."""
        found = json.loads(self.run("token", "create", "--user", user, "--json", *options))
        return found["id"], found["token"]

    def statuses(self, token: str) -> set[int]:
        """What the gateways answer to somebody with this token."""
        return {each.get("/v1/me", token=token).status for each in (self.one, self.two)}

    def acts(self) -> list[int]:
        """The numbers of the acts in the audit trail."""
        with closing(psycopg.connect(self.url)) as db:
            rows = db.execute("SELECT body FROM cellgate.trail WHERE type = 'act' ORDER BY seq").fetchall()
        return [json.loads(body)["number"] for (body,) in rows]


@pytest.fixture(scope="module")
def cluster(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of two gateways, with the key in a file that the operator has mounted."""
    folder, url = tmp_path_factory.mktemp("cluster"), postgres_server.database()
    key = folder / "cluster.key"
    key.write_bytes(b"0123456789abcdef" * 2)
    options = {**OPTIONS, "cluster": url, "cluster_key": key}
    (folder / "operator").mkdir()
    with (
        serving(folder / "one", "process", **options) as one,
        serving(folder / "two", "process", **options) as two,
    ):
        yield Cluster(url, (one, two), folder / "operator")


class Proxied(Browser):
    """A browser that knows the name of the proxy alone."""

    def _send(self, method: str, path: str, body: object = None, **headers: str | None) -> Any:
        return super()._send(method, path, body, Host=HOST, **headers)

    def at(self, gateway: GatewayProcess) -> Proxied:
        """The same browser, whose next requests the proxy gives to this gateway."""
        moved = Proxied(gateway)
        moved.cookies = self.cookies
        return moved


def ticket(gateway: GatewayProcess, token: str) -> str:
    """The path of an address with a ticket."""
    answer = gateway.post("/v1/console", token=token, headers={"Host": HOST})
    assert answer.status == 200, answer.body
    return f"/?{urlsplit(answer.json()['url']).query}"


def test_users_and_tokens_are_the_same_at_every_gateway(cluster: Cluster) -> None:
    cluster.run("user", "add", "ada")
    name, token = cluster.token("ada")
    assert cluster.statuses(token) == {200}
    cluster.run("token", "revoke", name)
    until(lambda: cluster.statuses(token) == {401}, "the token is let in", 2)
    _, other = cluster.token("ada", "--scope", "read")
    assert cluster.statuses(other) == {200}
    cluster.run("user", "role", "ada", "auditor")
    until(
        lambda: (
            {each.get("/v1/me", token=other).json()["role"] for each in (cluster.one, cluster.two)}
            == {"auditor"}
        ),
        "they have the former role",
        2,
    )
    cluster.run("user", "disable", "ada")
    until(lambda: cluster.statuses(other) == {401}, "the user is let in", 2)


def test_sessions_of_a_disabled_user_end_at_every_gateway(cluster: Cluster) -> None:
    cluster.run("user", "add", "eve")
    _, token = cluster.token("eve")
    places = [(cluster.one, "/v1/sessions/at-one"), (cluster.two, "/v1/sessions/at-two")]
    for gateway, path in places:
        assert gateway.post(f"{path}/execute", {"code": "1"}, token=token).status == 200
    cluster.run("user", "disable", "eve")

    def states() -> list[str]:
        return [gateway.get(f"{path}?principal=eve").json()["state"] for gateway, path in places]

    until(lambda: states() == ["ended", "ended"], "sessions live on")


def test_a_sign_in_holds_at_every_gateway_and_ends_at_all(cluster: Cluster) -> None:
    cluster.run("user", "add", "sue")
    name, token = cluster.token("sue")
    here = Proxied(cluster.one)
    assert here.ask("POST", "/console/sign-in", {"token": token}).status == 204
    there = here.at(cluster.two)
    assert here.me() == there.me() == "sue"
    assert token not in str(here.cookies)
    copied = Proxied(cluster.one, dict(here.cookies))
    assert there.ask("POST", "/console/sign-out").status == 204
    assert copied.at(cluster.two).me() == 401
    until(lambda: copied.me() == 401, "the other gateway has not heard of it", 2)

    assert here.ask("POST", "/console/sign-in", {"token": token}).status == 204
    assert here.at(cluster.two).me() == "sue"
    cluster.run("token", "revoke", name)
    until(lambda: here.at(cluster.two).me() == here.me() == 401, "the sign-in outlives its token", 2)


def test_another_token_of_the_administrator_ends_their_sign_ins(
    postgres_server: PostgresServer, start_gateway: StartGateway, tmp_path: Path
) -> None:
    options = {**OPTIONS, "cluster": postgres_server.database(), "data_dir": tmp_path / "data"}
    former = start_gateway(**options)
    browser = Proxied(former)
    assert browser.ask("POST", "/console/sign-in", {"token": former.token}).status == 204
    assert browser.me() == "default"
    unused = ticket(former, former.token)
    former.stop()
    same = start_gateway(**options)
    assert browser.at(same).me() == "default"
    same.stop()
    changed = start_gateway(**options, token="the-administrators-new-token")
    assert browser.at(changed).me() == 401
    assert Proxied(changed).visit(unused).status == 401


def test_a_ticket_of_one_gateway_is_redeemed_once_at_any(cluster: Cluster) -> None:
    cluster.run("user", "add", "tom")
    _, token = cluster.token("tom")
    path = ticket(cluster.one, token)
    browser = Proxied(cluster.two)
    assert browser.visit(path).status == 303
    assert browser.me() == browser.at(cluster.one).me() == "tom"
    for gateway in (cluster.one, cluster.two):
        assert Proxied(gateway).visit(path).status == 401
    changed = path[:-2] + ("aa" if path[-2:] != "aa" else "bb")
    assert Proxied(cluster.one).visit(changed).status == 401
    assert cluster.one.get("/v1/me", token=path.partition("=")[2]).status == 401


def test_a_log_in_as_to_jupyter_is_good_at_every_gateway(cluster: Cluster) -> None:
    cluster.run("user", "add", "jo")
    _, token = cluster.token("jo")
    word = SimpleCookie(cluster.one.get("/login", token=None, headers={"Host": HOST}).headers["Set-Cookie"])[
        "_xsrf"
    ].value
    form = urlencode({"_xsrf": word, "password": token}).encode()
    headers = {"Host": HOST, "Cookie": f"_xsrf={word}", "Content-Type": "application/x-www-form-urlencoded"}
    answer = cluster.one.request("POST", "/login", form, token=None, headers=headers)
    assert answer.status == 302
    cookie = answer.headers["Set-Cookie"].partition(";")[0]
    shown = {"Host": HOST, "Cookie": cookie, "X-XSRFToken": word}
    for gateway in (cluster.one, cluster.two):
        assert gateway.get("/api/kernels", token=None, headers=shown).status == 200
        assert (
            gateway.get("/api/kernels", token=None, headers=shown | {"X-XSRFToken": word[:-1]}).status == 401
        )


def test_acts_are_in_the_trail_once(cluster: Cluster) -> None:
    for number in range(5):
        cluster.run("user", "add", f"one-of-many-{number}")
    with closing(psycopg.connect(cluster.url)) as db:
        ((newest,),) = db.execute("SELECT max(seq) FROM cellgate_users.acts").fetchall()
    until(lambda: cluster.acts()[-1:] == [newest], "the acts are not in the trail", 5)
    assert cluster.acts() == [*range(1, newest + 1)]
    told = cellgate("record", "trail", "--record", cluster.url, "--data-dir", cluster.folder)
    assert "wait" not in told.stdout
    assert told.stdout.count('"user_added"') == sum("user_added" in line for line in told.stdout.splitlines())


def test_secrets_are_given_at_every_gateway(cluster: Cluster) -> None:
    cluster.run("user", "add", "kim")
    _, token = cluster.token("kim")
    key = cluster.folder.with_name("cluster.key")
    cluster.run(
        "secret", "set", "API_KEY", "--user", "kim", "--cluster-key", str(key), stdin="correct horse battery"
    )
    code = {"code": "import os; print(len(os.environ['API_KEY']))"}
    for gateway, session in ((cluster.one, "s1"), (cluster.two, "s2")):
        made = gateway.post("/v1/sessions", {"session": session, "secrets": ["API_KEY"]}, token=token)
        assert made.status == 201, made.body
        answer = gateway.post(f"/v1/sessions/{session}/execute", code, token=token).json()
        assert answer["stdout"] == "21\n"
    refused = cellgate(
        *(
            "secret",
            "set",
            "API_KEY",
            "--user",
            "kim",
            "--data-dir",
            cluster.folder,
            "--cluster",
            cluster.url,
        ),
        stdin="correct horse battery",
    )
    assert refused.returncode == 1
    assert "give a copy of the key by --cluster-key" in refused.stderr


def test_commands_say_where_the_users_are(cluster: Cluster) -> None:
    where = ("--data-dir", cluster.one.data_dir)
    refused = cellgate("user", "add", "nobody", *where)
    assert refused.returncode == 2
    assert "the users of this gateway are those of its cluster, in database record" in refused.stderr
    assert not (cluster.one.data_dir / "principals.sqlite").exists()
    added = cellgate("user", "add", "zoe", *where, "--cluster", cluster.url)
    assert (added.returncode, added.stdout) == (0, "")
    assert added.stderr.startswith("(users of the cluster in database record")
    listed = cellgate(
        "user",
        "list",
        "--json",
        env={"CELLGATE_CLUSTER": cluster.url, "CELLGATE_DATA_DIR": str(cluster.folder)},
    )
    assert "zoe" in [user["name"] for user in json.loads(listed.stdout)]


def test_a_gateways_users_move_into_its_cluster(
    postgres_server: PostgresServer, start_gateway: StartGateway, tmp_path: Path
) -> None:
    data, url = tmp_path / "data", postgres_server.database()
    data.mkdir(mode=0o700)
    where = ("--data-dir", data)
    assert cellgate("user", "add", "ada", *where).returncode == 0
    made = cellgate("token", "create", "--user", "ada", *where)
    of_cluster = ("--cluster", url, "--advertise", "http://127.0.0.1:9")
    serve = ("serve", "--port", "0", "--backend", "process", *where, *of_cluster)
    refused = cellgate(*serve)
    assert refused.returncode == 1
    assert "cellgate user migrate" in refused.stderr
    moved = cellgate("user", "migrate", *where, "--cluster", url)
    assert moved.returncode == 0, moved.stderr
    assert moved.stdout.startswith("1 user moved to database record")
    assert str(data / "secrets.key") in moved.stdout
    open_to_all = cellgate(*serve, "--no-auth")
    assert "The other gateways of the cluster let in whoever is signed in here" in open_to_all.stderr
    gateway = start_gateway(data, cluster=url, **OPTIONS)
    assert gateway.get("/v1/me", token=made.stdout.strip()).json()["principal"] == "ada"


def test_known_logins_go_on_without_the_database(start_gateway: StartGateway, tmp_path: Path) -> None:
    with postgresql() as server:
        url = server.database()
        gateway = start_gateway(cluster=url, **OPTIONS)
        cluster = Cluster(url, (gateway, gateway), tmp_path)
        cluster.run("user", "add", "ada")
        _, token = cluster.token("ada")
        browser = Proxied(gateway)
        assert browser.ask("POST", "/console/sign-in", {"token": token}).status == 204
        unused = ticket(gateway, token)
        server.stop()
        assert gateway.get("/v1/me", token=token).status == 200
        assert gateway.get("/v1/me", token="unknown-token").status == 401
        assert browser.me() == "ada"
        told = "Users and tokens can't be read again"
        until(lambda: told in gateway.log.read_text(), "the log does not say why")
        # Whether it was used elsewhere can't be known, nor can others be told of an end.
        assert Proxied(gateway).visit(unused).status == 503
        assert browser.ask("POST", "/console/sign-out").status == 503
        assert browser.me() == 401
        server.start()
        until(lambda: gateway.get("/readyz", token=None).status == 200, "it does not recover")
        assert browser.ask("POST", "/console/sign-out").status == 204
        assert Proxied(gateway).visit(unused).status == 303
        gateway.stop()
    # Each reason once, and not with each look: a server that starts up has another one than none.
    reasons = [rest for line in gateway.log.read_text().splitlines() for rest in line.split(told)[1:]]
    assert len(reasons) == len(set(reasons)), reasons


def test_a_clusters_key_is_replaced_while_no_gateway_runs(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    url, former, new = postgres_server.database(), tmp_path / "former.key", tmp_path / "new.key"
    former.write_bytes(b"0123456789abcdef" * 2)
    where = (f"--data-dir={tmp_path / 'operator'}", f"--cluster={url}", f"--cluster-key={former}")
    body = {"session": "s", "secrets": ["API_KEY"]}
    options = {**OPTIONS, "cluster": url, "allowed_hosts": []}
    with serving(tmp_path / "one", "process", **options, cluster_key=former) as one:
        done = cellgate("secret", "set", "API_KEY", "--user=default", *where, stdin="sk-live-0123456789")
        assert done.returncode == 0, done.stderr
        done = cellgate("secret", "rekey", *where, f"--new-key={new}")
        assert (done.returncode, new.exists()) == (1, False)
        assert f"have the present key: {OPTIONS['advertise']}. Stop all of the cluster first" in done.stderr
        assert one.post("/v1/sessions", body, timeout=120).status == 201
    done = cellgate("secret", "rekey", *where, f"--new-key={new}")
    assert (done.returncode, done.stdout) == (0, "1 secret is encrypted anew\n")
    assert (new.stat().st_mode & 0o777, len(new.read_bytes())) == (0o600, 32)
    code, said = refusal("--backend=process", *(f"--advertise={OPTIONS['advertise']}", *where))
    assert (code, "is not the key that the other gateways of the cluster have" in said) == (1, True)
    with serving(tmp_path / "one", "process", **options, cluster_key=new) as one:
        assert one.post("/v1/sessions", {**body, "session": "next"}, timeout=120).status == 201
        told = one.execute("next", "import os\nprint(os.environ['API_KEY'], end='')")
        assert told["text"] == "[secret API_KEY]"
