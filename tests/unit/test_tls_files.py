"""Files that are watched, certificates that are read from them, and contexts made of them."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from gateway.edge.tls_files import PortTls, watch_port_tls
from gateway.edge.tls_peers import CERTIFICATES_MAX, Certificates
from gateway.policy.problems import PolicyError
from gateway.policy.tls_files import NO_FILE, PemFile, TlsMaterial, expiry_warning, tls_material
from gateway.policy.tls_schema import ServerTls
from gateway.runtime.clock import SystemClock
from gateway.runtime.files import SystemFiles
from gateway.runtime.tls import server_context
from gateway.runtime.watched import Watched
from gateway.runtime.workers import InlineWorkers
from tests.support.certificates import DAY, Authority, Pair, private_pem, replace

CA = Authority()
PAIR = CA.server()


def watched(path: Path, seen: list[int], refresh_s: float = 0.01) -> Watched[int]:
    """Of a file with one number in it."""
    workers = InlineWorkers()
    return Watched(
        "the number",
        (str(path),),
        refresh_s,
        make=lambda contents: int(contents[0]),
        files=SystemFiles(workers),
        workers=workers,
        changed=seen.append,
    )


async def test_the_last_good_content_stays_in_force_and_what_is_wrong_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sluice.files")
    path, seen = tmp_path / "number", list[int]()
    subject = watched(path, seen)
    with pytest.raises(RuntimeError, match="not been loaded"):
        assert subject.value
    with pytest.raises(FileNotFoundError):
        await subject.load()
    path.write_text("1")
    assert await subject.load()
    assert not await subject.load(), "the same content is nothing new"
    assert (subject.value, seen, subject.loads) == (1, [], 1)
    path.write_text("rubbish")
    for _ in range(3):
        await subject.look()
    assert subject.value == 1
    assert subject.failures == 3
    path.unlink()
    await subject.look()
    assert "No such file" in subject.failure
    path.write_text("1")
    await subject.look()
    assert (subject.failure, subject.loads) == ("", 1), "back to what is in force"
    path.write_text("2")
    await subject.look()
    assert (subject.value, seen, subject.loads) == (2, [2], 2)
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR", "INFO"]
    assert subject.statistics(0.0) == {"loads": 2, "failures": 4, "failure": ""}


async def test_a_watch_looks_again_and_again(tmp_path: Path) -> None:
    path, seen = tmp_path / "number", list[int]()
    path.write_text("1")
    subject = watched(path, seen)
    await subject.load()
    async with asyncio.timeout(20):
        job = asyncio.create_task(subject.run())
        for number in (2, 3):
            replace(path, str(number).encode())
            while subject.value != number:
                await asyncio.sleep(0.005)
        job.cancel()
        await asyncio.wait((job,))
    assert seen == [2, 3]


def watch(directory: Path, **more: object) -> Watched[PortTls]:
    workers = InlineWorkers()
    policy = ServerTls(certificate_file="server.pem", key_file="server.key", **more)  # type: ignore[arg-type]
    return watch_port_tls(
        policy, lambda name: str(directory / name), files=SystemFiles(workers), workers=workers, clock=SystemClock()
    )


async def test_certificate_and_key_that_are_replaced_one_after_the_other_are_taken_when_both_are_there(
    tmp_path: Path,
) -> None:
    PAIR.write(tmp_path)
    subject = watch(tmp_path)
    await subject.load()
    before = subject.value
    fresh = CA.server()
    replace(tmp_path / "server.pem", fresh.certificate)
    await subject.look()
    assert subject.value is before
    assert "the key does not belong to the certificate" in subject.failure
    replace(tmp_path / "server.key", fresh.key)
    await subject.look()
    assert subject.failure == ""
    assert subject.value.material.certificate == fresh.certificate
    assert subject.value.http is not before.http, "a context of its own: old session tickets are worth nothing in it"


async def test_an_expired_certificate_is_used_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    CA.server(lasts=-2 * DAY).write(tmp_path)
    await watch(tmp_path).load()
    assert "expired 2.0 days ago and is used all the same" in caplog.text
    caplog.clear()
    CA.server(lasts=3 * DAY).write(tmp_path)
    await watch(tmp_path).load()
    assert "expires in 3.0 days" in caplog.text
    caplog.clear()
    CA.server(lasts=30 * DAY).write(tmp_path)
    await watch(tmp_path).load()
    assert caplog.text == ""


def test_what_has_no_certificate_expires_never() -> None:
    assert expiry_warning(TlsMaterial(ca=CA.certificate), 0.0) == ""


async def test_what_the_tls_library_does_not_take_is_a_problem_with_a_remedy(tmp_path: Path) -> None:
    weak = CA.pair("localhost", key=rsa.generate_private_key(65537, 1024))
    weak.write(tmp_path)
    with pytest.raises(PolicyError, match="does not take") as caught:
        await watch(tmp_path).load()
    assert caught.value.problems[0].remedy


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_a_password() -> None:
    locked = private_pem(rsa.generate_private_key(65537, 2048), b"secret")
    with pytest.raises(PolicyError, match="the key is encrypted"):
        tls_material(PemFile("a.pem", PAIR.certificate), PemFile("a.key", locked), NO_FILE)
    with pytest.raises(ValueError, match="the key is encrypted"):
        server_context(PAIR.certificate, locked, b"", "none", ())


@pytest.mark.parametrize("ca", [b"rubbish", b"\xff", PAIR.key])
def test_authorities_that_are_none_are_refused(ca: bytes) -> None:
    with pytest.raises(PolicyError):
        tls_material(NO_FILE, NO_FILE, PemFile("ca.pem", ca))
    with pytest.raises(ValueError, match="does not take"):
        server_context(PAIR.certificate, PAIR.key, ca, "required", ())


def test_a_chain_begins_with_the_certificate_of_the_key() -> None:
    chain = PAIR.certificate + CA.certificate
    material = tls_material(PemFile("a.pem", chain), PemFile("a.key", PAIR.key), PemFile("ca.pem", CA.certificate))
    assert material.certificate == chain
    assert material.not_after_s > 1e9
    wrong_way = PemFile("a.pem", CA.certificate + PAIR.certificate)
    with pytest.raises(PolicyError, match="does not belong"):
        tls_material(wrong_way, PemFile("a.key", PAIR.key), NO_FILE)


def test_a_context_is_for_servers_of_today() -> None:
    context = server_context(PAIR.certificate, PAIR.key, CA.certificate, "required", ("http/1.1",))
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.options & ssl.OP_NO_RENEGOTIATION


def test_a_key_shows_in_no_repr() -> None:
    assert b"PRIVATE" not in repr(TlsMaterial(key=PAIR.key)).encode()


def test_certificates_are_read_once_and_remembered_within_bounds() -> None:
    subject = Certificates()
    pair = CA.pair("shop")
    first = subject.read(pair.certificate)
    assert first.common_name == "shop"
    assert subject.read(pair.certificate) is first
    assert subject.read(ssl.PEM_cert_to_DER_cert(pair.certificate.decode())) == first
    for i in range(CERTIFICATES_MAX + 10):
        assert subject.read(b"rubbish %d" % i).common_name == ""
    assert len(subject._known) == CERTIFICATES_MAX


def test_pairs_of_the_tests_are_what_they_say() -> None:
    assert isinstance(PAIR, Pair)
    assert PAIR.serial != CA.server().serial
