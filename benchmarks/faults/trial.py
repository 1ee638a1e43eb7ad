"""What one kind of fault did over all its trials."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Row:
    """Counts over the trials of a fault; `note` says what the trials were."""

    fault: str
    trials: int = 0
    lost: int = 0
    wrong: int = 0
    hung: int = 0
    left_over: int = 0
    note: str = ""

    @property
    def is_bad(self) -> bool:
        return not self.trials or bool(self.lost or self.wrong or self.hung or self.left_over)

    def record(self) -> dict[str, Any]:
        return asdict(self)
