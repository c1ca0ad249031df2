"""How far a run is: what everybody who has a part in a step shares."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from gradient_flow.table import GradientTable

if TYPE_CHECKING:
    from gradient_flow.table.kernels.native import InPlace


class Progress:
    """Steps so far, and the last of them."""

    __slots__ = ("clipped_table", "logged", "rows", "steps", "table", "thread")

    def __init__(self) -> None:
        self.steps = 0
        """Optimizer steps so far, recorded or not."""
        self.logged: dict[str, Any] = {}
        """What the user logged for the coming step."""
        self.thread = threading.get_ident()
        """The one that took the last step."""
        self.table: GradientTable | None = None
        """The gradients of the last recorded step, as backward left them."""
        self.rows: InPlace | None = None
        """The same where that was an ordinary step; a table is made of them when somebody asks."""
        self.clipped_table: GradientTable | None = None
        """The same after clipping, where the step was clipped."""

    def take_logged(self) -> dict[str, Any]:
        """What was logged, which is then of the past."""
        logged, self.logged = self.logged, {}
        return logged

    def put_tables(self, table: GradientTable, clipped: GradientTable | None) -> None:
        """What a step that took the general way was measured as."""
        self.table, self.rows, self.clipped_table = table, None, clipped
