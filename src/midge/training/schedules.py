"""Learning rates as pure functions of the step."""

from __future__ import annotations

from midge.training.config import TrainingConfig


def learning_rate(config: TrainingConfig, step: int) -> float:
    """The learning rate of a step.

    With peak p, warm-up w and N steps, the rate of step s is p s / w up to w, and then

        p sqrt(w / s)                   for the Transformer's schedule
        p (N + 1 - s) / (N + 1 - w)     for "warmup-decay": 0 would be reached after the last step

    Args:
        config: the schedule.
        step: from 1 to num_steps.

    Example:
        >>> config = TrainingConfig(num_steps=4, num_warmup_steps=2, learning_rate=1.0)
        >>> [round(learning_rate(config, step), 2) for step in (1, 2, 3, 4)]
        [0.5, 1.0, 0.67, 0.33]
    """
    warmup = max(config.warmup_steps, 1)
    if step <= warmup:
        return config.learning_rate * step / warmup
    if config.schedule == "transformer":
        return float(config.learning_rate * (warmup / step) ** 0.5)
    left = config.num_steps + 1 - min(step, config.num_steps)
    return config.learning_rate * left / (config.num_steps + 1 - warmup)
