"""What a lock file pins: packages by version and hash, as pip reads them."""

import re


def lines_of(package: str, lock: str) -> str:
    """The requirement of one package with its hashes, cut out of a lock file's text; "" if it is not in
    it.
    """
    pinned = re.search(rf"^{re.escape(package)}==.*(?:\n[ \t].*)*", lock, re.MULTILINE)
    return pinned[0] + "\n" if pinned else ""
