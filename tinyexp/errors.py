"""The errors that end a run with one message, and the exit status that each of them gives."""


class TinyExpError(Exception):
    """A problem that its reader can mend. The command prints the message alone, without a traceback."""

    exit_status = 1


class ConfigError(TinyExpError, ValueError):
    """A key, a value or a combination of them that cannot work. Raised before any process starts."""

    exit_status = 2


class DataError(TinyExpError):
    """A folder or file of the data set that is missing or cannot be read. What a run can know before it starts is ConfigError."""

    exit_status = 3


class CheckpointError(TinyExpError):
    """A checkpoint that cannot be read, does not fit the model, or could not be written."""

    exit_status = 4


class MachineError(TinyExpError):
    """The machine lacks something the run asked for: devices, a port, a package, a permission."""

    exit_status = 5


class LoaderWorkerDied(MachineError):
    """A process that loads images for a rank was killed. As after the death of a rank, the same run may succeed again."""

    exit_status = 7


class NonFiniteLoss(TinyExpError):
    """The loss or a gradient of a rank is NaN or infinite; no weight was changed by it."""

    exit_status = 6


class Diverged(TinyExpError):
    """Ranks hold different values of what they must hold alike."""

    exit_status = 6


class Stopped(TinyExpError):
    """A signal asked the run to stop, and it has: everything is saved."""

    def __init__(self, message: str, *, signal_number: int) -> None:
        super().__init__(message)
        self.exit_status = 128 + signal_number


class WorkerFailed(TinyExpError):
    """A rank raised or died. The message starts with that rank and its original error."""

    exit_status = 7


class PeerFailed(TinyExpError):
    """Another rank has ended the run, and says why itself."""

    exit_status = 7


class NotEqual(TinyExpError):
    """`mode=verify` found a difference that rounding does not explain."""

    exit_status = 1
