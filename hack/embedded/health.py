"""How each component says itself that it is well."""

from __future__ import annotations

import http.client
import ssl

from .api import Api
from .containerd import Containerd
from .settings import Home

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
NODE = ("containerd", "kubelet", "kube-proxy", "coredns")


def is_well(home: Home, component: str) -> bool:
    match component:
        case "etcd":
            return answers(home.port("etcd-metrics"), "/readyz")
        case "kube-apiserver":
            return Api(home).ready()
        case "kube-controller-manager" | "kube-scheduler":
            return answers(home.port(component), "/healthz", tls=True)
        case "containerd":
            return Containerd(home).answers()
        case "kubelet" | "kube-proxy":
            return answers(home.port(f"{component}-health"), "/healthz")
        case "coredns":
            return answers(home.port("coredns-ready"), "/ready")
    raise ValueError(component)


def answers(port: int, path: str, tls: bool = False) -> bool:
    """Whether a health endpoint of this machine says 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3)
    if tls:
        # Those with TLS serve a certificate that they sign themselves; what answers on the loopback port is theirs.
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=3, context=context)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
