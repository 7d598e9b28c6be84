"""What a report says in sentences: the answer, assumptions and cautions.

Start with `answer`.
"""
