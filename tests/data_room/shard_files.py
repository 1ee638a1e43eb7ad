"""Small shards, good and bad."""

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from tests.data_room.configs import toy_cfg


def picture(side: int = 40) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (side, side), (200, 60, 60)).save(content, "JPEG")
    return content.getvalue()


def write_shard(path: Path, members: Sequence[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def problems_of(root: Path, num_classes: int = 1, splits: tuple[str, ...] = ("val",)) -> list[str]:
    return toy_cfg(root, data_format="shards").problems(mixup_active=False, num_classes=num_classes, splits=splits)
