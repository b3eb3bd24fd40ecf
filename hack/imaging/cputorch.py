"""A CPU build of torch for machines that reach a package registry but not torch's own CPU index.

The registry's torch is the CUDA build: 0.5 GB, and 4 GB more of CUDA libraries that a machine without a GPU only loads and never
uses. This module fetches that wheel and adds small stand-ins to it, in which every function answers 100 ("no device"), plus the
real `libcudart`, which answers "no device" by itself. The result is one wheel, `torch-X+cpu`, that installs anywhere with pip.
Images for GPUs never see it.
"""

from __future__ import annotations

import base64
import hashlib
import re
import sys
import tempfile
import zipfile
from pathlib import Path

from .common import Trouble, need, run

SYMBOLS = Path(__file__).with_name("cuda-symbols.txt")
NO_DEVICE = 100
ACCELERATOR_PACKAGE = re.compile(r"Requires-Dist: (nvidia-|cuda-|triton)")


def fetch(pin: str, wheels: Path) -> None:
    """Put the CPU build of the pinned torch into the wheelhouse."""
    with tempfile.TemporaryDirectory(dir=wheels, prefix=".fetch-") as scratch:
        here = Path(scratch)
        wheel = _download(pin, here)
        with zipfile.ZipFile(wheel) as archive:
            metadata = archive.read(next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))).decode()
        if ACCELERATOR_PACKAGE.search(metadata):
            libraries = {**_stand_ins(here), **_cuda_runtime(metadata, here)}
            wheel = _with_libraries(wheel, libraries)
        wheel.chmod(0o644)
        wheel.rename(wheels / wheel.name)


def _download(pin: str, into: Path) -> Path:
    before = set(into.glob("*.whl"))
    run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", into, pin)
    return (set(into.glob("*.whl")) - before).pop()


def _cuda_runtime(metadata: str, scratch: Path) -> dict[str, bytes]:
    """The real CUDA runtime library: torch asks it for the number of devices."""
    toolkit = re.search(r"Requires-Dist: cuda-toolkit\[.*cudart.*\]==([\d.]+)", metadata)
    if toolkit is None:
        raise Trouble(
            "this torch names no cuda-toolkit; teach `hack/imaging/cputorch.py` how it names the CUDA runtime"
        )
    with zipfile.ZipFile(_download(f"cuda-toolkit=={toolkit[1]}", scratch)) as archive:
        names = archive.read(next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))).decode()
    runtime = re.search(r"Requires-Dist: (nvidia-cuda-runtime)==([\w.*]+)", names)
    if runtime is None:
        raise Trouble("cuda-toolkit names no nvidia-cuda-runtime; teach `hack/imaging/cputorch.py` how it names it")
    with zipfile.ZipFile(_download(f"{runtime[1]}=={runtime[2]}", scratch)) as archive:
        library = next(n for n in archive.namelist() if re.search(r"/libcudart\.so\.\d+$", n))
        return {library.rsplit("/", 1)[1]: archive.read(library)}


def _stand_ins(scratch: Path) -> dict[str, bytes]:
    """One shared library for each line `soname version-node symbols...` of the list."""
    need(cc="gcc libc6-dev")
    libraries = {}
    for line in SYMBOLS.read_text().splitlines():
        if line.startswith("#"):
            continue
        soname, node, *symbols = line.split()
        source, version_map, library = scratch / "s.c", scratch / "s.map", scratch / soname
        source.write_text("".join(f"long {symbol}(void) {{ return {NO_DEVICE}; }}\n" for symbol in symbols))
        flags = ["-w", "-O1", "-fno-builtin", "-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{soname}"]
        if node != "-":
            version_map.write_text(f"{node} {{ global: {' '.join(f'{s};' for s in symbols)} }};\n")
            flags.append(f"-Wl,--version-script={version_map}")
        run("cc", *flags, "-o", library, source)
        libraries[soname] = library.read_bytes()
    return libraries


def _with_libraries(wheel: Path, libraries: dict[str, bytes]) -> Path:
    """Add the libraries to the wheel in place and rename it to the local version `+cpu`.

    Only the archive's end is written: its big members keep their compressed bytes.
    """
    version = wheel.name.split("-")[1]
    old, new = f"torch-{version}.dist-info/", f"torch-{version}+cpu.dist-info/"
    with zipfile.ZipFile(wheel, "a", zipfile.ZIP_DEFLATED) as archive:
        information = [i for i in archive.infolist() if i.filename.startswith(old)]
        members = {i.filename.replace(old, new, 1): archive.read(i) for i in information if not i.is_dir()}
        for info in information:
            archive.filelist.remove(info)
            del archive.NameToInfo[info.filename]
        record = members.pop(f"{new}RECORD").decode().replace(old, new)
        metadata = members[f"{new}METADATA"].decode()
        metadata = metadata.replace(f"\nVersion: {version}\n", f"\nVersion: {version}+cpu\n", 1)
        head, _, description = metadata.partition("\n\n")
        head = "\n".join(line for line in head.splitlines() if not ACCELERATOR_PACKAGE.match(line))
        members[f"{new}METADATA"] = f"{head}\n\n{description}".encode()
        members.update({f"torch/lib/{name}": data for name, data in libraries.items()})
        rows = [row for row in record.splitlines() if row.split(",")[0] not in members]
        rows += [f"{name},{_record_hash(data)},{len(data)}" for name, data in members.items()]
        members[f"{new}RECORD"] = ("\n".join(rows) + "\n").encode()
        for name, data in members.items():
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.external_attr = (0o100755 if name.startswith("torch/lib/") else 0o100644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return wheel.rename(wheel.with_name(wheel.name.replace(f"-{version}-", f"-{version}+cpu-", 1)))


def _record_hash(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
