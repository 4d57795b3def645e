"""The file that a rank writes, and what becomes of the run where it cannot."""

from contextlib import suppress
from pathlib import Path

from minitrain.core.errors import UserError, describe_os_error, is_disk_full
from minitrain.core.printable import note
from minitrain.recording.format import Writer


class Lines:
    """Of ``rank`` in ``folder``. On a full disk the recording ends, with one line on
    stderr, and the run goes on; with ``raises`` both end.
    """

    def __init__(self, folder: Path, rank: int, raises: bool) -> None:
        self._rank, self._raises = rank, raises
        self._writer: Writer | None = None
        try:
            self._writer = Writer(folder, rank)
        except (OSError, UserError) as error:
            # else it is the user's to mend, before the run has done much
            if not is_disk_full(error):
                raise
            self._end(error)

    def append(self, line: bytes) -> None:
        """Write ``line``, if all before it was written."""
        if self._writer is not None:
            try:
                self._writer.append(line)
            except (OSError, UserError) as error:
                self._end(error)

    def close(self) -> None:
        """Harmless to call twice."""
        writer, self._writer = self._writer, None
        if writer is not None:
            # it tries to write again what it could not
            with suppress(OSError):
                writer.close()

    def _end(self, error: OSError | UserError) -> None:
        self.close()
        if self._raises:
            raise error
        why = describe_os_error(error) if isinstance(error, OSError) else str(error)
        note(f"minitrain: rank {self._rank} records no more: {why}")
