"""The record of a real training, and the run and trace made of it.

Start with `journal`; `replay` makes a `Run` of a record.
"""
