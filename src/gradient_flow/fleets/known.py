"""What is known of a folder's runs from an earlier `gradient-flow fleet`: for those who list runs and judge none."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from gradient_flow.errors import MissingExtraError
from gradient_flow.fleets.digest import DIGEST, rules_in_force
from gradient_flow.fleets.store import Store, arrow, home_of

_WANTED: Final = (
    *("run", "state", "healthy", "verdict", "message", "type", "cause", "severity", "layer", "since", "loss", "lr"),
    *("last_step", "seconds", "started", "problem", "settings", "size", "changed", "rules", "digest", "digested"),
)


def known_digests(folder: Path) -> dict[str, dict[str, Any]]:
    """Rows on runs by their path below the folder, as these rules judge them. None without the `fleet` extra."""
    home = home_of(folder)
    try:
        if not home.is_dir():
            return {}
        parquet, store = arrow().parquet, Store(home)
        found: dict[str, dict[str, Any]] = {}
        rules = rules_in_force()
        for part in store.parts():
            for batch in parquet.ParquetFile(store.path(part, "runs")).iter_batches(1000, columns=list(_WANTED)):
                for row in batch.to_pylist(maps_as_pydicts="lossy"):
                    before = found.get(row["run"])
                    if before is None or row["digested"] >= before["digested"]:
                        found[row["run"]] = row
    except (MissingExtraError, OSError, ValueError):  # what cannot be read is judged anew
        return {}
    return {name: row for name, row in found.items() if row["rules"] == rules and row["digest"] == DIGEST}
