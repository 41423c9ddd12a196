"""Makes of pages what forges make of them."""
import re


def on_page_content(html, **_):
    """In a table `\\|` is a bar, also in code; Python-Markdown leaves the backslash there."""
    return re.sub(r"<(t[dh])\b.*?</\1>", lambda cell: cell[0].replace("\\|", "|"), html, flags=re.DOTALL)
