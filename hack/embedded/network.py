"""The node's plumbing: a bridge with the node's address, kernel settings, packet filter rules; and its removal."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from contextlib import suppress
from ipaddress import ip_address, ip_network
from pathlib import Path

from .settings import BRIDGE, NODE_CIDR, NODE_IP, POD_CIDR, Home, Problem, write

NETWORK = "halo"
# A fixed address: a bridge without one takes its ports' lowest and so changes it under the pods' feet.
BRIDGE_MAC = "0a:58:0a:f4:00:01"
# What kubelet, kube-proxy and the bridge plugin change on a machine; `down` puts the old values back.
KERNEL_SETTINGS = (
    "net/ipv4/ip_forward",
    "net/ipv4/conf/all/route_localnet",
    "net/netfilter/nf_conntrack_tcp_timeout_established",
    "net/netfilter/nf_conntrack_tcp_timeout_close_wait",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
FORWARD_RULES = (("-i", BRIDGE, "-j", "ACCEPT"), ("-o", BRIDGE, "-j", "ACCEPT"))


def plug(home: Home) -> None:
    """Make the bridge and remember the kernel's settings; does nothing where that is done."""
    _remember_kernel_settings(home.root / "kernel.json")
    links = {link["ifname"]: link for link in json.loads(_run("ip", "-j", "address") or "[]")}
    for name, link in links.items():
        if name != BRIDGE and any(a.get("local", "").startswith("10.244.") for a in link.get("addr_info", ())):
            raise Problem(f"{name} has an address of {POD_CIDR}, which pods need: stop what made it first.")
    if BRIDGE not in links:
        _run("ip", "link", "add", BRIDGE, "address", BRIDGE_MAC, "type", "bridge")
    if not any(a.get("local") == NODE_IP for a in links.get(BRIDGE, {}).get("addr_info", ())):
        _run("ip", "address", "replace", f"{NODE_IP}/24", "dev", BRIDGE)
    _run("ip", "link", "set", BRIDGE, "up")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    # Where something (Docker, say) has set the policy of FORWARD to drop, pods would reach nothing.
    for rule in FORWARD_RULES:
        if _fails("iptables", "-w", "-C", "FORWARD", *rule):
            _run("iptables", "-w", "-I", "FORWARD", *rule)


def unplug(home: Home) -> None:
    """Remove everything that `plug` and the cluster's components have put on the machine's network."""
    for namespace in Path("/run/netns").glob("cni-*"):
        # An address of our range makes it a pod of ours whose end nobody saw; its interfaces go with it.
        addresses = _run("ip", "-n", namespace.name, "-4", "-brief", "address", check=False)
        if any(ip_address(found) in ip_network(NODE_CIDR) for found in re.findall(r"([\d.]+)/", addresses)):
            _run("ip", "netns", "delete", namespace.name, check=False)
    _run("ip", "link", "delete", BRIDGE, check=False)
    for family in ("iptables", "ip6tables"):
        _remove_rules(family)
    for result in Path("/var/lib/cni/results").glob(f"{NETWORK}-*"):
        result.unlink(missing_ok=True)
    for directory in ("/var/lib/cni/results", "/var/lib/cni"):
        with suppress(OSError):
            os.rmdir(directory)
    _restore_kernel_settings(home.root / "kernel.json")


def plugin_directory() -> Path:
    for candidate in ("/usr/lib/cni", "/opt/cni/bin"):
        if (Path(candidate) / "bridge").exists():
            return Path(candidate)
    raise Problem("The CNI plugins are missing: install containernetworking-plugins or unpack them into /opt/cni/bin.")


def cni_configuration(home: Home) -> str:
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(home.root / "cni-addresses"),
            "ranges": [[{"subnet": NODE_CIDR}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "0.4.0", "name": NETWORK, "plugins": [bridge, portmap]}, indent=1) + "\n"


def packets_of_bridges_are_filtered() -> bool:
    """Whether netfilter sees traffic between two ports of a bridge, without which answers from Services go astray."""
    setting = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
    if not setting.exists() and shutil.which("modprobe"):
        _run("modprobe", "br_netfilter", check=False)
    return setting.exists() and setting.read_text().strip() == "1"


def _remove_rules(family: str) -> None:
    """Delete the chains of kube-proxy, kubelet and our CNI network, and the rules that lead to them."""
    saved = _run(f"{family}-save", check=False)
    for table in re.split(r"(?m)^(?=\*)", saved):
        if not table.startswith("*"):
            continue
        lines = table.splitlines()
        chains = [line[1:].split()[0] for line in lines if line.startswith(":")]
        rules = [line for line in lines if line.startswith("-A ")]
        own_comment = f'name: \\"{NETWORK}\\"'
        of_network = {chain for rule in rules if own_comment in rule for chain in re.findall(r"CNI-[-\w]+", rule)}
        of_network -= {chain for chain in of_network if chain.startswith("CNI-HOSTPORT")}
        ours = {chain for chain in chains if chain.startswith("KUBE-") or chain in of_network}
        if not any(chain.startswith("CNI-DN-") and chain not in ours for chain in chains):
            ours |= {chain for chain in chains if chain.startswith("CNI-HOSTPORT-")}
        leading = [
            rule
            for rule in rules
            if rule.split()[1] not in ours
            and (ours & set(re.findall(r"-[jg] (\S+)", rule)) or f" {BRIDGE} " in rule or own_comment in rule)
        ]
        if not ours and not leading:
            continue
        commands = [
            lines[0],
            *(rule.replace("-A ", "-D ", 1) for rule in leading),
            *(f"-F {chain}" for chain in sorted(ours)),
            *(f"-X {chain}" for chain in sorted(ours)),
            "COMMIT",
        ]
        _run(f"{family}-restore", "-w", "--noflush", text="\n".join(commands) + "\n", check=False)


def _remember_kernel_settings(file: Path) -> None:
    if not file.exists():
        present = (name for name in KERNEL_SETTINGS if (Path("/proc/sys") / name).exists())
        values = {name: (Path("/proc/sys") / name).read_text().strip() for name in present}
        write(file, json.dumps(values, indent=1) + "\n")


def _restore_kernel_settings(file: Path) -> None:
    if not file.exists():
        return
    for name, value in json.loads(file.read_text()).items():
        setting = Path("/proc/sys") / name
        if setting.exists() and setting.read_text().strip() != value:
            setting.write_text(value)
    file.unlink()


def _fails(*command: str) -> bool:
    return subprocess.run(command, capture_output=True).returncode != 0


def _run(*command: str, text: str | None = None, check: bool = True) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if check and done.returncode:
        raise Problem(
            f"`{' '.join(command)}` failed ({done.stderr.strip()}): the node needs root, bridges and iptables."
        )
    return done.stdout
