"""Bucket URLs: each setting is read, and a wrong URL gives a one-line error without secrets."""

from base64 import b64decode, b64encode

import pytest

from stratalog.adapters.bucket_keys import find_keys, read_access_keys, read_customer_key
from stratalog.adapters.bucket_url import parse_bucket_url
from stratalog.adapters.cloud_store import CloudStore
from stratalog.adapters.object_store import open_store
from stratalog.errors import UserError


def test_a_url_can_have_every_setting(tmp_path):
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


def test_the_environment_completes_the_url(tmp_path):
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
        ("s3://bucket?endpoint=10.62.64.200", "not http://host:port"),
        ("s3://bucket?endpoint=http://host?token=oops", "not http://host:port"),
        ("s3://bucket?endpoint=http://key:oops@host", "keys belong in the environment"),
        ("s3://bucket?endpoint=http%3A%2F%2Fkey%3Aoops%40host", "keys belong in the environment"),
        ("s3://bucket?endpoint=http://key:oo/ps@host", "keys belong in the environment"),
        ("s3://key:oo/ps@bucket", "a bucket is written"),
        ("s3://key:oops@[", "no URL"),
        ("s3://bucket/prefix#1", "write # as %23"),
        ("s3://bucket?sse=rot13", "sse=rot13 is none of AES256, aws:kms, aws:kms:dsse"),
        ("s3://bucket?sse_kms_key_id=oops", "sse_kms_key_id needs sse=aws:kms"),
        ("s3://bucket?sse=AES256&sse_kms_key_id=oops", "sse_kms_key_id needs sse=aws:kms"),
        ("s3://bucket?sse=AES256&customer_key_file=k", "exclude each other"),
        ("s3://bucket?endpoint=http://h&customer_key_file=k", "needs an https:// endpoint"),
        ("s3://bucket?customer_key_file=/no/such/file", "No such file"),
        ("gs://bucket?sse=AES256", "'sse' is none of"),
        ("s3://bucket?credentials=oops", "'instance' and no other"),
        ("s3://bucket?create_bucket=oui", "neither true nor false"),
        ("s3://bucket?ca_file=/no/such/file", "No such file"),
        ("s3://bucket?credentials_file=/no/such/file", "No such file"),
        ("gs://bucket?region=x", "'region' is none of"),
        ("az://bucket?profile=x", "'profile' is none of"),
        ("az://bucket", "set account_name in the URL or AZURE_STORAGE_ACCOUNT_NAME"),
        ("s3://", "a bucket is written"),
    ],
)
def test_a_wrong_url_is_one_line_without_its_secrets(url, named):
    with pytest.raises(UserError) as error:
        parse_bucket_url(url, {})
    assert named in str(error.value)
    assert "\n" not in str(error.value)
    assert not any(secret in str(error.value) for secret in ("oops", "oo/ps", "key:"))


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("ftp://key:oops@host/bucket", "keys belong"),
        ("key:oops@host", "is no bucket"),
        ("file://key:oops@host/bucket", "keys belong"),
        ("file:///bucket?secret=oops", "a directory has no settings"),
        ("file:///bucket#1", "write # as %23"),
        ("file:///bucket%00", "a directory is written"),
        ("memory://key:oops@name", "keys belong"),
        ("s3:///prefix", "a bucket is written"),
        ("https://host/bucket?secret=oops", "is no bucket"),
    ],
)
def test_a_url_without_a_store_is_one_line_without_its_secrets(url, named):
    with pytest.raises(UserError, match=named) as error:
        open_store(url)
    assert "oops" not in str(error.value)


def test_an_endpoint_from_the_environment_must_not_hold_keys():
    with pytest.raises(UserError, match="keys belong in the environment") as error:
        parse_bucket_url("s3://b", {"AWS_ENDPOINT_URL_S3": "http://key:oops@host"})
    assert "oops" not in str(error.value)


def test_the_source_of_a_stores_keys_is_named(tmp_path):
    file = tmp_path / "keys"
    file.write_text("")
    both = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}

    def found(url, **environment):
        return find_keys(parse_bucket_url(url, environment), environment)

    assert (
        found("s3://b", **both) == "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment"
    )
    assert found(f"s3://b?credentials_file={file}&profile=p", **both) == f"profile [p] of {file}"
    assert found("s3://b", AWS_SHARED_CREDENTIALS_FILE=str(file)) == f"profile [default] of {file}"
    assert "AWS_ROLE_ARN" in found("s3://b", AWS_WEB_IDENTITY_TOKEN_FILE="x", AWS_ROLE_ARN="y")
    assert "AWS_SKIP_SIGNATURE" in found("s3://b", AWS_SKIP_SIGNATURE="true")
    assert found("s3://b?credentials=instance") == "the machine's role (credentials=instance)"
    assert found("s3://b?credentials=instance", **both).startswith("AWS_ACCESS_KEY_ID")
    assert "GOOGLE_SERVICE_ACCOUNT" in found("gs://b", GOOGLE_SERVICE_ACCOUNT="x")
    assert "AZURE_STORAGE_SAS_KEY" in found("az://b?account_name=x", AZURE_STORAGE_SAS_KEY="y")
    home = tmp_path / ".config" / "gcloud"
    home.mkdir(parents=True)
    (home / "application_default_credentials.json").write_text("{}")
    assert found("gs://b", HOME=str(tmp_path)).startswith(str(home))


@pytest.mark.parametrize(
    ("url", "environment", "named"),
    [
        (
            "s3://b/p",
            {},
            "s3://b/p: no keys are found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS",
        ),
        ("s3://b/p", {}, "credentials_file in the URL or with AWS_SHARED_CREDENTIALS_FILE"),
        ("s3://b/p", {}, "credentials=instance in the URL asks"),
        ("s3://b", {"AWS_ACCESS_KEY_ID": "a"}, "AWS_ACCESS_KEY_ID alone is not enough"),
        (
            "s3://b",
            {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""},
            "no keys are found: set",
        ),
        ("s3://b", {"AWS_SKIP_SIGNATURE": "false"}, "no keys are found"),
        ("s3://b", {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/x"}, "no keys are found"),
        ("gs://b", {}, "set GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://b?account_name=x", {}, "set AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)
def test_without_keys_the_error_names_the_places_searched(url, environment, named):
    with pytest.raises(UserError) as error:
        find_keys(parse_bucket_url(url, environment), environment)
    assert named in str(error.value)


def test_keys_are_read_from_the_named_profile(tmp_path):
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
        "az://container/p?account_name=testaccount",
        "az://container/p?account_name=testaccount&endpoint=http://127.0.0.1:1/testaccount",
    ],
)
def test_each_kind_of_store_takes_its_settings(url, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key")
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    monkeypatch.setenv("AZURE_SKIP_SIGNATURE", "true")
    assert CloudStore(url).url == url


def test_a_customers_key_is_32_bytes_or_their_base64(tmp_path):
    file = tmp_path / "key"
    for written in (bytes(range(32)), b64encode(bytes(range(32))) + b"\n"):
        file.write_bytes(written)
        assert b64decode(read_customer_key(str(file))) == bytes(range(32))


@pytest.mark.parametrize("written", [b"", b"oops", bytes(31), b64encode(bytes(33)), b"o" * 10**6])
def test_a_file_without_a_customers_key_is_one_line_without_its_bytes(written, tmp_path):
    file = tmp_path / "key"
    file.write_bytes(written)
    with pytest.raises(UserError, match="holds no key: it needs 32 bytes") as failure:
        read_customer_key(str(file))
    assert "oo" not in str(failure.value).replace(str(tmp_path), "")
