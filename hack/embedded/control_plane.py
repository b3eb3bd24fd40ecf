"""etcd, API server, controller manager and scheduler: how each is run and how one knows that it is ready."""

from __future__ import annotations

from pathlib import Path

from .api import Api
from .health import is_well
from .pki import kubeconfig_path
from .processes import Process, Processes
from .settings import NODE_IP, POD_CIDR, SERVICE_CIDR, Home, Wish, write

AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
"""
# The shipped limits (20 and 50 requests a second) are for clusters shared by many; here they would only be waited for.
CLIENT_LIMITS = ("--kube-api-qps=1000", "--kube-api-burst=1000")


def etcd(home: Home, binaries: Path) -> Process:
    client, peer = f"https://127.0.0.1:{home.port('etcd')}", f"https://127.0.0.1:{home.port('etcd-peer')}"
    pki = home.root / "pki"
    return Process(
        "etcd",
        (
            str(binaries / "etcd"),
            f"--data-dir={home.root}/etcd",
            # The data need not outlive a power cut, and fsync is most of what a write costs on an ordinary disk.
            "--unsafe-no-fsync",
            "--quota-backend-bytes=8589934592",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            f"--listen-metrics-urls=http://127.0.0.1:{home.port('etcd-metrics')}",
            # Other users of the machine may not read the cluster's Secrets.
            *(f"--{role}trusted-ca-file={pki}/ca.crt" for role in ("", "peer-")),
            *(f"--{role}cert-file={pki}/etcd.crt" for role in ("", "peer-")),
            *(f"--{role}key-file={pki}/etcd.key" for role in ("", "peer-")),
            *(f"--{role}client-cert-auth" for role in ("", "peer-")),
            "--log-level=warn",
        ),
    )


def api_server(home: Home, wish: Wish, binaries: Path) -> Process:
    pki = home.root / "pki"
    # Without a node there is no bridge whose address the `kubernetes` Service could point at.
    addresses = (
        ("--bind-address=0.0.0.0", f"--advertise-address={NODE_IP}")
        if wish.node
        else ("--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none")
    )
    policy = write(home.root / "audit-policy.yaml", AUDIT_POLICY)
    audit = (f"--audit-policy-file={policy}", f"--audit-log-path={home.audit_log}", "--audit-log-maxsize=4000")
    return Process(
        "kube-apiserver",
        (
            str(binaries / "kube-apiserver"),
            f"--etcd-servers=https://127.0.0.1:{home.port('etcd')}",
            f"--etcd-cafile={pki}/ca.crt",
            f"--etcd-certfile={pki}/kube-apiserver.crt",
            f"--etcd-keyfile={pki}/kube-apiserver.key",
            f"--secure-port={home.port('kube-apiserver')}",
            *addresses,
            f"--service-cluster-ip-range={SERVICE_CIDR}",
            f"--tls-cert-file={pki}/kube-apiserver.crt",
            f"--tls-private-key-file={pki}/kube-apiserver.key",
            f"--client-ca-file={pki}/ca.crt",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            f"--kubelet-certificate-authority={pki}/ca.crt",
            f"--kubelet-client-certificate={pki}/kubelet-client.crt",
            f"--kubelet-client-key={pki}/kubelet-client.key",
            # Else logs and exec look the node's name up in DNS.
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-account-key-file={pki}/sa.pub",
            f"--service-account-signing-key-file={pki}/sa.key",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            "--profiling=false",
            *(audit if wish.audit else ()),
        ),
        files=(policy,) if wish.audit else (),
    )


def controller_manager(home: Home, binaries: Path) -> Process:
    pki = home.root / "pki"
    return Process(
        "kube-controller-manager",
        (
            str(binaries / "kube-controller-manager"),
            f"--kubeconfig={kubeconfig_path(home, 'kube-controller-manager')}",
            "--bind-address=127.0.0.1",
            f"--secure-port={home.port('kube-controller-manager')}",
            f"--root-ca-file={pki}/ca.crt",
            f"--service-account-private-key-file={pki}/sa.key",
            f"--cluster-signing-cert-file={pki}/ca.crt",
            f"--cluster-signing-key-file={pki}/ca.key",
            "--use-service-account-credentials",
            "--leader-elect=false",
            "--allocate-node-cidrs",
            f"--cluster-cidr={POD_CIDR}",
            f"--service-cluster-ip-range={SERVICE_CIDR}",
            "--concurrent-gc-syncs=20",
            "--concurrent-job-syncs=20",
            *CLIENT_LIMITS,
        ),
        files=(kubeconfig_path(home, "kube-controller-manager"),),
    )


def scheduler(home: Home, binaries: Path) -> Process:
    return Process(
        "kube-scheduler",
        (
            str(binaries / "kube-scheduler"),
            f"--kubeconfig={kubeconfig_path(home, 'kube-scheduler')}",
            "--bind-address=127.0.0.1",
            f"--secure-port={home.port('kube-scheduler')}",
            "--leader-elect=false",
            *CLIENT_LIMITS,
        ),
        files=(kubeconfig_path(home, "kube-scheduler"),),
    )


def start_control_plane(home: Home, wish: Wish, processes: Processes, binaries: Path) -> None:
    """Start what does not run yet, in the order in which each can become ready."""
    api = Api(home)
    processes.ensure(etcd(home, binaries))
    processes.ensure(api_server(home, wish, binaries))
    processes.wait("etcd", lambda: is_well(home, "etcd"))
    processes.wait("kube-apiserver", api.ready)
    processes.ensure(controller_manager(home, binaries))
    processes.ensure(scheduler(home, binaries))
    # The first pod anyone makes needs it, and the controller manager makes it.
    account = "/api/v1/namespaces/default/serviceaccounts/default"
    processes.wait("kube-controller-manager", lambda: api.ready(account), what="making ServiceAccounts")
