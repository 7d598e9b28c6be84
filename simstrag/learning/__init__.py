"""Learners turn the sequence of updates into progress and accuracy."""
