"""Steps through a parameter server: one process owns parameters, policy and decisions.

Start with `server_main` for the server's process and `client` for a rank's side of it.
"""
