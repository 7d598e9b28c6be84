"""Managers, one a file, each with `make()`; `simstrag.cluster.manager` states what they answer."""
