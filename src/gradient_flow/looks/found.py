"""What a probe found, as a look keeps it."""

from __future__ import annotations

from typing import Any

from gradient_flow.record.plain import to_plain


def found_by(stats: Any, **settings: Any) -> dict[str, Any]:
    """What a probe found, with the settings that it is to be judged by."""
    return {"stats": to_plain(stats), "settings": to_plain(settings)}
