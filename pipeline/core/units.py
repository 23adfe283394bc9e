"""The two kinds of GB.

A GB of memory is 2³⁰ bytes, as cards are sold. A GB of disk and downloads is 10⁹ bytes, as disks are sold and
hubs count.
"""

MEMORY_GB = 1 << 30
DISK_GB = 10**9
MEMORY_UNIT = "1 GB of memory is 2³⁰ bytes here, as cards are sold"
BOTH_UNITS = f"{MEMORY_UNIT}; of disk and downloads it is 10⁹ bytes."


def memory_gb(size: float, digits: int = 2) -> str:
    """Return bytes of memory in words: 8 × 2³⁰ are "8.00 GB"."""
    return f"{size / MEMORY_GB:.{digits}f} GB"


def disk_gb(size: float, digits: int = 2) -> str:
    """Return bytes on disk, or of a download, in words: 8 × 10⁹ are "8.00 GB"."""
    return f"{size / DISK_GB:.{digits}f} GB"


def size_text(size: float) -> str:
    """Return bytes of files in the unit that suits them: "4.68 GB", "105.5 MB", "3.2 kB", "17 bytes"."""
    for unit, name, digits in ((DISK_GB, "GB", 2), (10**6, "MB", 1), (10**3, "kB", 1)):
        if size >= unit:
            return f"{size / unit:.{digits}f} {name}"
    return f"{size:.0f} byte{'' if size == 1 else 's'}"
