"""Fetch, convert and verify target weights; the tokenizer and the chat template that go with them."""
