from tinyexp.redis_cache.config import RedisCfg


def test_a_run_that_asks_for_the_cache_is_told_what_it_gets_instead():
    assert RedisCfg().fallback() is None
    message = RedisCfg(redis_cache_enabled=True).fallback()
    assert message is not None
    assert "redis_cfg.redis_cache_enabled=true: this version has no cache" in message
