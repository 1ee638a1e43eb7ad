"""What the classes of a set are called."""

import re
from collections.abc import Sequence

from torch.utils.data import DataLoader

SYNSET = re.compile(r"n\d{8}")


def class_names(loader: DataLoader, num_classes: int) -> list[str]:
    """`num_classes` names, by class number: those of the class folders, or the numbers themselves where a class has no name.

    Folders that are called by WordNet numbers, as ImageNet's are, get the first word of each behind it: "n01440764 tench".
    """
    names = getattr(loader.dataset, "classes", None) or []
    if names and all(SYNSET.fullmatch(name) for name in names):
        names = _spoken(names)
    return [*names, *map(str, range(len(names), num_classes))]  # shards without names may lack images of the last classes


def _spoken(synsets: Sequence[str]) -> list[str]:
    from timm.data.imagenet_info import ImageNetInfo

    words = ImageNetInfo("imagenet-22k")
    known = {synset: words.label_name_to_description(synset) for synset in set(synsets) & set(words.label_names())}
    return [f"{synset} {known[synset].partition(',')[0]}" if synset in known else synset for synset in synsets]
