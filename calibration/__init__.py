"""Measures one machine and writes its profile and a recorded trace; ships those this project measured."""
