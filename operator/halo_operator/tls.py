"""Keeps the operator's certificates: in a Secret that all replicas read, in the contexts that serve them, in what trusts them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from halo_operator.certificates import Certificates, advance, issue
from halo_operator.cluster import AlreadyExists, Cluster, ClusterError, Object
from halo_operator.plan.names import RUN_LABEL
from halo_operator.plan.pod_view import all_of
from halo_operator.settings import Settings

log = logging.getLogger(__name__)

SECRET = "halo-operator-tls"  # noqa: S105
# On the Secret, any value: replace the CA now.
ROTATE_ANNOTATION = "halo.training/rotate-ca"
LONGEST_LOOK_SECONDS = 60.0
# file of the Secret → the field that it holds; the last three are there during and after a rotation only
FILES = {
    "ca.crt": "ca",
    "ca.key": "ca_key",
    "tls.crt": "leaf",
    "tls.key": "leaf_key",
    "next-ca.crt": "next_ca",
    "next-ca.key": "next_key",
    "old-ca.crt": "old_ca",
}
NEEDED = ("ca.crt", "ca.key", "tls.crt", "tls.key")


class OwnCertificates:
    """Self-issued certificates: every replica reads and serves them, the leader alone rotates their CA."""

    def __init__(
        self, cluster: Cluster, settings: Settings, leading: Callable[[], bool], spread: Callable[[], None]
    ) -> None:
        """`spread` is called when the bundle that live pods must trust has changed."""
        self._cluster = cluster
        self._settings = settings
        self._leading = leading
        self._spread = spread
        self._held: Certificates | None = None
        self._known_since: datetime | None = None
        self._wake = asyncio.Event()

    @property
    def bundle(self) -> str:
        """The CAs that pods and the API server must trust."""
        return self._held.bundle if self._held else ""

    async def prepare(self) -> ssl.SSLContext:
        """Return a TLS context with the installation's certificates."""
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        await self._read_or_make()
        return self._context

    def look_now(self) -> None:
        """Look at once, as a replica does that has begun to lead."""
        self._wake.set()

    async def keep(self) -> None:
        """Keep the served certificates the Secret's, and both young, for ever: an operator may run for longer than one lasts."""
        notice = self._settings.ca_notice_seconds
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), min(LONGEST_LOOK_SECONDS, notice / 5))
            self._wake.clear()
            try:
                secret = await self._read_or_make()
                if self._leading():
                    await self._lead(secret)
            except (ClusterError, ValueError, OSError) as error:
                log.warning("certificates not looked after, trying again: %s", error)

    async def _lead(self, secret: Object) -> None:
        """Have the webhook trust the bundle, then take the next step of a rotation, if there is one."""
        await self._trust_in_webhook()
        held, now = self._held, datetime.now(UTC)
        assert held
        asked = ROTATE_ANNOTATION in secret["metadata"].get("annotations", {})
        new = advance(held, self._settings.hosts, now, asked=asked, is_known=await self._is_known(held, now))
        if new == held:
            return
        await self._cluster.replace(secret_of(new, self._settings.namespace, secret["metadata"]["resourceVersion"]))
        log.info("certificates: %s", step_of(held, new))
        self._take(new)
        await self._trust_in_webhook()

    async def _is_known(self, held: Certificates, now: datetime) -> bool:
        """Whether every live pod of a run has had the bundle for long enough that its node has written it into the pod."""
        if not held.next_ca or not await self._is_on_all_pods(held.bundle, now):
            self._known_since = None
            return False
        self._known_since = self._known_since or now
        return now - self._known_since >= timedelta(seconds=self._settings.ca_notice_seconds)

    async def _is_on_all_pods(self, bundle: str, now: datetime) -> bool:
        for namespace in self._settings.watch_namespaces or (None,):
            found = await self._cluster.list_all("Pod", namespace, labels=RUN_LABEL)
            if any(not pod.ended and pod.ca != bundle for pod in all_of(found, now)):
                return False
        return True

    async def _trust_in_webhook(self) -> None:
        name = self._settings.webhook_configuration
        if not name:
            return
        found = await self._cluster.get("ValidatingWebhookConfiguration", None, name)
        if found and (operations := trusting(found, self.bundle)):
            await self._cluster.patch("ValidatingWebhookConfiguration", "", name, operations)
            log.info("the webhook configuration %s trusts the bundle", name)

    async def _read_or_make(self) -> Object:
        """Read the installation's certificates, or make them; of two replicas that try, one wins and the other reads."""
        namespace = self._settings.namespace
        for _ in range(5):
            secret = await self._cluster.get("Secret", namespace, SECRET)
            old = certificates_of(secret) if secret else None
            new = issue(self._settings.hosts, datetime.now(UTC), old)
            try:
                if secret is None:
                    await self._cluster.create(secret_of(new, namespace))
                elif new != old:
                    await self._cluster.replace(secret_of(new, namespace, secret["metadata"]["resourceVersion"]))
            except (AlreadyExists, ClusterError) as error:
                log.info("certificates: %s; reading again", error)
                continue
            self._take(new)
            if secret and new == old:
                return secret
        raise ClusterError(0, f"Secret {namespace}/{SECRET} could neither be read nor written")

    def _take(self, new: Certificates) -> None:
        before, self._held = self._held, new
        if before == new:
            return
        load_into(self._context, new.leaf, new.leaf_key)
        if before and before.bundle != new.bundle:
            self._spread()


class MountedCertificates:
    """A certificate that somebody else keeps in files, such as cert-manager in a mounted Secret."""

    def __init__(self, folder: Path, look_seconds: float = LONGEST_LOOK_SECONDS) -> None:
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.loaded = asyncio.Event()
        self._pair = (folder / "tls.crt", folder / "tls.key")
        self._seen = ("", "")
        self._look_seconds = look_seconds

    async def keep(self) -> None:
        """Load the files whenever they change, for ever; `loaded` is set once they were there."""
        while True:
            try:
                found = (self._pair[0].read_text(), self._pair[1].read_text())
                if found != self._seen:
                    load_into(self.context, *found)
                    self._seen = found
                    self.loaded.set()
            except (OSError, ValueError) as error:
                log.warning("webhook certificate not loaded, trying again: %s", error)
            await asyncio.sleep(self._look_seconds if self.loaded.is_set() else min(2.0, self._look_seconds))


def step_of(before: Certificates, after: Certificates) -> str:
    """Say what a step of a rotation did."""
    if after.next_ca:
        return "announced the next CA"
    return "switched to the next CA" if after.ca != before.ca else "the old CA is trusted no more"


def trusting(configuration: Object, bundle: str) -> list[Object]:
    """Return the JSON patch that has a webhook configuration trust the bundle, empty when it does."""
    wanted = b64encode(bundle.encode()).decode()
    operations: list[Object] = []
    for index, webhook in enumerate(configuration.get("webhooks", ())):
        if webhook["clientConfig"].get("caBundle") != wanted:
            path = f"/webhooks/{index}"
            operations += [
                {"op": "test", "path": f"{path}/name", "value": webhook["name"]},
                {"op": "add", "path": f"{path}/clientConfig/caBundle", "value": wanted},
            ]
    return operations


def certificates_of(secret: Object) -> Certificates | None:
    """Return the certificates in the Secret, or None when it does not hold them."""
    data: dict[str, Any] = secret.get("data") or {}
    try:
        if not all(data.get(file) for file in NEEDED):
            return None
        return Certificates(**{field: b64decode(data.get(file, "")).decode() for file, field in FILES.items()})
    except ValueError:
        return None


def secret_of(certificates: Certificates, namespace: str, resource_version: str | None = None) -> Object:
    """Return the Secret that holds the certificates."""
    texts = {file: getattr(certificates, field) for file, field in FILES.items()}
    meta: Object = {"name": SECRET, "namespace": namespace, "labels": {"app.kubernetes.io/managed-by": "halo"}}
    if resource_version:
        meta["resourceVersion"] = resource_version
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": meta,
        "data": {file: b64encode(text.encode()).decode() for file, text in texts.items() if text},
    }


def load_into(context: ssl.SSLContext, leaf: str, key: str) -> None:
    """Have new connections see this certificate; the files it is loaded from exist only for that."""
    with tempfile.TemporaryDirectory() as folder:
        leaf_file, key_file = Path(folder, "tls.crt"), Path(folder, "tls.key")
        leaf_file.write_text(leaf)
        key_file.touch(mode=0o600)
        key_file.write_text(key)
        # A key that does not fit is found only after the certificate was replaced: not in the context that serves.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(leaf_file, key_file)
        context.load_cert_chain(leaf_file, key_file)
