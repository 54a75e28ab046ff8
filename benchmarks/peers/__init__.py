"""The engines that are measured. Each runs in a process of its own, in an environment of its own.

registry.py knows their names, packages and how to install them. protocol.py is the worker's side of the pipe and needs
nothing but Python; each folder's `worker.py` drives one engine through it, its `requirements.txt` pins what it needs.
"""
