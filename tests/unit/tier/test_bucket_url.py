"""What a bucket's URL says, and what is no such URL: one line, and never a secret in it."""

import pytest

from stratalog.adapters.bucket_url import parse_bucket_url, read_access_keys
from stratalog.adapters.cloud_store import CloudStore
from stratalog.errors import UserError


def test_a_url_says_all_there_is_to_say(tmp_path):
    ca_file = tmp_path / "ca.pem"
    ca_file.write_text("")
    at = parse_bucket_url(
        "s3://b/some/prefix/?endpoint=https%3A%2F%2F10.62.64.200%2F&region=any-where"
        f"&virtual_hosted_style_request=true&create_bucket=TRUE&profile=p&ca_file={ca_file}",
        {},
    )
    assert (at.scheme, at.bucket, at.prefix) == ("s3", "b", "some/prefix")
    assert (at.endpoint, at.region) == ("https://10.62.64.200", "any-where")
    assert (at.virtual_hosted, at.create_bucket, at.plain_http) == (True, True, False)
    assert (at.profile, at.ca_file, at.credentials_file) == ("p", str(ca_file), None)


def test_the_environment_says_what_the_url_leaves_out(tmp_path):
    file = tmp_path / "keys"
    file.write_text("")
    environment = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9000",
        "AWS_CA_BUNDLE": str(file),
        "AWS_SHARED_CREDENTIALS_FILE": str(file),
        "AWS_PROFILE": "tier",
    }
    at = parse_bucket_url("s3://b", environment)
    assert (at.endpoint, at.plain_http, at.prefix) == ("http://127.0.0.1:9000", True, "")
    assert (at.ca_file, at.credentials_file, at.profile) == (str(file), str(file), "tier")
    beaten = parse_bucket_url(
        "s3://b?endpoint=https://x", environment | {"AWS_ACCESS_KEY_ID": "key"}
    )
    assert (beaten.endpoint, beaten.credentials_file) == ("https://x", None)
    other = parse_bucket_url("gs://b", environment)
    assert (other.endpoint, other.ca_file, other.credentials_file) == (None, None, None)


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("s3://key:oops@bucket", "environment or a file"),
        ("s3://bucket?secret_access_key=oops", "'secret_access_key' is none of"),
        ("s3://bucket?region=", "region is empty"),
        ("s3://bucket?region", "region is empty"),
        ("s3://bucket?endpoint=10.62.64.200", "must begin with http"),
        ("s3://bucket?create_bucket=oui", "neither true nor false"),
        ("s3://bucket?ca_file=/no/such/file", "No such file"),
        ("s3://bucket?credentials_file=/no/such/file", "No such file"),
        ("gs://bucket?region=x", "'region' is none of"),
        ("az://bucket?profile=x", "'profile' is none of"),
        ("s3://", "a bucket is written"),
    ],
)
def test_what_is_no_such_url_is_one_line_without_its_secrets(url, named):
    with pytest.raises(UserError) as error:
        parse_bucket_url(url, {})
    assert named in str(error.value)
    assert "\n" not in str(error.value)
    assert "oops" not in str(error.value)


def test_keys_are_read_from_the_profile_that_is_asked_for(tmp_path):
    file = tmp_path / "keys"
    file.write_text(
        "[default]\naws_access_key_id = one\naws_secret_access_key = 100%\n"
        "[tier]\naws_access_key_id=two\naws_secret_access_key=b\naws_session_token=c\n[empty]\n"
    )
    keys = read_access_keys(str(file), "default")
    assert (keys.access_key_id, keys.secret_access_key, keys.session_token) == ("one", "100%", None)
    assert "100%" not in repr(keys)
    assert read_access_keys(str(file), "tier").session_token == "c"
    for profile, named in (("empty", "aws_access_key_id"), ("none", r"no profile \[none\]")):
        with pytest.raises(UserError, match=named):
            read_access_keys(str(file), profile)
    file.write_text("not an ini: oops")
    with pytest.raises(UserError, match="no file of keys") as error:
        read_access_keys(str(file), "default")
    assert "oops" not in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/p?endpoint=https://store.test&virtual_hosted_style_request=true",
        "gs://bucket/p?endpoint=http://127.0.0.1:1",
        "az://container/p?account_name=someone",
        "az://container/p?account_name=someone&endpoint=http://127.0.0.1:1/someone",
    ],
)
def test_each_kind_of_store_takes_its_settings(url, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key")
    assert CloudStore(url).url == url
