"""Measures this machine and writes its profile; ships the profiles measured here.

Start with `calibrate`. `benches` time things; `fits` turn samples into constants.
"""
