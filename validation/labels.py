"""Answers that many cases share: the class of a fault with its equals, and what else is true beside a fault."""

from __future__ import annotations

# --- found: the first is the class, the others are as good an answer

RUNS_AWAY = ("EXPLODING", "UNSTABLE", "NUMERICAL")
JUMPS = ("UNSTABLE", "EXPLODING")
ONE_WAY = ("LOW_RANK", "BOTTLENECK")
SHORT = ("SHORT_MEMORY", "SPECTRAL_RADIUS", "VANISHING")
CUT_SHORT = (*SHORT, "DISCONNECTED")
CHAOTIC = ("SPECTRAL_RADIUS", "EXPLODING")
STUCK = ("EXPLORATION", "ENTROPY_COLLAPSE")
AT_ITS_ENDS = ("SATURATION", "EXPLORATION", "VANISHING")

# --- also true

DEADENS = {"DISCONNECTED", "VANISHING"}
"""Nothing passes a dead layer, forward or back."""
GROWS = {"UNSTABLE", "SATURATION"}
"""States that grow hit their bounds."""
SHARP = {"SATURATION", "EXPLODING", "UNSTABLE"}
"""A softmax of large logits is flat, and what makes them large has steep gradients."""
ALIKE = {"VANISHING", "LOW_RANK", "BOTTLENECK", "EXPLODING"}
"""Tokens that become one."""
ONE = {"SYMMETRY", "LOW_RANK", "BOTTLENECK"}
"""Heads that are one."""
NARROW = {"LOW_RANK"}
"""What comes out of a waist lies in a few directions."""
SURE = {"SATURATION", "VANISHING", "EXPLODING"}
"""A policy that is sure of itself."""
LOST = {"ENTROPY_COLLAPSE", "RANK_COLLAPSE", "DEAD", "SATURATION", "HEAD_DIVERSITY", "NUMERICAL"}
"""A transformer thrown off by its optimizer."""

# --- causes of a broken program, with the types of issues that come as near to it as a type can

CUT = ("detached", "DISCONNECTED")
UNHELD = ("not_in_optimizer", "SLOW")
FOREIGN = ("foreign_optimizer", "replaced_parameters", "SLOW")
REPLACED = ("replaced_parameters", "not_in_optimizer", "SLOW")
STILL = ("never_moves", "SLOW")
LORA = ("lora_frozen", "SLOW", "DISCONNECTED")
LORA_FROZEN = (*LORA, "frozen", "never_moves")
LORA_IDLE = (*LORA, "never_moves", "only_decay", "DEAD")
FREEZE = ("frozen", "SLOW", "DISCONNECTED")
# The order zero_grad, step, backward and the order backward, zero_grad, step are one circle, cut at two places.
WIPED = ("zero_grad_before_step", "step_before_backward")
EARLY = ("step_before_backward", "zero_grad_before_step")
UNBOUND = ("detached_loss", "detached", "DISCONNECTED")
NO_RATE = ("zero_rate", "SLOW")
ENDED = ("schedule_ended", "SLOW")
TIGHT = ("clip_sets_step", "SLOW")
FAST = ("rate_too_high", *RUNS_AWAY)
CRAWLS = ("rate_too_low", "SLOW")
SUMMED = ("summed_loss", "rate_too_high", *RUNS_AWAY)
UNDIVIDED = ("undivided_accumulation", "rate_too_high", *RUNS_AWAY)
LOSS_LOST = ("loss_nonfinite", "NUMERICAL")
CLIMBS = ("loss_grows", "UNSTABLE", "EXPLODING")
MASKED = ("all_masked", "NUMERICAL")
BIG_START = ("first_loss_high", "EXPLODING")

# --- causes in the state of an optimizer, in one sample, or in what a language model or a policy logs

DAMPED = ("eps_rules", "SLOW", "rate_too_low")
ROUNDED_OFF = ("lost_updates", "SLOW", "rate_too_low")
UNDERFLOWN = ("second_moment_underflow", "NUMERICAL", "loss_nonfinite")
LONG_MEMORY = ("momentum_too_long", "EXPLODING", "UNSTABLE")
FORGETFUL = ("state_reset", "UNSTABLE", "rate_too_high")
SPOILT = ("bad_batch", "UNSTABLE")
TOO_LATE = ("stale_second_moment", "bad_batch", "UNSTABLE")
OUTDATED = ("stale_second_moment", "UNSTABLE", "EXPLODING")
NOISY = ("batch_size", "UNSTABLE", "rate_too_high")
COLLAPSED = ("policy_entropy_collapse", *STUCK)
ONE_ANSWER = ("policy_entropy_collapse", "EXPLORATION", "kl_runaway")
FAR_OFF = ("clip_fraction_high", "kl_runaway", "rate_too_high")
LOUD_LOGITS = ("attention_logits", "ENTROPY_COLLAPSE")

# --- also true of a broken program

IDLE = {"loss_stuck", "never_moves", "SLOW", "DISCONNECTED"}
"""Nothing is learned, for nothing moves."""
WRECKED = {"loss_grows", "loss_nonfinite", "loss_stuck", "DEAD", "SATURATION", "VANISHING", "DISCONNECTED", "LOW_RANK"}
"""What steps that are too large leave behind, beside what counts as found."""
THROWN_OFF = {*WRECKED, "ENTROPY_COLLAPSE", "RANK_COLLAPSE", "HEAD_DIVERSITY", "BOTTLENECK", "clip_sets_step"}
"""The same where the network may have attention, and the loop may clip."""
HEAPED = {"EXPLODING", "UNSTABLE", "loss_grows", "rate_too_high"}
"""Gradients that pile up grow, and with them the steps."""
LEARNS_NOTHING = {"loss_stuck", "SLOW"}
WRONG_MODE = {
    *WRECKED,
    "first_loss_high",
    "input_scales",
    "rate_too_high",
    "UNSTABLE",
    "EXPLODING",
    "SLOW",
    "NUMERICAL",
}
"""What a network in evaluation mode does with inputs as they were measured."""
NO_WAY_BACK = {*IDLE, "VANISHING", "DEAD", "only_decay"}
"""Beside a loss that no gradient comes from."""
