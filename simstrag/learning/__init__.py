"""Learners: the progress that a sequence of updates makes. Start with `noise_scale`."""
