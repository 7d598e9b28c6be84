"""The native engine: the rules in C, on tables that Python allocates.

Start with `library`, which calls it, then `kernel.c`: `advance` goes from event to event.
"""
