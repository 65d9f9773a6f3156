"""The EAGLE-3 draft: its shapes, its files, its forward pass.

Light modules (no torch): ``spec`` shapes and counts, ``layerids`` which layers each engine captures,
``weightfile`` safetensors read by header and byte range, ``config`` and ``provenance`` the two JSON files beside the
weights, ``target`` what a draft must know of its target, ``vocab`` and ``remap`` the draft vocabulary.

Heavy modules (torch): ``model`` the forward pass, ``weights`` its tensors in and out of files, ``package`` the step
that writes a draft directory.
"""
