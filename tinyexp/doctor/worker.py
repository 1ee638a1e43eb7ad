"""One group of checks in a process of its own, so that it may hang or crash.

python -m tinyexp.doctor.worker <group> <options as JSON>
"""

import json
import os
import sys
from dataclasses import asdict

from tinyexp.doctor import devices, folders, machine, network, packages, programs
from tinyexp.doctor.finding import MISSING, Checks, Finding, Options
from tinyexp.process import die_with_parent

# Groups run beside each other, the checks of one in turn: what may hang stands last, or alone.
GROUPS: dict[str, Checks] = {
    "packages": packages.CHECKS,
    "machine": machine.CHECKS,
    "devices": devices.CHECKS,
    "network": network.CHECKS,
    "programs": programs.CHECKS,
    "folders": folders.CHECKS,
}


def main(group: str, options: Options) -> None:
    """Run the checks; each is announced on stdout, and its finding follows, as lines of JSON."""
    die_with_parent()
    report = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no finding
    for name, check in GROUPS[group].items():
        print(json.dumps({"began": name}), file=report, flush=True)
        try:
            finding = Finding(name, *check(options))
        except Exception as error:  # of a broken installation or an odd machine; the other checks go on
            what = str(error).splitlines()[0] if str(error) else "no message"
            finding = Finding(
                name, f"the check failed: {type(error).__name__}: {what}", MISSING, "mend what it names, and try again"
            )
        print(json.dumps(asdict(finding)), file=report, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Options(**json.loads(sys.argv[2])))
