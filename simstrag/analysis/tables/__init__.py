"""What a report shows in tables: ranking, runs, origins of numbers, profiles.

Start with `table`: the one table type.
"""
