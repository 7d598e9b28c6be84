"""Measures one machine, writes its profile and a recorded trace; ships those measured here."""
