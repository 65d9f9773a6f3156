"""Readers of what programs and the kernel print: text in, values out; Unseen is raised for any other format."""
