"""Numbers with units, for people: `format_bytes(3_400_000)` is "3.2 MiB"; nothing else lives here."""

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")


def format_bytes(num_bytes: float) -> str:
    """Returns a size such as "3.2 GiB"; whole bytes below one KiB."""
    size = float(num_bytes)
    for unit in _BINARY[:-1]:
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_BINARY[-1]}"


def format_seconds(seconds: float) -> str:
    """Returns a duration such as "41 ms", "3.2 s" or "2 min 05 s"."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def format_count(count: int) -> str:
    """Returns a count with thousands separated, such as "1,473,932"."""
    return f"{count:,}"
