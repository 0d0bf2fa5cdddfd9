"""TLS and identities through the whole gateway on real Tritons, with the clients that people have."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import jwt
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from tritonclient.utils import InferenceServerException

from deploy.local import LocalFleet, free_ports
from tests.conftest import replicas_of
from tests.support.certificates import Authority, Pair, replace
from tests.support.gateway_process import MODEL_POLICIES, ROOT, GatewayProcess, write_policies
from tests.support.waiting import wait_until
from tests.unit.test_identity_jwt import jwk, jwks

ACCEL = {"accel": MODEL_POLICIES["accel"], "identity": MODEL_POLICIES["identity"]}
ISSUER, AUDIENCE = "https://issuer.example", "sluice"
KEY = "slk_the-key-of-shop"
REFRESH_S = 0.2


class Issuer:
    """Makes tokens, and the file of its public keys."""

    def __init__(self, kid: str) -> None:
        self.kid = kid
        self.key = ec.generate_private_key(ec.SECP256R1())

    def jwk(self) -> dict[str, Any]:
        return jwk(self.key, self.kid)

    def token(self, tenant: str, *, lasts_s: float = 600.0, **claims: Any) -> str:
        now_s = time.time()
        body = {"iss": ISSUER, "aud": AUDIENCE, "sub": tenant, "exp": now_s + lasts_s, **claims}
        return jwt.encode(body, self.key, "ES256", headers={"kid": self.kid})


class Place:
    """A gateway's directory with certificates and identities in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ca = Authority()
        self.server = self.ca.server()
        self.issuer = Issuer("first")
        self.server.write(directory)
        self.ca_file = self.ca.write(directory)
        self.show_keys(self.issuer)
        entry = {"tenant": "by-key", "sha256": sha256(KEY.encode()).hexdigest(), "models": ["accel"]}
        (directory / "keys.yaml").write_text(json.dumps([entry]))
        self.subjects({"cn:shop": "by-certificate", "uri:spiffe://cluster/ns/ops": "operations"})

    def show_keys(self, *issuers: Issuer) -> None:
        replace(self.directory / "jwks.json", jwks(*(issuer.jwk() for issuer in issuers)))

    def subjects(self, tenants: Mapping[str, str]) -> None:
        entries = [{"subject": subject, "tenant": tenant} for subject, tenant in tenants.items()]
        replace(self.directory / "subjects.yaml", json.dumps(entries).encode())

    def client(self, name: str, **names: Any) -> tuple[Path, Path]:
        """A client certificate and its key."""
        return self.ca.pair(name, **names).write(self.directory, f"client-{name or 'nameless'}")

    def policies(self, replicas: list[dict[str, str]], client_certificate: str) -> dict[str, str]:
        identity = {
            "mode": "any",
            "refresh_s": REFRESH_S,
            "keys_file": "keys.yaml",
            "jwt": {
                "keys_file": "jwks.json",
                "issuer": ISSUER,
                "audience": AUDIENCE,
                "algorithms": ["ES256"],
                "models_claim": "models",
                "leeway_s": 0,
            },
            "header": {"name": "x-tenant", "networks": ["127.0.0.0/8"]},
        }
        if client_certificate != "none":
            identity["mtls"] = {"subjects_file": "subjects.yaml"}
        listen = write_policies(self.directory, replicas, models=ACCEL, fleet={"identity": identity})
        file = self.directory / "fleet.yaml"
        document = json.loads(file.read_text())
        document["gateway"]["listen"]["tls"] = {
            "certificate_file": "server.pem",
            "key_file": "server.key",
            "refresh_s": REFRESH_S,
            "handshake_timeout_ms": 5000,
            "client_certificate": client_certificate,
            **({} if client_certificate == "none" else {"client_ca_file": "ca.pem"}),
        }
        file.write_text(json.dumps(document, indent=1))
        return listen


class Caller:
    """tritonclient as it is, over one of the protocols."""

    def __init__(
        self, gateway: GatewayProcess, place: Place, protocol: str, pair: tuple[Path, Path] | None = None
    ) -> None:
        self.protocol = protocol
        self._module = triton_http if protocol == "http" else triton_grpc
        address = gateway.listen[protocol].replace("127.0.0.1", "localhost")
        if protocol == "http":
            context = place.ca.client_context(pair)
            self.client = triton_http.InferenceServerClient(address, ssl=True, ssl_context_factory=lambda: context)
        else:
            self.client = triton_grpc.InferenceServerClient(
                address,
                ssl=True,
                root_certificates=str(place.ca_file),
                certificate_chain=None if pair is None else str(pair[0]),
                private_key=None if pair is None else str(pair[1]),
                channel_args=[("grpc.use_local_subchannel_pool", 1)],
            )

    def infer(self, headers: Mapping[str, str] | None = None, model: str = "accel") -> None:
        values = np.full((1, 1), 1.0, np.float32)
        tensor = self._module.InferInput("work", [1, 1], "FP32")
        tensor.set_data_from_numpy(values)
        result = self.client.infer(model, [tensor], headers=dict(headers or {}))
        assert result.get_response() is not None

    def status(self, headers: Mapping[str, str] | None = None, model: str = "accel") -> str:
        """`OK`, or the code of the refusal in gRPC's words."""
        try:
            self.infer(headers, model)
        except InferenceServerException as error:
            code = str(error.status()).removeprefix("StatusCode.")
            return {"401": "UNAUTHENTICATED", "403": "PERMISSION_DENIED"}.get(code, code)
        return "OK"

    def close(self) -> None:
        self.client.close()

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def shown(gateway: GatewayProcess, port: str, place: Place, pair: tuple[Path, Path] | None = None) -> int:
    """The serial number of the certificate that a port shows to somebody new."""
    context = place.ca.client_context(pair)
    context.set_alpn_protocols(["h2" if port == "grpc" else "http/1.1"])
    host, _, number = gateway.listen[port].rpartition(":")
    with (
        socket.create_connection((host, int(number)), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as tls,
    ):
        assert tls.version() == "TLSv1.3"
        assert tls.selected_alpn_protocol() == ("h2" if port == "grpc" else "http/1.1")
        data = tls.getpeercert(binary_form=True)
        assert data is not None
        return x509.load_der_x509_certificate(data).serial_number


def metric(gateway: GatewayProcess, name: str, file: str) -> float:
    page = gateway.get("metrics", "/metrics")[1].decode()
    line = next(line for line in page.splitlines() if line.startswith(f'{name}{{file="{file}"}}'))
    return float(line.rsplit(" ", 1)[1])


def tenants(gateway: GatewayProcess) -> set[str]:
    return {record["tenant"] for record in gateway.records() if record["status"] == "OK"}


def served(gateway: GatewayProcess, place: Place, pair: tuple[Path, Path] | None = None) -> GatewayProcess:
    """Wait until accel is: the gateway says that it is ready as soon as any model is."""
    gateway.wait_ready()
    with Caller(gateway, place, "http", pair) as caller:
        wait_until(lambda: caller.status({"x-api-key": KEY}) == "OK")
    return gateway


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def gateway(fleet: LocalFleet, place: Place) -> Iterator[GatewayProcess]:
    """A gateway that takes every kind of credentials over TLS; client certificates are optional."""
    listen = place.policies(replicas_of(fleet), "optional")
    with GatewayProcess(place.directory, listen) as process:
        yield served(process, place)
        assert process.stop() == 0, process.log_text()
        text = process.log_text()
        assert "Traceback" not in text
        records = "".join(path.read_text() for path in (place.directory / "records").glob("*.jsonl"))
        for secret in (KEY, place.issuer.token("x").split(".")[0], "x-tenant"):
            assert secret not in text
            assert secret not in records


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tritons_own_clients_call_over_tls(gateway: GatewayProcess, place: Place, protocol: str) -> None:
    with Caller(gateway, place, protocol) as caller:
        assert caller.client.is_server_ready()
        token = place.issuer.token("by-token", models=["accel"])
        credentials = {
            "by-key": {"x-api-key": KEY},
            "by-token": {"authorization": f"Bearer {token}"},
            "by-header": {"x-tenant": "by-header"},
        }
        for headers in credentials.values():
            assert caller.status(headers) == "OK"
        assert caller.status({"authorization": f"Bearer {KEY}"}) == "OK"
        for headers in (
            {},
            {"x-api-key": "slk_wrong", "x-tenant": "by-header"},
            {"authorization": f"Bearer {place.issuer.token('by-token', lasts_s=-1)}"},
            {"authorization": f"Bearer {Issuer('first').token('by-token')}", "x-tenant": "by-header"},
            {"x-tenant": "no tenant"},
        ):
            assert caller.status(headers) == "UNAUTHENTICATED", headers
        assert caller.status({"x-api-key": KEY}, "identity") == "PERMISSION_DENIED"
        assert caller.status(credentials["by-token"], "identity") == "PERMISSION_DENIED"
        assert caller.status({"authorization": f"Bearer {place.issuer.token('t')}"}) == "PERMISSION_DENIED"
    wait_until(lambda: {"by-key", "by-token", "by-header"} <= tenants(gateway))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_keys_of_tokens_are_rotated(gateway: GatewayProcess, place: Place, protocol: str) -> None:
    old, new = place.issuer, Issuer(f"second-{protocol}")
    headers = {
        issuer.kid: {"authorization": f"Bearer {issuer.token('by-token', models='accel')}"} for issuer in (old, new)
    }
    with Caller(gateway, place, protocol) as caller:
        assert [caller.status(headers[old.kid]), caller.status(headers[new.kid])] == ["OK", "UNAUTHENTICATED"]
        place.show_keys(old, new)
        wait_until(lambda: caller.status(headers[new.kid]) == "OK")
        assert caller.status(headers[old.kid]) == "OK"
        place.show_keys(new)
        wait_until(lambda: caller.status(headers[old.kid]) == "UNAUTHENTICATED")
        replace(place.directory / "jwks.json", b"{")
        wait_until(lambda: metric(gateway, "sluice_watched_file_failing", "token_keys") == 1)
        assert "the file of token keys cannot be used" in gateway.log_text()
        assert caller.status(headers[new.kid]) == "OK", "the last good keys stay in force"
        place.show_keys(old)
        wait_until(lambda: caller.status(headers[old.kid]) == "OK")
        wait_until(lambda: metric(gateway, "sluice_watched_file_failing", "token_keys") == 0)


def test_a_token_is_verified_once(gateway: GatewayProcess, place: Place) -> None:
    def verified() -> int:
        admin = (place.directory / "state" / "admin-token").read_text().strip()
        page = json.loads(gateway.get("admin", "/v1/fleet", {"authorization": f"Bearer {admin}"})[1])
        return int(page["statistics"]["identity"]["token_verifications"])

    before = verified()
    headers = {"authorization": f"Bearer {place.issuer.token('by-token', models=['accel'])}"}
    for protocol in ("http", "grpc"):
        with Caller(gateway, place, protocol) as caller:
            for _ in range(20):
                caller.infer(headers)
    assert verified() - before == 1


def test_curl_calls_over_tls_with_and_without_a_certificate(gateway: GatewayProcess, place: Place) -> None:
    if shutil.which("curl") is None:
        pytest.fail("curl is missing; install it (apt-get install curl)")
    base = f"https://localhost:{gateway.http.rpartition(':')[2]}"

    def curl(*words: str) -> tuple[str, str]:
        done = subprocess.run(
            ["curl", "-sS", "--max-time", "20", "-w", "\n%{http_code} %{http_version}", *words],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.rpartition("\n")[2], done.stderr

    ca = ("--cacert", str(place.ca_file))
    assert curl(*ca, f"{base}/v2/health/live")[0] == "200 1.1"
    assert curl(*ca, f"{base}/v2/models/accel")[0] == "401 1.1"
    certificate, key = place.client("shop")
    shop = ("--cert", str(certificate), "--key", str(key))
    assert curl(*ca, *shop, f"{base}/v2/models/accel")[0] == "200 1.1"
    big = place.directory / "big.json"
    values = [1.0] * 300_000
    big.write_text(json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": values}]}))
    status, _ = curl(*ca, "-d", f"@{big}", "-H", "expect:", f"{base}/v2/models/accel/infer")
    assert status == "401 1.1", "an early refusal is read although a megabyte is still being sent"
    assert "certificate" in curl(f"{base}/v2/health/live")[1], "curl does not know the authority"
    assert curl(base.replace("https", "http") + "/v2/health/live")[0] == "400 1.1"


def test_the_command_line_calls_over_tls(gateway: GatewayProcess, place: Place) -> None:
    url = f"https://localhost:{gateway.http.rpartition(':')[2]}"
    (place.directory / "token").write_text(place.issuer.token("by-token", models=["accel"]) + "\n")

    def infer(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gateway", "infer", "accel", "--url", url, *words]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    good = infer("--tls-ca", str(place.ca_file), "--bearer", str(place.directory / "token"))
    assert good.returncode == 0, good.stderr
    assert "accel version 1 answered" in good.stdout
    strange = infer("--bearer", str(place.directory / "token"))
    assert strange.returncode == 1
    assert "see --tls-ca" in strange.stderr
    assert infer("--tls-ca", "/nowhere").returncode == 2


def test_certificates_change_under_load_without_a_failed_call(gateway: GatewayProcess, place: Place) -> None:
    """One caller that keeps its connection and one that always makes a new one, over each protocol."""
    headers = {"x-api-key": KEY}
    stop = threading.Event()
    failures: list[str] = []
    calls = {"http": 0, "grpc": 0}

    def keep(protocol: str) -> None:
        with Caller(gateway, place, protocol) as caller:
            while not stop.is_set():
                status = caller.status(headers)
                calls[protocol] += 1
                if status != "OK":
                    failures.append(f"{protocol}, one connection: {status}")

    def renew(protocol: str) -> None:
        while not stop.is_set():
            with Caller(gateway, place, protocol) as caller:
                status = caller.status(headers)
                calls[protocol] += 1
                if status != "OK":
                    failures.append(f"{protocol}, a new connection: {status}")

    threads = [threading.Thread(target=work, args=(how,)) for work in (keep, renew) for how in ("http", "grpc")]
    for thread in threads:
        thread.start()
    try:
        for _ in range(4):
            fresh = place.ca.server()
            fresh.write(place.directory)
            wait_until(lambda fresh=fresh: shown(gateway, "http", place) == fresh.serial)  # type: ignore[misc]
            wait_until(lambda fresh=fresh: shown(gateway, "grpc", place) == fresh.serial)  # type: ignore[misc]
        before = dict(calls)
        wait_until(lambda: all(calls[protocol] > before[protocol] + 5 for protocol in calls))
        bad_files(gateway, place, fresh)
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert failures == []
    assert not any(thread.is_alive() for thread in threads)


def bad_files(gateway: GatewayProcess, place: Place, last: Pair) -> None:
    """What cannot be used changes nothing, and is told."""
    for name, data in (("server.pem", b"rubbish"), ("server.key", place.ca.server().key)):
        good = (place.directory / name).read_bytes()
        replace(place.directory / name, data)
        wait_until(lambda: metric(gateway, "sluice_watched_file_failing", "listen_tls") == 1)
        assert "the certificate of the client ports cannot be used" in gateway.log_text()
        assert shown(gateway, "http", place) == shown(gateway, "grpc", place) == last.serial
        replace(place.directory / name, good)
        wait_until(lambda: metric(gateway, "sluice_watched_file_failing", "listen_tls") == 0)
    expires_s = metric(gateway, "sluice_tls_certificate_expiry_timestamp_seconds", "listen_tls")
    assert 25 * 86_400 < expires_s - time.time() < 31 * 86_400


def test_strangers_on_the_tls_ports_are_sent_away_and_fill_no_log(gateway: GatewayProcess, place: Place) -> None:
    before = len(gateway.log.read_bytes())
    addresses = {}
    for port in ("http", "grpc"):
        host, _, number = gateway.listen[port].rpartition(":")
        addresses[port] = (host, int(number))
    silent = [socket.create_connection(address, timeout=20) for address in addresses.values()]
    for port, address in addresses.items():
        for first in (
            b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\x00" * 50,
            b"\x16\x03\x01\x00\x05hello",
        ):
            for _ in range(25):
                with closing(socket.create_connection(address, timeout=20)) as stranger:
                    stranger.sendall(first)
                    while stranger.recv(65536):
                        pass
        half = socket.create_connection(address, timeout=20)
        half.sendall(b"\x16\x03\x01")
        half.shutdown(socket.SHUT_WR)
        assert half.recv(1) == b""
        half.close()
        with Caller(gateway, place, port) as caller:
            assert caller.status({"x-api-key": KEY}) == "OK"
    for each in silent:
        with closing(each):
            assert each.recv(1) == b"", "a handshake that does not begin is ended"
    assert len(gateway.log.read_bytes()) - before < 4000
    for kind in ("tls_plaintext", "tls_handshake", "tls_slow"):
        wait_until(lambda kind=kind: f'kind="{kind}"' in gateway.get("metrics", "/metrics")[1].decode())  # type: ignore[misc]


@pytest.fixture
def strict(fleet: LocalFleet, tmp_path: Path) -> Iterator[tuple[GatewayProcess, Place]]:
    """A gateway that wants a client certificate of everybody."""
    place = Place(tmp_path)
    listen = place.policies(replicas_of(fleet), "required")
    with GatewayProcess(tmp_path, listen, ["--loop", "asyncio"]) as process:
        yield served(process, place, place.client("first")), place
        assert process.stop() == 0, process.log_text()
        assert "Traceback" not in process.log_text()


def test_client_certificates_name_tenants_over_both_protocols(strict: tuple[GatewayProcess, Place]) -> None:
    gateway, place = strict
    shop = place.client("shop")
    ops = place.client("", uris=("spiffe://cluster/ns/ops",))
    nobody = place.client("nobody")
    stranger = Authority("Stranger").pair("shop").write(place.directory, "stranger")
    for protocol in ("http", "grpc"):
        for pair, status in ((shop, "OK"), (ops, "OK"), (nobody, "UNAUTHENTICATED")):
            with Caller(gateway, place, protocol, pair) as caller:
                assert caller.status() == status
                assert caller.status({"x-api-key": KEY}) == "OK", "a key says more than a certificate"
                assert caller.status({"x-api-key": "wrong"}) == "UNAUTHENTICATED"
        for bad in (None, stranger):
            with Caller(gateway, place, protocol, bad) as caller:
                refused = (ssl.SSLError, ConnectionError, InferenceServerException)
                with pytest.raises(refused) as caught:
                    caller.infer({"x-api-key": KEY})
                if isinstance(caught.value, InferenceServerException):
                    assert "UNAVAILABLE" in str(caught.value.status()), "no connection, and so no answer"
    wait_until(lambda: tenants(gateway) == {"by-key", "by-certificate", "operations"})

    with Caller(gateway, place, "grpc", shop) as grpc, Caller(gateway, place, "http", shop) as http:
        assert grpc.status() == http.status() == "OK"
        place.subjects({"uri:spiffe://cluster/ns/ops": "operations"})
        wait_until(lambda: http.status() == "UNAUTHENTICATED")
        assert grpc.status() == "UNAUTHENTICATED", "on open connections too"
    # Another authority takes the place of the old one.
    other = Authority("Other")
    late = other.pair("", uris=("spiffe://cluster/ns/ops",)).write(place.directory, "late")
    replace(place.directory / "ca.pem", other.certificate)
    place.ca_file = place.ca.write(place.directory, "server-ca.pem")
    for protocol in ("http", "grpc"):

        def outcome(pair: tuple[Path, Path], protocol: str = protocol) -> str:
            with Caller(gateway, place, protocol, pair) as caller:
                try:
                    return caller.status()
                except (ssl.SSLError, ConnectionError):
                    return "no connection"

        wait_until(lambda outcome=outcome: outcome(late) == "OK")  # type: ignore[misc]
        assert outcome(ops) != "OK"


@pytest.mark.parametrize("mutual", [False, True], ids=["server alone", "mutual"])
def test_replicas_are_called_over_tls(mutual: bool, tmp_path: Path) -> None:
    upstream = Authority("Upstream")
    upstream.write(tmp_path, "upstream-ca.pem")
    upstream.pair("triton", dns=("triton.internal",)).write(tmp_path, "triton")
    upstream.pair("gateway").write(tmp_path, "gateway")
    arguments = [
        "--grpc-use-ssl=1",
        f"--grpc-server-cert={tmp_path / 'triton.pem'}",
        f"--grpc-server-key={tmp_path / 'triton.key'}",
        f"--grpc-root-cert={tmp_path / 'upstream-ca.pem'}",
        *(["--grpc-use-ssl-mutual=1"] if mutual else []),
    ]
    tls = {
        "ca_file": "upstream-ca.pem",
        "server_name": "triton.internal",
        "refresh_s": REFRESH_S,
        **({"certificate_file": "gateway.pem", "key_file": "gateway.key"} if mutual else {}),
    }
    logs = tmp_path / "logs"
    with LocalFleet(1, ["accel"], ports=free_ports(1), log_dir=logs, arguments=arguments) as fleet:
        listen = write_policies(
            tmp_path, replicas_of(fleet), models={"accel": MODEL_POLICIES["accel"]}, pool={"tls": tls}
        )
        with GatewayProcess(tmp_path, listen) as gateway:
            gateway.wait_ready()
            host, _, port = gateway.http.rpartition(":")
            client = triton_http.InferenceServerClient(f"{host}:{port}")
            tensor = triton_http.InferInput("work", [1, 1], "FP32")
            tensor.set_data_from_numpy(np.full((1, 1), 1.0, np.float32))
            stop = threading.Event()
            failures: list[str] = []
            calls = [0]

            def load() -> None:
                own = triton_http.InferenceServerClient(f"{host}:{port}")
                while not stop.is_set():
                    try:
                        own.infer("accel", [tensor])
                    except InferenceServerException as error:
                        failures.append(str(error))
                    calls[0] += 1
                own.close()

            thread = threading.Thread(target=load)
            thread.start()
            try:
                wait_until(lambda: calls[0] > 10)
                assert client.get_model_config("accel")["name"] == "accel", "which comes in the clear"
                replaced(gateway, tmp_path, upstream, mutual)
                seen = calls[0]
                wait_until(lambda: calls[0] > seen + 10)
            finally:
                stop.set()
                thread.join(30)
            client.close()
            assert failures == []
            assert gateway.stop() == 0, gateway.log_text()
            assert "Traceback" not in gateway.log_text()


def replaced(gateway: GatewayProcess, directory: Path, upstream: Authority, mutual: bool) -> None:
    """New files make new connections, tried before the old ones go; files that lead nowhere change nothing."""
    if mutual:
        upstream.pair("gateway").write(directory, "gateway")
    else:
        replace(directory / "upstream-ca.pem", upstream.certificate + Authority("Next").certificate)
    wait_until(lambda: "a connection with the new TLS files is in use" in gateway.log_text())
    replace(directory / "upstream-ca.pem", Authority("Wrong").certificate)
    wait_until(lambda: "no answer over a connection with the new TLS files" in gateway.log_text())
    replace(directory / "upstream-ca.pem", b"rubbish")
    wait_until(lambda: metric(gateway, "sluice_watched_file_failing", "pool:cpu") == 1)
    replace(directory / "upstream-ca.pem", upstream.certificate)
    wait_until(lambda: gateway.log_text().count("a connection with the new TLS files is in use") == 2)
