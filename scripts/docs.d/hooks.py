"""Makes of pages what forges make of them, and says which of them a search should find last."""
import re


def on_page_markdown(markdown, page, **_):
    """What changed at some time names everything, and what there is comes before why it is so."""
    if page.file.src_uri == "CHANGELOG.md":
        page.meta["search"] = {"boost": 0.1}
    elif page.file.src_uri.startswith("docs/development/"):
        page.meta["search"] = {"boost": 0.5}


def on_page_content(html, **_):
    """In a table `\\|` is a bar, also in code; Python-Markdown leaves the backslash there."""
    return re.sub(r"<(t[dh])\b.*?</\1>", lambda cell: cell[0].replace("\\|", "|"), html, flags=re.DOTALL)
