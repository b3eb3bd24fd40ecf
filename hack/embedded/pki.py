"""The cluster's certificate authority, its certificates, and a kubeconfig for each client."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path

from .settings import API_SERVICE_IP, NODE_IP, NODE_NAME, Home, write

DAYS = "3650"
SERVER_NAMES = (
    "DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,"
    f"DNS:kubernetes.default.svc.cluster.local,IP:127.0.0.1,IP:{API_SERVICE_IP},IP:{NODE_IP}"
)
# name: subject, subjectAltName
CERTIFICATES = {
    "kube-apiserver": ("/CN=kube-apiserver", SERVER_NAMES),
    "etcd": ("/CN=etcd", "DNS:localhost,IP:127.0.0.1"),
    "kubelet-client": ("/O=system:masters/CN=kube-apiserver-kubelet-client", ""),
    "admin": ("/O=system:masters/CN=admin", ""),
    "kube-controller-manager": ("/CN=system:kube-controller-manager", ""),
    "kube-scheduler": ("/CN=system:kube-scheduler", ""),
    "kubelet": (f"/O=system:nodes/CN=system:node:{NODE_NAME}", f"DNS:{NODE_NAME},IP:{NODE_IP}"),
    "kube-proxy": ("/CN=system:kube-proxy", ""),
    "coredns": ("/CN=halo:coredns", ""),
}
CLIENTS = ("admin", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "coredns")


def ensure_pki(home: Home) -> None:
    """Make what is missing; what is there stays, so that a kubeconfig once handed out remains good."""
    pki = home.root / "pki"
    pki.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = pki / "ca.crt"
    if not authority.exists():
        _key(pki / "ca.key")
        self_signed = ("req", "-x509", "-new", "-days", DAYS, "-subj", "/CN=halo-ca")
        _openssl(*self_signed, "-key", pki / "ca.key", "-out", authority)
    for name, (subject, names) in CERTIFICATES.items():
        if not (pki / f"{name}.crt").exists():
            _certificate(pki, name, subject, names)
    if not (pki / "sa.pub").exists():
        _key(pki / "sa.key")
        _openssl("pkey", "-in", pki / "sa.key", "-pubout", "-out", pki / "sa.pub")
    for name in CLIENTS:
        write(kubeconfig_path(home, name), _kubeconfig(home, name), mode=0o600)


def kubeconfig_path(home: Home, client: str) -> Path:
    return home.root / f"{client}.kubeconfig"


def _key(path: Path) -> None:
    # Elliptic keys: made in milliseconds, where RSA ones would be most of the time that `up` takes.
    _openssl("ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", path)
    path.chmod(0o600)


def _certificate(pki: Path, name: str, subject: str, names: str) -> None:
    _key(pki / f"{name}.key")
    request, extensions = pki / f"{name}.csr", pki / f"{name}.ext"
    lines = ["keyUsage=digitalSignature", "extendedKeyUsage=serverAuth,clientAuth"]
    extensions.write_text("\n".join([*lines, *([f"subjectAltName={names}"] if names else [])]) + "\n")
    _openssl("req", "-new", "-key", pki / f"{name}.key", "-out", request, "-subj", subject)
    signed = pki / f".{name}.crt"
    authority = ("-CA", pki / "ca.crt", "-CAkey", pki / "ca.key", "-CAcreateserial")
    _openssl("x509", "-req", "-in", request, *authority, "-days", DAYS, "-extfile", extensions, "-out", signed)
    signed.rename(pki / f"{name}.crt")
    request.unlink()
    extensions.unlink()


def _kubeconfig(home: Home, client: str) -> str:
    """Certificates are embedded: the file works wherever it is copied to on this machine. JSON is YAML."""
    pki = home.root / "pki"

    def embedded(name: str) -> str:
        return base64.b64encode((pki / name).read_bytes()).decode()

    context = f"halo-{home.name}"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context,
        "contexts": [{"name": context, "context": {"cluster": context, "user": client}}],
        "clusters": [
            {"name": context, "cluster": {"server": home.api_url, "certificate-authority-data": embedded("ca.crt")}}
        ],
        "users": [
            {
                "name": client,
                "user": {
                    "client-certificate-data": embedded(f"{client}.crt"),
                    "client-key-data": embedded(f"{client}.key"),
                },
            }
        ],
    }
    return json.dumps(config, indent=1) + "\n"


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
