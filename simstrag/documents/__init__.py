"""Reads what a person wrote: YAML mappings, paths, names, and one line for each mistake.

It knows no simulation. Start with `yaml_file`; `suggestions` finds the nearest known name.
"""
