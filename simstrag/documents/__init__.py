"""Reads documents that a user writes: YAML mappings, paths, names; one line for each mistake.

It knows no simulation. Start with `yaml_file`; `suggestions` finds the nearest known name.
"""
