"""The operator's certificates: kept while they last, renewed under the same CA, the CA replaced without a client being lost."""

from __future__ import annotations

import asyncio
import socket
import ssl
from base64 import b64decode
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from halo_operator.certificates import CA_LIFE, LEAF_LIFE, Certificates, advance, issue, names_in
from halo_operator.tls import MountedCertificates, certificates_of, load_into, secret_of, trusting

HOST = "halo-operator.halo-system.svc"
HOSTS = (HOST,)


def serial_seen(port: int, authorities: str, host: str = HOST) -> int:
    """Connect as a client does, trusting only these; return the serial number of what is served."""
    context = ssl.create_default_context(cadata=authorities)
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname=host) as connection,
    ):
        found = connection.getpeercert(binary_form=True)
    assert found
    return x509.load_der_x509_certificate(found).serial_number


def seen(*steps: tuple[Certificates, str], host: str = HOST) -> list[int]:
    """Serve each step's certificates from one running server to a client that trusts the step's authorities."""

    async def serve() -> list[int]:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        load_into(context, steps[0][0].leaf, steps[0][0].leaf_key)
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
        port, found = server.sockets[0].getsockname()[1], []
        for certificates, trusted in steps:
            load_into(context, certificates.leaf, certificates.leaf_key)
            found.append(await asyncio.to_thread(serial_seen, port, trusted, host))
        server.close()
        return found

    return asyncio.run(serve())


def serial(certificates: Certificates) -> int:
    return x509.load_pem_x509_certificate(certificates.leaf.encode()).serial_number


def test_a_certificate_is_kept_while_it_lasts_and_renewed_under_the_same_authority() -> None:
    made = datetime.now(UTC)
    first = issue(HOSTS, made)
    assert issue(HOSTS, made + LEAF_LIFE / 2, first) == first
    later = issue(HOSTS, made + LEAF_LIFE * 0.7, first)
    assert later.leaf != first.leaf
    assert (later.ca, later.ca_key) == (first.ca, first.ca_key)


def test_it_names_every_host_and_one_that_names_more_is_kept() -> None:
    made = datetime.now(UTC)
    more = issue((HOST, "127.0.0.1", "halo.example"), made)
    assert {HOST, f"{HOST}.cluster.local", "127.0.0.1", "halo.example"} == set(names_in(more.leaf))
    assert issue(HOSTS, made, more) == more
    assert issue(("elsewhere.svc",), made, more).leaf != more.leaf
    assert seen((more, more.ca), host="127.0.0.1") == [serial(more)]


def test_a_server_that_runs_on_serves_the_renewed_certificate_to_pods_that_trust_the_authority() -> None:
    now = datetime.now(UTC)
    first = issue(HOSTS, now - LEAF_LIFE * 0.7)
    second = issue(HOSTS, now, first)
    assert seen((first, first.ca), (second, first.ca)) == [serial(first), serial(second)]


def step(held: Certificates, now: datetime, *, asked: bool = False, is_known: bool = False) -> Certificates:
    return advance(held, HOSTS, now, asked=asked, is_known=is_known)


def test_a_rotation_loses_no_client_at_any_step() -> None:
    now = datetime.now(UTC)
    first = issue(HOSTS, now)
    assert step(first, now) == first
    announced = step(first, now, asked=True)
    assert (announced.ca, announced.leaf) == (first.ca, first.leaf)
    assert announced.bundle == first.ca + announced.next_ca
    assert step(announced, now, asked=True) == announced
    switched = step(announced, now, is_known=True)
    assert switched.ca == announced.next_ca
    assert not switched.next_ca
    # Who has the announced bundle needs no other.
    assert switched.bundle == announced.bundle
    assert seen(
        (first, first.bundle), (announced, first.bundle), (announced, announced.bundle), (switched, announced.bundle)
    ) == [serial(first), serial(first), serial(first), serial(switched)]
    assert step(switched, now + timedelta(days=1)) == switched
    settled = step(switched, now + timedelta(days=3))
    assert settled == replace(switched, old_ca="")
    assert seen((settled, switched.ca)) == [serial(switched)]


def test_an_authority_rotates_by_itself_before_it_ends_and_waits_for_no_client_longer_than_a_day() -> None:
    made = datetime.now(UTC)
    first = issue(HOSTS, made)
    late = made + CA_LIFE * 0.7
    announced = step(first, late)
    assert announced.next_ca
    assert step(announced, late + timedelta(hours=23)) == announced
    assert step(announced, late + timedelta(hours=25)).ca == announced.next_ca


def test_an_authority_that_has_ended_is_replaced_at_once() -> None:
    first = issue(HOSTS, datetime.now(UTC) - CA_LIFE)
    assert issue(HOSTS, datetime.now(UTC) + timedelta(hours=1), first).ca != first.ca


def test_the_secret_keeps_every_step_and_an_incomplete_one_is_made_anew() -> None:
    now = datetime.now(UTC)
    announced = step(issue(HOSTS, now), now, asked=True)
    for held in (issue(HOSTS, now), announced, step(announced, now, is_known=True)):
        assert certificates_of(secret_of(held, "halo-system")) == held
    incomplete = secret_of(announced, "halo-system")
    del incomplete["data"]["ca.key"]
    assert certificates_of(incomplete) is None


def test_mounted_files_are_served_once_they_are_there_and_again_when_they_change(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    first = issue(HOSTS, now)
    second = issue(("elsewhere.svc", HOST), now, first)

    def mount(certificates: Certificates) -> None:
        (tmp_path / "tls.crt").write_text(certificates.leaf)
        (tmp_path / "tls.key").write_text(certificates.leaf_key)

    async def serve() -> list[int]:
        mounted = MountedCertificates(tmp_path, look_seconds=0.05)
        keeping = asyncio.create_task(mounted.keep())
        await asyncio.sleep(0.2)
        assert not mounted.loaded.is_set()
        mount(first)
        await asyncio.wait_for(mounted.loaded.wait(), 5)
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=mounted.context)
        port = server.sockets[0].getsockname()[1]
        found = [await asyncio.to_thread(serial_seen, port, first.ca)]
        # Half written: what was served is served on.
        (tmp_path / "tls.crt").write_text(second.leaf)
        await asyncio.sleep(0.2)
        found.append(await asyncio.to_thread(serial_seen, port, first.ca))
        mount(second)
        await asyncio.sleep(0.3)
        found.append(await asyncio.to_thread(serial_seen, port, first.ca))
        keeping.cancel()
        server.close()
        return found

    assert asyncio.run(serve()) == [serial(first), serial(first), serial(second)]


@pytest.mark.parametrize("before", [None, "", "b2xk"])
def test_a_webhook_configuration_is_patched_only_when_it_trusts_something_else(before: str | None) -> None:
    client = {"service": {"name": "halo-operator"}} | ({} if before is None else {"caBundle": before})
    configuration = {"webhooks": [{"name": "runs.halo.training", "clientConfig": client}]}
    test, add = trusting(configuration, "CA")
    assert test == {"op": "test", "path": "/webhooks/0/name", "value": "runs.halo.training"}
    assert add["path"] == "/webhooks/0/clientConfig/caBundle"
    assert b64decode(add["value"]) == b"CA"
    client["caBundle"] = add["value"]
    assert trusting(configuration, "CA") == []
