"""One line to record who is slow, in the framework that a job already uses.

Start with `first_model`, which all of them share: it records the model that a framework has
wrapped.  `lightning`, `transformers`, `accelerate`, `torchtitan` and `megatron` say when, and give
`scalars` to the framework's own loggers; `launch` does it for any command, without a line changed.
"""
