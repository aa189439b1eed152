"""Hooks of mkdocs: add the pages that lie outside docs/, write the reference, and keep links within the site.

Documents link to each other as files of the repository, so that they can be read there. On the site, a link to a file
that has a page leads to the page; a link to another file of the repository becomes plain text.
"""

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import reference

ROOT = Path(__file__).parents[2]
# Files of the repository outside docs/, and their pages.
PAGES = {
    "README.md": "index.md",
    "README.zh-CN.md": "zh.md",
    "ARCHITECTURE.md": "ARCHITECTURE.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "src/vitrine/checkpoints/box/README.md": "bundled-model.md",
    "weights/README.md": "weights.md",
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|mailto:|#)([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add generated pages to those in docs/."""
    for source, page in PAGES.items():
        text = re.sub(r"\A---\n.*?\n---\n", "", (ROOT / source).read_text(encoding="utf-8"), flags=re.DOTALL)
        # Their lists of commands need the width of the contents on the right.
        front = "---\nhide: [toc]\n---\n" if page in ("index.md", "zh.md") else ""
        files.append(File.generated(config, page, content=front + text))
    files.append(File.generated(config, "reference/api.md", content=reference.api_page()))
    files.append(File.generated(config, "reference/cli.md", content=reference.cli_page()))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Turn links between files of the repository into links between pages."""
    origins = {target: source for source, target in PAGES.items()}
    if page.file.src_uri.startswith("reference/"):
        return markdown
    origin = origins.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def replaced(link: re.Match[str]) -> str:
        mark, text, target = link.groups()
        path, hash_mark, anchor = target.partition("#")
        in_repository = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
        uri = PAGES.get(in_repository, in_repository.removeprefix("docs/"))
        if files.get_file_from_path(uri) is None:
            return text
        relative = posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".")
        return f"{mark}[{text}]({relative}{hash_mark}{anchor})"

    return LINK.sub(replaced, markdown)
