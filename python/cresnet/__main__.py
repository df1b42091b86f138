"""cresnet.__main__: the console script `cresnet` (entry point), and python -m cresnet: becomes the program."""
import os
import sys

from ._child import program
from ._errors import CresnetError


def main() -> None:
    try:
        path = program()
        os.execv(path, ["cresnet", *sys.argv[1:]])
    except (CresnetError, OSError) as error:
        sys.exit(f"cresnet: {error}")


if __name__ == "__main__":
    main()
