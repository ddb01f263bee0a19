"""README and the pages in docs/, and the blocks of code in them."""

import re
import shlex
from pathlib import Path

REPOSITORY_DIR = Path(__file__).parent.parent
PAGE_PATHS = (REPOSITORY_DIR / "README.md", *REPOSITORY_DIR.glob("docs/*.md"))
PAGES = {path.relative_to(REPOSITORY_DIR).as_posix(): path.read_text() for path in PAGE_PATHS}
BLOCK = re.compile(
    r"^(<!-- not run: .+ -->\n)?```(python|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE
)


def find_blocks(page, language):
    """Find the blocks of a page that are in a language and are to be checked."""
    blocks = []
    for mark, block_language, text in BLOCK.findall(PAGES[page]):
        if block_language == language and not mark:
            blocks.append(text)
    return blocks


def find_commands(block):
    """Find the words after `scannet-prep`, also in pipes and in quoted commands for a shell."""
    for line in block.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.wordchars += "@:,%"
        words = []
        for word in [*lexer, ";"]:
            if set(word) <= set("|&;<>()"):
                if "scannet-prep" in words:
                    yield words[words.index("scannet-prep") + 1 :]
                words = []
            elif " " in word:
                yield from find_commands(word)
            else:
                words.append(word)


def find_anchors(text):
    """Find the anchors of all headings, as GitHub makes them."""
    without_code = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", without_code, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
