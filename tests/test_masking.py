import pytest

from tinyexp.masking import masked, masked_values, masked_whole


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:hunter2@host:5000/a", "http://me:***@host:5000/a"),
        ("https://TOKEN@host/a", "https://***@host/a"),
        ("redis://:hunter2@host", "redis://:***@host"),
        ("https://u:pa@ss@h/x", "https://u:***@h/x"),
        ("https://u@x:hunter2@h/x", "https://***@h/x"),
        ("a@b https://host/x@y http://u:p@h and c@d", "a@b https://host/x@y http://u:***@h and c@d"),
        ("redis://127.0.0.1:6379", "redis://127.0.0.1:6379"),
        ("http://u:p/w@h:80/x", "http://u:***@h:80/x"),
        ("http://h:80/x@y?a=b@c", "http://h:80/x@y?a=***"),
        ("https://h/x.pth?token=SECRET&X-Amz-Signature=a%2Fb/c==", "https://h/x.pth?token=***&X-Amz-Signature=***"),
        ("https://h/x?SECRET#top", "https://h/x?***#top"),
        ("https://me:hunter2@h?token=it's,(SECRET)&b=c", "https://me:***@h?token=***)&b=***"),
        ("what? 1&2=3 https://h/a 'https://h/x?t=SECRET', why?no=1", "what? 1&2=3 https://h/a 'https://h/x?t=***', why?no=1"),
        ("key=https://h/x?t=SECRET: not there", "key=https://h/x?t=***: not there"),
        ('a("https://h/x?t=SECRET"); <https://h/?t=SECRET>', 'a("https://h/x?t=***"); <https://h/?t=***>'),
    ],
)
def test_no_password_no_token_and_no_value_of_a_query_in_a_url_is_shown(text, shown):
    assert masked(text) == masked(shown) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://me:pa/ss@h", "redis://***@h"),
        ("redis://:pa#ss@h", "redis://***@h"),
        ("redis://me:a://b@h", "***@h"),
        ("hunter:hunter2@host:6379", "***@host:6379"),
        ("redis://h?password=hunter2", "redis://h?***"),
        ("redis://h:port", "redis://h:port"),
    ],
)
def test_no_password_of_a_malformed_url_is_shown(text, shown):
    assert masked_whole(text) == shown


def test_nor_in_any_value_however_deep():
    value = {"a": {"b": ["https://TOKEN@h", 1]}, "c": None, "d": ("x",)}
    assert masked_values(value) == {"a": {"b": ["https://***@h", 1]}, "c": None, "d": ["x"]}
