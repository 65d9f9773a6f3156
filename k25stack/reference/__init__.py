"""The torch engine behind the engine protocol, and the steps that run a target on CPU (heavy: torch).

``target`` the model's forward passes; ``generate`` and ``extract`` the two steps that need no server; ``engine``
slots and rounds (``drafting``, ``verify``, ``scheduler``); ``server`` the HTTP surface over it; ``lossless`` whether
outputs with and without a draft are the same.
"""
