"""The cases of scripts/attack-test.py, one file per subject."""
