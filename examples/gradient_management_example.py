"""Seven topics of gradient management: `python examples/gradient_management_example.py [--out DIR] [--topic NAME]`."""

import argparse
import asyncio
import logging
import textwrap
from pathlib import Path

import torch
from torch import nn

from gradient_flow import (
    EarlyStoppingConfig,
    GradientConfig,
    GradientManagementConfig,
    GradientManager,
    LRSchedulerConfig,
    TrainingOptimizer,
    create_gradient_manager,
    safe_backward,
)

FEATURES, BATCH = 8, 32


def make_model(seed=0):
    """A small network and its optimizer, the same for every topic."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, 1))
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def make_batch(batch=BATCH):
    """Inputs, and targets that a small network can learn."""
    x = torch.randn(batch, FEATURES)
    return x, x[:, :1] + 0.5 * torch.sin(2 * x[:, 1:2])


def say(text, indent="  "):
    """Print a text in lines of at most 80 columns."""
    print(textwrap.fill(str(text), 80, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False))


def basic_clipping(_folder):
    """1. Basic gradient clipping: no step has a larger norm than 1."""
    model, optimizer = make_model()
    manager = GradientManager(GradientConfig(clip_type="norm", max_grad_norm=1.0))
    for scale in (0.1, 1.0, 10.0, 100.0):
        x, y = make_batch()
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), scale * y)
        clipping = manager.step(model, optimizer, loss)["clipping"]
        optimizer.step()
        before, after = clipping["total_norm"], clipping["clipped_norm"]
        print(f"  targets x {scale:<5g} norm {before:8.3f} -> {after:.3f}   kept {clipping['clip_ratio']:.1%}")


def nan_inf_handling(_folder):
    """2. NaN/Inf handling: a bad batch is skipped, and its cause is named."""
    model, optimizer = make_model()
    manager = GradientManager(GradientConfig(nonfinite="skip"))
    for step in range(1, 6):
        x, y = make_batch()
        if step == 3:
            x[5, 2] = float("nan")  # the planted fault: one missing reading
        optimizer.zero_grad()

        def loss_of_this_step(x=x, y=y):
            return nn.functional.mse_loss(model(x), y)

        # With a closure a bad step can be replayed, to find where the NaN came from.
        info = manager.step(model, optimizer, closure=loss_of_this_step)
        optimizer.step()
        if info["nan_inf"]["has_nan_inf"]:
            say(f"step {step}: {info['nan_inf']['nan_count']} NaN gradients, action: {info['nan_inf']['action']}")
            say(info["origin"].message, indent="    ")
    finite = all(parameter.isfinite().all() for parameter in model.parameters())
    print(f"  {manager.guard.skipped} of {manager.total_steps} steps skipped, all weights finite: {finite}")
    with torch.no_grad():
        model[0].bias[0] = float("inf")
    fixed = manager.nan_inf_handler.check_and_fix_parameters(model, replace_values=True)
    print(f"  weights can be checked as well: {fixed['layers']} -> {model[0].bias[0].item():g}")


def adaptive_clipping(_folder):
    """3. Adaptive clipping: the limit follows the norms of the run."""
    model, optimizer = make_model()
    config = GradientConfig(adaptive_clipping=True, adaptive_window_size=50, adaptive_percentile=90.0)
    manager = GradientManager(config)
    print("   step     norm    limit")
    for step in range(1, 301):
        x, y = make_batch()
        if step == 250:
            y = 100 * y  # the planted fault: targets in a wrong unit
        optimizer.zero_grad()
        clipping = manager.step(model, optimizer, nn.functional.mse_loss(model(x), y))["clipping"]
        optimizer.step()
        if step in (1, 20, 80, 160, 249, 250, 251, 300):
            limit = "   (none)" if clipping["threshold"] is None else f"{clipping['threshold']:9.3f}"
            note = f"   clipped to {clipping['clipped_norm']:.3f}" if clipping["clipped"] else ""
            print(f"  {step:5d} {clipping['total_norm']:8.3f}{limit}{note}")
    say(manager.clip_advice())


def health_monitoring(_folder):
    """4. Health monitoring: what is wrong, in which layer, and what to do."""
    model, optimizer = make_model()
    manager = create_gradient_manager(max_grad_norm=1.0)
    for step in range(1, 61):
        x, y = make_batch()
        factor = {40: 1000.0, 50: 0.0}.get(step, 1.0)  # the planted faults: an explosion, and no gradient at all
        optimizer.zero_grad()
        health = manager.step(model, optimizer, factor * nn.functional.mse_loss(model(x), y))["health"]
        optimizer.step()
        for warning, recommendation in zip(health["warnings"], health["recommendations"], strict=True):
            say(f"! {warning}")
            say(f"-> {recommendation}", indent="    ")
    summary = manager.get_training_summary()
    issues, norms = summary["health_issues"], summary["gradient_statistics"]["gradient_norms"]
    print(f"  {issues['unhealthy_steps']} of {summary['total_steps']} steps unhealthy, mean norm {norms['mean']:.3f}")


def integrated_training(_folder):
    """5. Integrated training: schedule, early stopping and managed gradients."""
    model, optimizer = make_model()
    (train_x, train_y), (val_x, val_y) = make_batch(64), make_batch(256)
    train_y = train_y + 0.5 * torch.randn_like(train_y)  # few and noisy: the network overfits and has to be stopped

    def train_func(model, optimizer):
        for x, y in zip(train_x.split(BATCH), train_y.split(BATCH), strict=True):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()  # guarded and clipped: the manager is attached to the optimizer
        return loss

    def val_func(model):
        with torch.no_grad():
            return nn.functional.mse_loss(model(val_x), val_y)

    training = TrainingOptimizer(
        early_stopping_config=EarlyStoppingConfig(patience=10),
        lr_scheduler_config=LRSchedulerConfig(scheduler_type="cosine"),
        gradient_config=GradientManagementConfig(enable_gradient_management=True, max_grad_norm=1.0),
        optimizer=optimizer,
    )
    history = asyncio.run(training.optimize_training(model, train_func, val_func, max_epochs=100))
    for epoch in range(0, len(history["epoch"]), 10):
        losses = f"train {history['train_loss'][epoch]:.4f}, val {history['val_loss'][epoch]:.4f}"
        print(f"  epoch {epoch:3d}: {losses}, learning rate {history['learning_rate'][epoch]:.5f}")
    say(f"stopped: {history['stop_reason'] or 'all epochs done'}")
    say(f"best weights restored: {history['restored_best_weights']}, validation loss now {val_func(model):.4f}")
    say(history["gradient_summary"]["clipping_summary"]["message"])


def visualization(folder):
    """6. Visualization: curves of the run and statistics of its gradients."""
    model, optimizer = make_model()
    manager = GradientManager(GradientConfig(nonfinite="skip"))
    for step in range(1, 201):
        x, y = make_batch()
        if step == 120:
            x[0, 0] = float("nan")
        optimizer.zero_grad()
        manager.step(model, optimizer, nn.functional.mse_loss(model(x), 20 * y if step % 60 == 0 else y))
        optimizer.step()
    manager.plot_training_curves(save_path=folder / "training_curves.png")
    manager.monitor.plot_gradient_statistics(save_path=folder / "gradient_stats.png")
    manager.save_training_log(folder / "training_log.json")
    for name in ("training_curves.png", "gradient_stats.png", "training_log.json"):
        print(f"  {folder / name}")


def safe_backward_utility(_folder):
    """7. Safe backward utility: one call in place of `loss.backward()`."""
    model, optimizer = make_model()
    gradient_manager = create_gradient_manager(max_grad_norm=1.0, enable_monitoring=True, enable_nan_inf_check=True)
    for step in range(1, 121):
        x, y = make_batch()
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        step_info = safe_backward(loss=loss, model=model, optimizer=optimizer, gradient_manager=gradient_manager)
        optimizer.step()
        if step % 40 == 0:
            norm, healthy = step_info["statistics"]["total_norm"], step_info["health"]["healthy"]
            print(f"  step {step:3d}: loss {loss.item():.4f}, norm {norm:.3f}, healthy: {healthy}")
    print(f"  safe to save a checkpoint: {gradient_manager.healthy()}")


TOPICS = {
    "clipping": basic_clipping,
    "nan": nan_inf_handling,
    "adaptive": adaptive_clipping,
    "health": health_monitoring,
    "training": integrated_training,
    "visualization": visualization,
    "safe-backward": safe_backward_utility,
}


def main():
    """All topics, or the one that was asked for."""
    parser = argparse.ArgumentParser(description="Seven topics of gradient management.")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for figures and log (default: here)")
    parser.add_argument("--topic", choices=TOPICS, help="only this one")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the networks are tiny: more threads would wait for each other
    # The manager logs bad steps too; here they are printed.
    logging.getLogger("gradient_flow").setLevel(logging.ERROR)
    for name, topic in TOPICS.items():
        if options.topic in (None, name):
            print(f"\n{topic.__doc__}")
            topic(options.out)


if __name__ == "__main__":
    main()
