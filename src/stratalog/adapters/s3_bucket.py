"""Manage an S3 bucket itself: its existence, unfinished uploads, lifecycle rules.

In: a bucket's URL. Out: answers of boto3, through one client, for calls that obstore lacks. It never touches an
object.

boto3 comes with `pip install stratalog[s3]`; a broker whose bucket exists does not need boto3.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from stratalog.adapters.bucket_keys import find_keys, read_access_keys
from stratalog.adapters.bucket_url import BucketUrl
from stratalog.errors import Unavailable, UserError

__all__ = ["S3Bucket", "Upload"]

_DEFAULT_REGION: Final = "us-east-1"
_REFUSED: Final = (401, 403)


@dataclass(frozen=True, slots=True)
class Upload:
    """An unfinished multipart upload, begun at a time in epoch ms: its parts cost money and appear in no listing.

    `path` is the whole key, with the bucket's prefix.
    """

    path: str
    upload_id: str
    begun_ms: int


class S3Bucket:
    """The bucket of an `s3://` URL. Every call raises Unavailable, and UserError where boto3 is not installed."""

    def __init__(self, at: BucketUrl) -> None:
        assert at.scheme == "s3", "only S3 has these calls"
        try:
            import boto3  # noqa: PLC0415 - an extra
            import botocore.session  # noqa: PLC0415
            from botocore.config import Config  # noqa: PLC0415
            from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415
        except ImportError:
            raise UserError(f"{at.url}: needs boto3: pip install 'stratalog[s3]'") from None
        self._at = at
        self._keys = find_keys(at)
        self._region = at.region or _region()
        self._refused, self._unreachable = ClientError, BotoCoreError
        keys = read_access_keys(at.credentials_file, at.profile) if at.credentials_file else None
        style = "virtual" if at.virtual_hosted else "path" if at.endpoint else "auto"
        # A separate session: boto3's default one keeps its first keys for the life of the process.
        session = botocore.session.get_session()
        if (
            not at.machine_role
        ):  # then neither a machine's nor a container's metadata service is asked
            providers = session.get_component("credential_provider")
            for name in ("iam-role", "container-role"):
                providers.remove(name)
        self._client: Any = boto3.Session(botocore_session=session).client(
            "s3",
            region_name=self._region,
            endpoint_url=at.endpoint,
            verify=at.ca_file,
            aws_access_key_id=keys.access_key_id if keys else None,
            aws_secret_access_key=keys.secret_access_key if keys else None,
            aws_session_token=keys.session_token if keys else None,
            config=Config(
                s3={"addressing_style": style},
                retries={"mode": "standard", "total_max_attempts": 3},
                connect_timeout=10,
                read_timeout=30,
            ),
        )

    def create(self) -> None:
        """Create the bucket; an existing one of the same owner is no error."""
        where: dict[str, Any] = {}
        if self._region != _DEFAULT_REGION:
            where = {"CreateBucketConfiguration": {"LocationConstraint": self._region}}
        with self._failures():
            try:
                self._client.create_bucket(Bucket=self._at.bucket, **where)
            except self._refused as error:
                if _code(error) != "BucketAlreadyOwnedByYou":
                    raise

    def unfinished_uploads(self) -> Iterator[Upload]:
        """Yield the unfinished uploads below the URL's prefix."""
        prefix = f"{self._at.prefix}/" if self._at.prefix else ""
        with self._failures():
            pages = self._client.get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=self._at.bucket, Prefix=prefix):
                for found in page.get("Uploads", ()):
                    begun_ms = int(found["Initiated"].timestamp() * 1000)
                    yield Upload(found["Key"], found["UploadId"], begun_ms)

    def abort(self, upload: Upload) -> None:
        """Remove an upload's parts; a missing upload is no error."""
        with self._failures():
            try:
                self._client.abort_multipart_upload(
                    Bucket=self._at.bucket, Key=upload.path, UploadId=upload.upload_id
                )
            except self._refused as error:
                if _code(error) != "NoSuchUpload":
                    raise

    def removes_unfinished_uploads(self) -> bool:
        """Return whether the bucket has a lifecycle rule that aborts old uploads."""
        with self._failures():
            try:
                rules = self._client.get_bucket_lifecycle_configuration(Bucket=self._at.bucket)
            except self._refused as error:
                if _code(error) == "NoSuchLifecycleConfiguration":
                    return False
                raise
        return any(
            rule.get("Status") == "Enabled" and "AbortIncompleteMultipartUpload" in rule
            for rule in rules.get("Rules", ())
        )

    def close(self) -> None:
        """Close the connections to the store."""
        self._client.close()

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (self._refused, self._unreachable) as error:
            reason = " ".join(str(error).split())
            if _status(error) in _REFUSED:
                reason += f"; the keys are from {self._keys}"
            raise Unavailable(f"bucket {self._at.bucket}: {reason}") from None


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _status(error: Any) -> int:
    """Return the HTTP status; 0 where there was no answer."""
    answer = getattr(error, "response", {})
    return int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _region() -> str:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or _DEFAULT_REGION
