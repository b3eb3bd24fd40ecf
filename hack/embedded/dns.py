"""CoreDNS as a process of the host, behind the address that every pod asks: names without an image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .api import Api
from .binaries import COREDNS, installed
from .health import is_well
from .pki import kubeconfig_path
from .processes import Process, Processes
from .settings import DNS_SERVICE_IP, NODE_IP, Home, write

READS = ({"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": ["list", "watch"]},
         {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]})  # fmt: skip


def coredns(home: Home, binary: Path) -> Process:
    # Not port 53: the host may have a resolver of its own there. Pods see 53, the Service translates.
    corefile = f"""\
.:{home.port("coredns")} {{
    bind {NODE_IP}
    errors
    health 127.0.0.1:{home.port("coredns-health")}
    ready 127.0.0.1:{home.port("coredns-ready")}
    kubernetes cluster.local in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig_path(home, "coredns")}
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 5
    }}
{_upstream()}    cache 5 {{
        disable denial cluster.local
    }}
}}
"""
    file = write(home.root / "Corefile", corefile)
    return Process("coredns", (str(binary), "-conf", str(file)), files=(file, kubeconfig_path(home, "coredns")))


def _upstream() -> str:
    resolver = Path("/etc/resolv.conf")
    configured = resolver.exists() and any(line.startswith("nameserver") for line in resolver.read_text().splitlines())
    return f"    forward . {resolver}\n" if configured else ""


def start_dns(home: Home, processes: Processes) -> None:
    api = Api(home)
    for path, manifest in _manifests(home).items():
        api.apply(path, manifest)
    processes.ensure(coredns(home, installed(COREDNS) / "coredns"))
    processes.wait("coredns", lambda: is_well(home, "coredns"))


def _manifests(home: Home) -> dict[str, dict[str, Any]]:
    """What CoreDNS may read, and the Service that leads to it: without selector, because it is no pod."""
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    name = {"name": "halo:coredns"}
    ports = [{"name": "dns", "protocol": "UDP"}, {"name": "dns-tcp", "protocol": "TCP"}]
    user = {"kind": "User", "name": "halo:coredns", "apiGroup": "rbac.authorization.k8s.io"}
    role = {"kind": "ClusterRole", "name": "halo:coredns", "apiGroup": "rbac.authorization.k8s.io"}
    return {
        f"{rbac}/clusterroles/halo:coredns": {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": name,
            "rules": list(READS),
        },
        f"{rbac}/clusterrolebindings/halo:coredns": {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": name,
            "roleRef": role,
            "subjects": [user],
        },
        "/api/v1/namespaces/kube-system/services/kube-dns": {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "labels": {"k8s-app": "kube-dns"}},
            "spec": {"clusterIP": DNS_SERVICE_IP, "ports": [{**port, "port": 53} for port in ports]},
        },
        "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices/kube-dns-host": {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": "kube-dns-host", "labels": {"kubernetes.io/service-name": "kube-dns"}},
            "addressType": "IPv4",
            "ports": [{**port, "port": home.port("coredns")} for port in ports],
            "endpoints": [{"addresses": [NODE_IP], "conditions": {"ready": True}}],
        },
    }
