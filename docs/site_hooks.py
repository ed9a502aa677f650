"""What mkdocs does beside its own, so that pages look on the site as they do where the repository is read.

Links to files of the repository, which are no part of the site, become plain text. A bar in code in a table is escaped in pages,
as Markdown elsewhere wants it; here it is not.

Standard library only: the site is built in an environment without asyncrl.
"""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page's text without links that leave the docs.

    Raises:
        FileNotFoundError: such a link leads to a file that the repository does not have.
    """
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def plain(link: re.Match[str]) -> str:
        text, path = link[1], (folder / link[2].partition("#")[0]).resolve()
        if path.is_relative_to(ROOT / "docs"):
            return link[0]
        if not path.exists():
            raise FileNotFoundError(f"{page.file.src_uri} links to {link[2]}, which is not there")
        name = str(path.relative_to(ROOT))
        return text if name in text else f"{text} (`{name}`)"

    text = re.sub(r"(?<!!)\[([^\]]+)\]\((\.\./[^)\s]+)\)", plain, markdown)
    return re.sub(
        r"^\|.*$", lambda row: re.sub(r"(`+).+?\1", lambda code: code[0].replace("\\|", "|"), row[0]), text, flags=re.MULTILINE
    )
