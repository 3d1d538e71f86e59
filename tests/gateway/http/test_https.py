"""A gateway that serves HTTPS: its clients, the commands of its user, and what it says of wrong files."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import yaml

from cellgate.client import ConnectionFailed, Gateway, GatewayError, InvalidInput, Trust
from cellgate_kernels.base.resources import MIB
from tests.conftest import StartGateway, serving
from tests.support.certificates import Authority, end_in, replace, serial_in, serial_of
from tests.support.channels import kernel_info
from tests.support.commands import cellgate, environment, refusal
from tests.support.server import TOKEN, GatewayProcess, until


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[GatewayProcess]:
    """A gateway below a path, whose certificate is for another name than its own address too."""
    certificate, key = authority.issue("secure", "gate.example.org", "127.0.0.1")
    with serving(
        tmp_path_factory.mktemp("secure") / "data", tls_cert=certificate, tls_key=key, base_url="/gate"
    ) as process:
        yield process


def test_the_address_is_announced_as_https(secure: GatewayProcess, authority: Authority) -> None:
    assert secure.url == f"https://{secure.host}/gate"
    until(lambda: f"serves at {secure.url}\n" in secure.log.read_text(), "it does not say where it serves")
    announced = json.loads((secure.data_dir / "gateway.json").read_text())
    assert announced["certificate"] in (authority.folder / "secure.pem").read_text()
    assert announced["certificate"].count("BEGIN CERTIFICATE") == 1


def test_the_health_check_of_compose_asks_at_the_announced_address(
    secure: GatewayProcess, tmp_path: Path
) -> None:
    """Below a base URL and with a certificate; it fails without a gateway."""
    text = (Path(__file__).parents[3] / "deploy" / "compose.yaml").read_text()
    _, _, *words = yaml.safe_load(text)["services"]["gateway"]["healthcheck"]["test"]

    def healthy(data: Path) -> bool:
        variables = {"CELLGATE_DATA_DIR": str(data)}
        done = subprocess.run([sys.executable, *words], env=variables, capture_output=True, check=False)
        return done.returncode == 0

    assert healthy(secure.data_dir)
    assert not healthy(tmp_path)


async def test_the_client_works_with_the_authority_s_file(
    secure: GatewayProcess, authority: Authority
) -> None:
    """Cells, events, a WebSocket, and files larger than any buffer."""
    client = Gateway(secure.url, TOKEN, trust=Trust(ca_file=authority.file))
    async with client.session("client") as session:
        assert (await session.run("20 + 1")).text == "21"
        events = [event.type async for event in session.stream("print(1)")]
        assert events[-1] == "finished"
        assert (await kernel_info(client, "client"))["status"] == "ok"
        content = bytes(range(256)) * (8 * MIB // 256)
        await session.files.put("large.bin", content)
        assert await session.files.get("large.bin") == content


async def test_a_certificate_that_is_not_trusted_is_refused_and_told(
    secure: GatewayProcess, tmp_path: Path
) -> None:
    for trust in (Trust(), Trust(ca_file=Authority(tmp_path, "other").file)):
        with pytest.raises(ConnectionFailed, match=r"is not trusted: self-signed.*--ca-file") as raised:
            await Gateway(secure.url, TOKEN, trust=trust).info()
        assert raised.value.reason == "unreachable"


async def test_a_name_that_the_certificate_is_not_for_is_refused(
    secure: GatewayProcess, authority: Authority
) -> None:
    url = secure.url.replace("127.0.0.1", "localhost")
    with pytest.raises(ConnectionFailed, match="Hostname mismatch"):
        await Gateway(url, TOKEN, trust=Trust(ca_file=authority.file)).info()


@pytest.mark.parametrize("content", [None, "", "nonsense"])
def test_a_file_that_holds_no_certificates_is_named(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InvalidInput, match=r"ca\.pem can't be used to check certificates"):
        Gateway("https://127.0.0.1:1", trust=Trust(ca_file=file))
    done = cellgate("sessions", "--url=https://127.0.0.1:1", f"--ca-file={file}")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_commands_of_the_same_user_accept_the_certificate_as_it_is(secure: GatewayProcess) -> None:
    done = cellgate("exec", "print(6 * 7)", f"--data-dir={secure.data_dir}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")


@pytest.mark.nightly
def test_other_commands_need_the_authority_s_file(
    secure: GatewayProcess, authority: Authority, tmp_path: Path
) -> None:
    words = ["exec", "print(6 * 7)", f"--url={secure.url}", f"--token={TOKEN}", f"--data-dir={tmp_path}"]
    refused = cellgate(*words)
    assert refused.returncode == 2
    assert "is not trusted" in refused.stderr
    assert cellgate(*words, f"--ca-file={authority.file}").stdout == "42\n"
    variables = environment(CELLGATE_CA_FILE=str(authority.file))
    assert cellgate(*words, env=variables).stdout == "42\n"
    # OpenSSL's own variable replaces what the system trusts, here as everywhere.
    assert cellgate(*words, env=environment(SSL_CERT_FILE=str(authority.file))).stdout == "42\n"


async def test_a_refused_upload_is_answered_before_it_is_sent(
    secure: GatewayProcess, authority: Authority
) -> None:
    client = Gateway(secure.url, "wrong-token", trust=Trust(ca_file=authority.file))
    with pytest.raises(GatewayError) as raised:
        await client.session("nobody").files.put("large.bin", bytes(200 * MIB))
    assert raised.value.reason == "not_authenticated"


def test_a_renewal_ends_nothing(start_gateway: StartGateway, authority: Authority) -> None:
    """A stream goes on, a new client is shown the new certificate, and commands find it."""
    files = authority.issue("renewed")
    gateway = start_gateway(tls_cert=files[0], tls_key=files[1])
    host, _, port = gateway.host.partition(":")
    assert serial_of(authority.context(), host, int(port)) == serial_in(files[0])
    events = gateway.events("POST", "/v1/sessions/s/execute", {"code": "x = input()\nprint(x)"})
    asked = next(event for event in events if event["type"] == "input_request")

    files[1].write_text("not a key")
    until(lambda: "certificate stays as it was" in gateway.log.read_text(), "nothing is logged")
    assert serial_of(authority.context(), host, int(port)) == serial_in(files[0])

    former = gateway.data_dir.joinpath("gateway.json").read_text()
    replace(files, authority.issue("new"))
    until(lambda: gateway.data_dir.joinpath("gateway.json").read_text() != former, "it is not announced")
    assert serial_of(authority.context(), host, int(port)) == serial_in(files[0])
    done = cellgate("exec", "print(6 * 7)", f"--data-dir={gateway.data_dir}")
    assert (done.returncode, done.stdout) == (0, "42\n")

    gateway.tls = authority.context()
    gateway.answer("s", asked["execution"], "still here")
    assert "still here\n" in [event.get("text") for event in events]
    assert gateway.log.read_text().count("certificate stays as it was") == 1
    metrics = gateway.get("/metrics").body.decode()
    (told,) = re.findall(r"^cellgate_certificate_expiry_timestamp_seconds (\S+)$", metrics, re.MULTILINE)
    assert float(told) == end_in(files[0])


@pytest.mark.nightly
def test_half_open_handshakes_hurt_nobody(start_gateway: StartGateway, authority: Authority) -> None:
    certificate, key = authority.issue("half")
    gateway = start_gateway(tls_cert=certificate, tls_key=key, head_timeout=2)
    gateway.execute("other", "1")
    host, _, port = gateway.host.partition(":")
    with ExitStack() as stack:
        halves = []
        for number in range(400):
            half = stack.enter_context(closing(socket.create_connection((host, int(port)), timeout=60)))
            half.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" if number % 2 else b"")
            halves.append(half)
        assert gateway.execute("other", "1 + 1")["text"] == "2"
        assert {half.recv(100) for half in halves} == {b""}
    metrics = gateway.get("/metrics").body.decode()
    assert 'cellgate_connections_closed_total{reason="head_timeout"} 400.0' in metrics


def test_wrong_files_end_the_start_with_one_line(tmp_path: Path, authority: Authority) -> None:
    certificate, key = map(str, authority.issue("wrong"))
    _, other = map(str, authority.issue("another"))
    _, locked = map(str, authority.issue("encrypted", passphrase=b"secret"))
    start = [f"--data-dir={tmp_path / 'data'}", "--backend=process", "--port=0"]
    for words, line in (
        ([f"--tls-cert={certificate}"], "--tls-cert and --tls-key are needed together"),
        ([f"--tls-key={key}"], "--tls-cert and --tls-key are needed together"),
        (
            [f"--tls-cert={tmp_path}/no.pem", f"--tls-key={key}"],
            "no.pem can't be read: No such file or directory",
        ),
        ([f"--tls-cert={certificate}", f"--tls-key={other}"], "is not that of the certificate in"),
        ([f"--tls-cert={certificate}", f"--tls-key={locked}"], "is encrypted; give one without a passphrase"),
        ([f"--tls-cert={key}", f"--tls-key={key}"], "There is no certificate in"),
    ):
        code, said = refusal(*start, *words)
        assert code == 2, said
        assert line in said
    assert not (tmp_path / "data").exists()
