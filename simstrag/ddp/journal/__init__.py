"""The record of a real training, and the run and trace made of it.

Start with `journal`; `run_from_journal` makes a `Run` of it, `communication_from_journal` the times
of push, service, pull and reduction.
"""
