"""Rules that refuse a broken draft, launch or data set before it costs GPU time.

``finding`` is the one result shape of every check.  ``rules`` reads what each engine version loads and computes from
the data files in ``rules/``; ``keys`` says what an engine does with each tensor of a file; ``facts`` gathers what a
draft directory says of itself without trusting it; ``draft`` is the table of draft checks C1 to C9.
"""
