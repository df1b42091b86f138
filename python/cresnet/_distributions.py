"""cresnet._distributions: warns when the wheels cresnet and cresnet-cpu are both installed: they have the same files, so the result is a mixture."""
import glob
import os
import warnings
from typing import Optional


def conflict(site_packages: str) -> Optional[str]:
    """What to do when the folder holds both distributions, else None."""
    if not all(glob.glob(os.path.join(glob.escape(site_packages), name + "-*.dist-info")) for name in ("cresnet", "cresnet_cpu")):
        return None
    return ("cresnet and cresnet-cpu are both installed, and each has replaced files of the other. Remove both and install one: "
            "pip uninstall -y cresnet cresnet-cpu && pip install cresnet")


def warn_about_conflict() -> None:
    text = conflict(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if text:
        warnings.warn(text, RuntimeWarning, stacklevel=3)
