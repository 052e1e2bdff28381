# SPDX-License-Identifier: Apache-2.0
"""mkdocs hooks: adds the pages at the root of the repository, and handles links that leave the site."""

import os
import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
ROOT_PAGES = ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "STYLE.md"]
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#]*)(#[^)\s]*)?\)")


def on_files(files, config):
    for name in ROOT_PAGES:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Keeps links to pages of the site. Replaces links to other files of the repository by their text."""
    at_root = page.file.src_uri in ROOT_PAGES
    folder = "" if at_root else posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def replace(match):
        text, target, anchor = match.group(1), match.group(2), match.group(3) or ""
        if not target or "://" in target or target.startswith("mailto:"):
            return match.group(0)
        path = posixpath.normpath(posixpath.join(folder, target))
        if not os.path.exists(ROOT / path):
            raise ValueError(f"{page.file.src_uri}: the link to {target} leads nowhere")
        uri = path if path in ROOT_PAGES else path.removeprefix("docs/") if path.startswith("docs/") else ""
        if not uri or files.get_file_from_path(uri) is None:
            return text if "`" in text else f"{text} (`{path}`)"
        start = posixpath.dirname(page.file.src_uri) or "."
        return f"[{text}]({posixpath.relpath(uri, start)}{anchor})"

    return LINK.sub(replace, markdown)
