"""What a straggler cost, from the record of a real job: who was slow, and what fixing it gives.

Start with `record`, then `replay`. It reads what ran; what other policies would have made of it is
a matter of simulation.
"""
