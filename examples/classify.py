"""classify.py: prints the most probable classes of image files.

    python3 classify.py checkpoints/flowers rose.jpg tulip.jpg
"""
import sys

import cresnet


def main() -> int:
    if len(sys.argv) < 3:
        print("usage: classify.py RUN|CHECKPOINT|FILE.safetensors IMAGE ...", file=sys.stderr)
        return 2
    paths = sys.argv[2:]
    with cresnet.Model(sys.argv[1], max_batch=min(len(paths), 32)) as model:
        result = model.classify_files(paths, top=min(3, model.info.classes))
        for i, path in enumerate(paths):
            if result.errors[i]:
                print(result.errors[i], file=sys.stderr)
                continue
            print(path)
            for label, probability in zip(result.labels[i], result.probabilities[i]):
                print(f"  {100 * probability:6.2f} %  class {label}: {model.class_name(label)}")
        return 1 if any(result.errors) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except cresnet.CresnetError as error:
        sys.exit(f"{error.status}: {error}")
