"""`GradientManagerCallback`: guard, clip and health for a Lightning run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gradient_flow.act.attachment import Attachment
from gradient_flow.config import GradientConfig
from gradient_flow.errors import InputError, MissingExtraError, warn
from gradient_flow.faces.manager import GradientManager
from gradient_flow.integrations.lightning import GradientStatisticsCallback

try:
    from lightning.pytorch.callbacks import Callback
except ImportError as problem:
    raise MissingExtraError("lightning") from problem

if TYPE_CHECKING:
    import torch


class GradientManagerCallback(Callback):
    """Manages every optimizer step of a Trainer, before the Trainer's own clipping.

    When gradients are not finite the training step is replayed on the same batch, and the operation that made them is
    named in a warning and kept in `manager.origins`. `explain=False` switches the replay off. During a replay
    `self.log` does nothing; metrics that the training step updates see the batch once more.

    >>> from gradient_flow import GradientConfig
    >>> GradientManagerCallback(GradientConfig(clip_type="zclip", nonfinite="skip")).manager.config.nonfinite
    'skip'
    """

    def __init__(self, config: GradientConfig | GradientManager | None = None, *, explain: bool = True) -> None:
        super().__init__()
        if config is not None and not isinstance(config, (GradientConfig, GradientManager)):
            raise InputError(f"`config` must be a GradientConfig or a GradientManager, got {type(config).__name__}.")
        self.manager = config if isinstance(config, GradientManager) else GradientManager(config)
        self.explain = explain
        self._attachment: Attachment | None = None
        self._batch: tuple[Any, int] | None = None
        self._loss: Any = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Come behind the statistics, in whatever order both were given: those are of gradients before any clipping."""
        watching = [each for each in trainer.callbacks if isinstance(each, GradientStatisticsCallback)]
        if not watching:
            return
        others = [each for each in trainer.callbacks if each is not self]
        behind = 1 + max(at for at, each in enumerate(others) if each is watching[-1])
        if any(each is self for each in trainer.callbacks[:behind]):
            # A new list: the Trainer is going through the old one.
            trainer.callbacks = [*others[:behind], self, *others[behind:]]

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Know the model, the loss scaler and the schedules that move with every step."""
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        per_step = [config.scheduler for config in trainer.lr_scheduler_configs if config.interval == "step"]
        self._attachment = Attachment(self.manager, pl_module, scaler=scaler, scheduler=per_step)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Keep what a replay would need: the batch, which is alive anyway, and the random state."""
        if self.explain and pl_module.automatic_optimization:
            self._batch = batch, batch_idx
            self.manager.mark_step_start()

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Keep the loss of this step; what the Trainer logs may be of another, or a mean."""
        self._loss = loss.detach()

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: torch.optim.Optimizer) -> None:
        """Guard and clip."""
        if self._attachment is None:
            return
        found = len(self.manager.origins)
        closure = self._replay(pl_module) if self._batch is not None else None
        self._attachment.before_step(optimizer, self._loss, closure=closure)
        for origin in self.manager.origins[found:]:
            warn(str(origin), stacklevel=2)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Nothing of ours stays on an optimizer between steps."""
        self._batch = self._loss = None
        for optimizer in trainer.optimizers:
            if self._attachment is not None:
                self._attachment.after_step(optimizer)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Let go of the model."""
        if self._attachment is not None:
            self._attachment.close()
        self._attachment = self._batch = self._loss = None

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The Trainer tears nothing down after an error."""
        self.teardown(trainer, pl_module, "fit")

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs."""
        return self.manager.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.manager.load_state_dict(state_dict)

    def _replay(self, pl_module: Any) -> Callable[[], Any]:
        assert self._batch is not None
        batch, batch_idx = self._batch

        def training_step() -> Any:
            with _without_logging(pl_module):
                return pl_module.training_step(batch, batch_idx)

        return training_step


@contextmanager
def _without_logging(pl_module: Any) -> Iterator[None]:
    """Values of a replayed step are not values of the run."""
    silenced = {name: vars(pl_module).get(name) for name in ("log", "log_dict")}
    try:
        for name in silenced:
            object.__setattr__(pl_module, name, lambda *_args, **_kwargs: None)
        yield
    finally:
        for name, before in silenced.items():
            if before is None:
                object.__delattr__(pl_module, name)
            else:
                object.__setattr__(pl_module, name, before)
