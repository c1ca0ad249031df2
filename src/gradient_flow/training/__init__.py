"""Whole trainings around a user's epoch functions: settings, learning-rate schedule, early stopping, history."""
