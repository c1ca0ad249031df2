"""Callbacks for other people's training loops: Lightning and the Hugging Face Trainer."""
