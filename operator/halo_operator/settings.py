"""The operator's settings, read once from the environment that the chart writes."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast, get_args
from urllib.parse import urlsplit

PullPolicy = Literal["Always", "IfNotPresent", "Never"]


class SettingsError(ValueError):
    """An environment variable is missing or makes no sense; the message names it, what was found and what would do."""


@dataclass(frozen=True)
class Settings:
    """One value for the life of the process."""

    namespace: str
    identity: str
    trainer_image: str
    rollout_image: str
    trainer_image_pull_policy: PullPolicy = "IfNotPresent"
    rollout_image_pull_policy: PullPolicy = "IfNotPresent"
    artifacts_claim: str = "halo-artifacts"
    service_name: str = "halo-operator"
    start_timeout_seconds: int = 600
    workers: int = 16
    log_format: Literal["json", "text"] = "json"
    watch_namespaces: tuple[str, ...] = ()
    health_port: int = 8080
    report_port: int = 8443
    # Whose caBundle the operator keeps; empty where the webhook is off or somebody else keeps it.
    webhook_configuration: str = ""
    # Where the API server finds the webhook if not by the Service: the certificate must name that host.
    webhook_url: str = ""
    # Where somebody else's certificate for the webhook lies; it is then served on a port of its own.
    webhook_certificate: str = ""
    webhook_port: int = 9443
    ca_notice_seconds: int = 300
    # A Secret with the key that receipts are signed by, which somebody else keeps; empty: the operator makes its own.
    receipt_key_secret: str = ""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names that the operator's own certificate is for."""
        host = urlsplit(self.webhook_url).hostname
        return (self.report_host, host) if host else (self.report_host,)

    @property
    def report_host(self) -> str:
        """The name that pods push to, as the certificate carries it."""
        return f"{self.service_name}.{self.namespace}.svc"

    @property
    def report_url(self) -> str:
        """Where pods push their reports."""
        return f"https://{self.report_host}/v1/reports"


def load(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings; raises SettingsError with one sentence for the first that can't be used."""
    return Settings(
        namespace=_required(environment, "HALO_NAMESPACE"),
        identity=environment.get("HALO_POD_NAME") or socket.gethostname(),
        trainer_image=_required(environment, "HALO_TRAINER_IMAGE"),
        rollout_image=_required(environment, "HALO_ROLLOUT_IMAGE"),
        trainer_image_pull_policy=_pull_policy(environment, "HALO_TRAINER_IMAGE_PULL_POLICY"),
        rollout_image_pull_policy=_pull_policy(environment, "HALO_ROLLOUT_IMAGE_PULL_POLICY"),
        artifacts_claim=environment.get("HALO_ARTIFACTS_CLAIM") or "halo-artifacts",
        service_name=environment.get("HALO_SERVICE_NAME") or "halo-operator",
        start_timeout_seconds=_positive(environment, "HALO_START_TIMEOUT_SECONDS", 600),
        workers=_positive(environment, "HALO_WORKERS", 16),
        log_format=cast(Literal["json", "text"], _one_of(environment, "HALO_LOG_FORMAT", ("json", "text"), "json")),
        watch_namespaces=tuple(
            filter(None, (n.strip() for n in environment.get("HALO_WATCH_NAMESPACES", "").split(",")))
        ),
        health_port=_positive(environment, "HALO_HEALTH_PORT", 8080),
        report_port=_positive(environment, "HALO_REPORT_PORT", 8443),
        webhook_configuration=environment.get("HALO_WEBHOOK_CONFIGURATION", ""),
        webhook_url=environment.get("HALO_WEBHOOK_URL", ""),
        webhook_certificate=environment.get("HALO_WEBHOOK_CERTIFICATE", ""),
        webhook_port=_positive(environment, "HALO_WEBHOOK_PORT", 9443),
        ca_notice_seconds=_positive(environment, "HALO_CA_NOTICE_SECONDS", 300),
        receipt_key_secret=environment.get("HALO_RECEIPT_KEY_SECRET", ""),
    )


def _required(environment: Mapping[str, str], name: str) -> str:
    if value := environment.get(name, "").strip():
        return value
    raise SettingsError(f"{name} is required, found nothing; the chart sets it")


def _one_of(environment: Mapping[str, str], name: str, choices: tuple[str, ...], default: str) -> str:
    value = environment.get(name) or default
    if value not in choices:
        raise SettingsError(f"{name} must be one of {', '.join(choices)}, found {value!r}")
    return value


def _pull_policy(environment: Mapping[str, str], name: str) -> PullPolicy:
    return cast(PullPolicy, _one_of(environment, name, get_args(PullPolicy), "IfNotPresent"))


def _positive(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name) or str(default)
    if not text.isdecimal() or int(text) < 1:
        raise SettingsError(f"{name} must be a whole number above 0, found {text!r}")
    return int(text)
