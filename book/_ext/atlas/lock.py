"""Write constraints.txt: the newest versions that pip finds for every extra, beside the versions held here.

Run it through `make lock`. It installs nothing.
"""

import json
import subprocess
import sys
from pathlib import Path

# The Triton kernels' resource figures are tested against this compiler, so the pair moves by hand and together.
HELD = ["torch==2.13.0", "triton==3.7.1"]
EXTRAS = "book,test,models,data,kernels,peers"
ROOT = Path(__file__).resolve().parents[3]
HEAD = f"""# Written by `make lock`. Everything the book and its tests install, in the versions they were tested with.
# torch has no local version on purpose: an index of your choice may serve a CPU or a CUDA build of the same release.
# Held by hand (book/_ext/atlas/lock.py): {", ".join(HELD)}
"""


def resolve(options: list[str]) -> dict[str, str]:
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "-qq", "--report", "-"]
    report = subprocess.run([*command, *options, f"{ROOT}[{EXTRAS}]", *HELD], check=True, stdout=subprocess.PIPE, text=True).stdout
    packages = (item["metadata"] for item in json.loads(report)["install"])
    return {p["name"]: p["version"].partition("+")[0] for p in packages if p["name"] != "mhlib"}


def main(options: list[str]) -> None:
    lines = [f"{name}=={version}\n" for name, version in sorted(resolve(options).items(), key=lambda item: item[0].lower())]
    (ROOT / "constraints.txt").write_text(HEAD + "".join(lines))
    print(f"constraints.txt: {len(lines)} packages")


if __name__ == "__main__":
    main(sys.argv[1:])
