"""From samples to the constants and laws of a profile, with held-out errors.

Start with `visit_statistics`, then `law_fits`: step time against batch, slowdown against load.
Nothing is measured here.
"""
