"""The heading of an issue: what is wrong in a few words, and where."""

from __future__ import annotations

from typing import Final

from gradient_flow.diagnosis.issue import WHOLE, Issue, IssueType

_BY_TYPE: Final = {
    IssueType.VANISHING: "Gradients vanish",
    IssueType.EXPLODING: "Gradients explode",
    IssueType.DEAD: "No gradient arrives",
    IssueType.UNSTABLE: "Gradients are unstable",
    IssueType.NUMERICAL: "NaN or Inf",
    IssueType.SATURATION: "Activations are saturated",
    IssueType.SLOW: "Weights hardly move",
    IssueType.BOTTLENECK: "Gradients get stuck",
    IssueType.DISCONNECTED: "Cut off from the loss",
    IssueType.SYMMETRY: "Units stay alike",
    IssueType.ROTATION: "Gradients rotate",
    IssueType.SPECTRAL_RADIUS: "The spectral radius is off",
    IssueType.LOW_RANK: "States use few directions",
    IssueType.HEAD_DIVERSITY: "Attention heads are alike",
    IssueType.EXPLORATION: "Exploration is off",
    IssueType.LOOP: "The training loop is at fault",
    IssueType.OPTIMIZER: "The optimizer is at fault",
}
"""A type that is not here is named by its own word."""
_BY_CODE: Final = {
    "not_in_optimizer": "Not in the optimizer",
    "foreign_optimizer": "The optimizer trains another model",
    "replaced_parameters": "The optimizer holds replaced parameters",
    "hidden_layers": "Layers hidden in a Python container",
    "frozen": "Frozen by mistake",
    "lora_frozen": "A LoRA factor stays zero",
    "only_decay": "Only weight decay moves it",
    "never_moves": "Weights never move",
    "missing_zero_grad": "Gradients are never cleared",
    "partial_zero_grad": "Some gradients are never cleared",
    "zero_grad_before_step": "Gradients are cleared before the step",
    "step_before_backward": "The step comes before the backward pass",
    "detached_loss": "The loss is cut off from the model",
    "zero_rate": "The learning rate is zero",
    "schedule_ended": "The schedule has ended too early",
    "evaluation_mode": "The model trains in evaluation mode",
    "weights_overwritten": "Updates are undone",
    "same_batch": "Every batch is the same",
    "ranks_differ": "Ranks train different models",
    "all_masked": "Every label of a batch is masked",
    "loss_stuck": "The loss does not fall",
    "loss_grows": "The loss grows",
    "outweighed": "A term of the loss is outweighed",
    "critic_wins": "One player of the game has won",
    "loss_nonfinite": "The loss is not finite",
    "first_loss_high": "The first loss is too high",
    "double_softmax": "Softmax is applied twice",
    "collapsed": "Every sample gets the same output",
    "output_range": "Targets are out of the output's range",
    "softmax_dimension": "Softmax over the wrong dimension",
    "broadcast": "Loss shapes are broadcast",
    "input_scales": "Inputs differ in scale",
    "constant_targets": "Targets are constant",
    "padding_labels": "Padding is trained as a label",
    "no_reward_variance": "Rewards do not differ",
    "policy_entropy_collapse": "The policy's entropy has collapsed",
    "kl_runaway": "The policy drifts away from its reference",
    "clip_fraction_high": "Most policy ratios are clipped",
    "eps_rules": "Adam's eps sets the step size",
    "stale_second_moment": "Steps are too large",
    "second_moment_underflow": "Second moments underflow",
    "lost_updates": "Updates are lost to rounding",
    "decay_dominates": "Weight decay outweighs the gradients",
    "betas_swapped": "Adam's betas are swapped",
    "momentum_too_long": "The momentum is too long",
    "state_reset": "The optimizer's state starts over",
    "batch_size": "The batch size does not fit",
    "attention_logits": "Attention logits are large",
}
"""Causes of types whose word alone says too little."""


_NAMES: Final = ("Adam", "NaN")
"""What keeps its capital within a sentence."""


def title_of(issue: Issue) -> str:
    """What is wrong, and where unless it is the whole model.

    >>> from gradient_flow.diagnosis.issue import IssueSeverity
    >>> title_of(Issue(issue_type=IssueType.DEAD, severity=IssueSeverity.HIGH, layer="fc1", message=""))
    'No gradient arrives in `fc1`'
    """
    # Of logits that collapse the entropy, the type says more than the code.
    by_code = issue.issue_type in (IssueType.LOOP, IssueType.OPTIMIZER) or (
        issue.code == "attention_logits" and issue.issue_type is IssueType.UNSTABLE
    )
    by_code |= issue.code == "loss_nonfinite" and issue.layer == WHOLE  # of a layer, it is the gradients that are not
    named = _BY_CODE.get(issue.code) if by_code else None
    what = named or _BY_TYPE.get(issue.issue_type) or issue.issue_type.value.capitalize()
    return what if issue.layer == WHOLE else f"{what} in `{issue.layer}`"


def in_a_sentence(issue: Issue) -> str:
    """The title where a sentence goes on.

    >>> from gradient_flow.diagnosis.issue import IssueSeverity
    >>> in_a_sentence(Issue(issue_type=IssueType.DEAD, severity=IssueSeverity.HIGH, layer="fc1", message=""))
    'no gradient arrives in `fc1`'
    """
    title = title_of(issue)
    return title if title.startswith(_NAMES) else f"{title[0].lower()}{title[1:]}"
