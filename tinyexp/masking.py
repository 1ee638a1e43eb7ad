"""What a person may see of a text that may hold a secret."""

import re
from collections.abc import Mapping
from typing import Any

# All before the last @ of the host, because a password may hold one, and a slash where no port stands. A user without a password
# may be a token, and so may one with an @.
WHO = re.compile(r"://(?:([^/@\s:]*:)?[^/\s]*|([^/@\s:]*:)(?!\d+/)\S*?)@")
URL = re.compile(r"\w://\S+")
# What follows the = of each part, or a part without one, up to the quote or bracket that may end the URL in a longer text
VALUE = re.compile(r"""(?P<name>[?&][^?&=#\s]*=|[?&])[^&#\s"<>]*[^&#\s"<>'`),.;:\]}]""")
QUERY = re.compile(r"([?#]).+", re.DOTALL)


def masked(text: str) -> str:
    """The text with *** for what may be a secret in its URLs: a password, a user without one, and each value of a query."""
    text = WHO.sub(lambda found: f"://{found[1] or found[2] or ''}***@", text)
    return URL.sub(lambda url: VALUE.sub(r"\g<name>***", url[0]), text)


def masked_whole(url: str) -> str:
    """What may be shown of a text that should be one URL and is not: neither what is before its last @, nor any query."""
    before, at, host = url.rpartition("@")
    scheme, divider, _ = before.rpartition("://") if before.count("://") == 1 else ("", "", "")
    return QUERY.sub(r"\1***", f"{scheme}{divider}***@{host}" if at else url)


def masked_values(value: Any) -> Any:
    """The same of every text in nested mappings and lists."""
    if isinstance(value, Mapping):
        return {key: masked_values(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [masked_values(each) for each in value]
    return masked(value) if isinstance(value, str) else value
