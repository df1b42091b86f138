"""cresnet._version: the number that scripts/check-version.py compares."""
__version__ = "0.4.0"
