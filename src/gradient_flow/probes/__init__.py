"""Looking deeper at one subject each: capture, statistics, and rules that need no torch, side by side in one folder."""
