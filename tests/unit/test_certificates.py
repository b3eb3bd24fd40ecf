"""The certificates of the reports' server: kept while they last, renewed under the same authority while it serves."""

from __future__ import annotations

import asyncio
import socket
import ssl
from datetime import UTC, datetime

from cryptography import x509

from halo_operator.certificates import LEAF_LIFE, issue
from halo_operator.server import load_into

HOST = "halo-operator.halo-system.svc"


def serial_seen(port: int, authority: str) -> int:
    """Connect as a pod does, trusting only the authority; return the serial number of what is served."""
    context = ssl.create_default_context(cadata=authority)
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as connection,
    ):
        found = connection.getpeercert(binary_form=True)
    assert found
    return x509.load_der_x509_certificate(found).serial_number


def test_a_certificate_is_kept_while_it_lasts_and_renewed_under_the_same_authority() -> None:
    made = datetime.now(UTC)
    first = issue(HOST, made)
    assert issue(HOST, made + LEAF_LIFE / 2, first) == first
    later = issue(HOST, made + LEAF_LIFE * 0.7, first)
    assert later.leaf != first.leaf
    assert (later.ca, later.ca_key) == (first.ca, first.ca_key)
    assert issue("elsewhere.svc", made, first).leaf != first.leaf


def test_a_server_that_runs_on_serves_the_renewed_certificate_to_pods_that_trust_the_authority() -> None:
    now = datetime.now(UTC)
    first = issue(HOST, now - LEAF_LIFE * 0.7)
    second = issue(HOST, now, first)

    async def seen() -> list[int]:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        load_into(context, first)
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        before = await asyncio.to_thread(serial_seen, port, first.ca)
        load_into(context, second)
        after = await asyncio.to_thread(serial_seen, port, first.ca)
        server.close()
        return [before, after]

    expected = [x509.load_pem_x509_certificate(each.leaf.encode()).serial_number for each in (first, second)]
    assert asyncio.run(seen()) == expected
