"""Links to pages of the docs: code names a page by its path in the checkout, a page links to it."""

import os.path
import re


def linked(text: str, folder: str) -> str:
    """Text in which each path of a page is a link, for a page in ``folder`` of the docs; what is in code stays."""

    def link(found: re.Match[str]) -> str:
        page = found[1]
        return f"[{page.rpartition('/')[2].replace('-', ' ')}]({os.path.relpath(f'{page}.md', folder)})"

    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"docs/([\w/-]+)\.md", link, part) for part in parts)
