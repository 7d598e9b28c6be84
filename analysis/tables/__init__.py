"""What a report shows in tables: ranking, profile, staleness.

Start with `comparison_tables`.
"""
