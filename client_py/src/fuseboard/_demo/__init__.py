"""The demonstration: `python -m fuseboard._demo`, run by `./dev demo`.

It trains a Llama of transformers on real text three times from one seed (its own code; fused; fused with
kernels switched while it runs), each time in a process of its own, and says what that changed.
"""
