"""cresnet._version: the version number of the package, which scripts/check-version.py compares."""
__version__ = "0.4.0"
