"""Scripts that made files which the project ships; see README.md."""
