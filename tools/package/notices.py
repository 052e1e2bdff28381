#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the binary has in it of others: their licences, and a bill of materials in SPDX 2.3.

    tools/package/notices.py --version VERSION [--cuda] FOLDER      writes THIRD_PARTY_NOTICES.txt and sbom.spdx.json

Debian's packages with the versions installed here, the crates of rust/textkit/Cargo.lock, the Rust standard library, and with
--cuda the pinned wheels of tools/fetch_cuda.py. A licence text that several share is printed once.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import fetch_cuda  # noqa: E402

# Of each the static library or the headers are in the binary; a list names alternatives, the first that is installed.
DEBIAN = {
    "libboost-dev": (["libboost1.81-dev", "libboost1.83-dev"], "BSL-1.0"),
    "libbsd-dev": (["libbsd-dev"], "BSD-3-Clause"),
    "libcli11-dev": (["libcli11-dev"], "BSD-3-Clause"),
    "libedit-dev": (["libedit-dev"], "BSD-3-Clause"),
    "libexpected-dev": (["libexpected-dev"], "CC0-1.0"),
    "libfmt-dev": (["libfmt-dev"], "MIT"),
    "libmd-dev": (["libmd-dev"], "BSD-3-Clause"),
    "libncurses-dev": (["libncurses-dev"], "X11"),
    "libspdlog-dev": (["libspdlog-dev"], "MIT"),
    "libssl-dev": (["libssl-dev"], "Apache-2.0"),
    "libstdc++-dev": (["libstdc++-12-dev", "libstdc++-13-dev", "libstdc++-14-dev"], "GPL-3.0-or-later WITH GCC-exception-3.1"),
    "libyaml-cpp-dev": (["libyaml-cpp-dev"], "MIT"),
    "nlohmann-json3-dev": (["nlohmann-json3-dev"], "MIT"),
}
# What OpenSSL needs from 3.2 on.
DEBIAN_OF_NEWER_OPENSSL = {"libzstd-dev": (["libzstd-dev"], "BSD-3-Clause"), "zlib1g-dev": (["zlib1g-dev"], "Zlib")}
# Of fetch_cuda.LINKED.
WHEELS = {
    "nvidia-cuda-runtime": "LicenseRef-NVIDIA-CUDA-EULA",
    "nvidia-cuda-cccl": "Apache-2.0 WITH LLVM-exception",
    "flashinfer-python": "Apache-2.0",
}
LICENCE_FILE = re.compile(r"(LICEN[SC]E|COPYING|NOTICE|UNLICENSE)", re.IGNORECASE)


@dataclass(frozen=True)
class Part:
    name: str
    version: str
    licence: str  # an SPDX expression
    purl: str
    texts: tuple[str, ...]


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip()


def debian_text(package: str) -> str:
    text = Path(f"/usr/share/doc/{package}/copyright").read_text(encoding="utf-8", errors="replace")
    if "boost" in package:  # two megabytes, of which our part is under the first licence text of that name
        found = re.search(r"^License: BSL-1\.0\n((?:[ \t].*\n)+)", text, re.MULTILINE)
        if not found:
            raise ValueError(f"{package}: its copyright file has no BSL-1.0")
        return found.group(1)
    return text


def debian_parts() -> list[Part]:
    parts = []
    openssl = output_of("dpkg-query", "--show", "--showformat=${Version}", "libssl-dev")
    newer = tuple(map(int, openssl.split(".")[:2])) >= (3, 2)
    for names, licence in (DEBIAN | (DEBIAN_OF_NEWER_OPENSSL if newer else {})).values():
        name = next((name for name in names if Path(f"/usr/share/doc/{name}/copyright").is_file()), None)
        if name is None:
            raise ValueError(f"none of {', '.join(names)} is installed")
        version = output_of("dpkg-query", "--show", "--showformat=${Version}", name)
        parts.append(Part(name, version, licence, f"pkg:deb/debian/{name}@{version}", (debian_text(name),)))
    return parts


def crate_parts() -> list[Part]:
    """The crates that are linked: neither those that only build or test, nor our own."""
    target = output_of("rustc", "--print", "host-tuple")
    manifest = str(ROOT / "rust/textkit/Cargo.toml")
    data = json.loads(output_of("cargo", "metadata", "--locked", "--format-version=1", f"--filter-platform={target}", f"--manifest-path={manifest}"))
    packages = {package["id"]: package for package in data["packages"]}
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
    linked, to_visit = set(), [data["resolve"]["root"]]
    while to_visit:
        crate = to_visit.pop()
        if crate not in linked:
            linked.add(crate)
            to_visit += [dep["pkg"] for dep in nodes[crate]["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
    parts = []
    for package in sorted((packages[crate] for crate in linked), key=lambda package: (package["name"], package["version"])):
        name, version = package["name"], package["version"]
        if package["source"] is None:
            continue
        folder = Path(package["manifest_path"]).parent
        texts = tuple(path.read_text(encoding="utf-8") for path in sorted(folder.iterdir()) if path.is_file() and LICENCE_FILE.match(path.name))
        if not texts:
            raise ValueError(f"the crate {name} {version} has no licence file")
        licence = re.sub(r"\s*/\s*", " OR ", package["license"])  # as crates wrote it before SPDX
        parts.append(Part(name, version, licence, f"pkg:cargo/{name}@{version}", texts))
    return parts


def rust_part() -> Part:
    version = output_of("rustc", "--version").split()[1]
    places = [Path(output_of("rustc", "--print", "sysroot")) / "share/doc/rust/COPYRIGHT-library.html", Path("/usr/share/doc/rustc-web/copyright"), Path("/usr/share/doc/rustc/copyright")]
    place = next((place for place in places if place.is_file()), None)
    if place is None:
        raise ValueError(f"no copyright file of Rust's library in {', '.join(map(str, places))}")
    text = re.sub(r"<[^>]*>", "", place.read_text(encoding="utf-8"))
    text = re.sub(r"\n\s*\n+", "\n\n", text.replace("&gt;", ">").replace("&lt;", "<").replace("&quot;", '"').replace("&amp;", "&"))
    return Part("rust-std", version, "MIT OR Apache-2.0", f"pkg:generic/rust-std@{version}", (text,))


def cuda_parts() -> list[Part]:
    bundle = fetch_cuda.BUNDLES["licences"]
    folder = fetch_cuda.fetch(bundle, fetch_cuda.cache_dir())
    parts = []
    for wheel in bundle.wheels:
        name, version = wheel.requirement.split("==")
        files = sorted((folder / fetch_cuda.licence_folder(wheel)).rglob("*"))
        texts = tuple(path.read_text(encoding="utf-8") for path in files if path.is_file() and LICENCE_FILE.match(path.name))
        if not texts:
            raise ValueError(f"the wheel {name} {version} has no licence file")
        parts.append(Part(name, version, WHEELS[name], f"pkg:pypi/{name}@{version}", texts))
    header = (folder / fetch_cuda.CUTLASS_HEADER).read_text(encoding="utf-8")
    licence = re.sub(r"^ \* ?|[ *]+$", "", header[header.index("Copyright") : header.index("*/")], flags=re.MULTILINE)
    flashinfer = parts[-1]
    return [*parts, Part("cutlass", f"in {flashinfer.name} {flashinfer.version}", "BSD-3-Clause", flashinfer.purl, (licence,))]


def notices(parts: list[Part]) -> str:
    owners: dict[str, list[Part]] = {}
    for part in parts:
        for text in part.texts:
            owners.setdefault(text.strip() + "\n", []).append(part)
    lines = ["warprow is under the Apache License 2.0 (LICENSE). Its binary has in it, under their own licences:\n"]
    lines += [f"  {part.name} {part.version}: {part.licence}" for part in parts]
    for text, those in owners.items():
        lines += ["", "-" * 80, *[f"{part.name} {part.version}" for part in those], "-" * 80, "", text.rstrip()]
    return "\n".join(lines) + "\n"


def spdx_id(part: Part) -> str:
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", f"{part.name}-{part.version}")


def sbom(version: str, parts: list[Part]) -> dict:
    created = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), timezone.utc)
    digest = hashlib.sha256(repr([(part.purl, part.licence) for part in parts]).encode()).hexdigest()
    own = {"name": "warprow", "SPDXID": "SPDXRef-warprow", "versionInfo": version, "downloadLocation": "NOASSERTION"}
    own |= {"filesAnalyzed": False, "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0", "copyrightText": "NOASSERTION"}
    packages = [own] + [
        {
            "name": part.name,
            "SPDXID": spdx_id(part),
            "versionInfo": part.version,
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False,
            "licenseConcluded": "NOASSERTION",
            "licenseDeclared": part.licence,
            "copyrightText": "NOASSERTION",
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": part.purl}],
        }
        for part in parts
    ]
    relations = [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-warprow"}]
    relations += [{"spdxElementId": "SPDXRef-warprow", "relationshipType": "STATIC_LINK", "relatedSpdxElement": spdx_id(part)} for part in parts]
    document = {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"warprow-{version}"}
    document["documentNamespace"] = f"urn:sha256:{digest}"
    document["creationInfo"] = {"created": created.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": ["Tool: tools/package/notices.py"]}
    if any("LicenseRef-NVIDIA-CUDA-EULA" in part.licence for part in parts):
        document["hasExtractedLicensingInfos"] = [
            {"licenseId": "LicenseRef-NVIDIA-CUDA-EULA", "extractedText": "The CUDA Toolkit End User License Agreement, which lets cudart_static be distributed as a part of a program."}
        ]
    return document | {"packages": packages, "relationships": relations}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--version", required=True)
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("folder", type=Path)
    args = parser.parse_args(argv)
    parts = debian_parts() + crate_parts() + [rust_part()] + (cuda_parts() if args.cuda else [])
    args.folder.mkdir(parents=True, exist_ok=True)
    (args.folder / "THIRD_PARTY_NOTICES.txt").write_text(notices(parts), encoding="utf-8")
    (args.folder / "sbom.spdx.json").write_text(json.dumps(sbom(args.version, parts), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
