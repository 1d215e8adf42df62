"""Opens an object store with one credential and nothing else. What is passed here is secret and is never logged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store

from registry.model.source_uri import SourceUri
from registry.sources.credentials import Held
from registry.sources.credentials_file import StoreOptions
from registry.sources.errors import ArtifactError
from registry.sources.secrets import SecretError, as_header
from registry.sources.urls import parse_url

if TYPE_CHECKING:
    from obstore.store import AzureConfig, ClientConfig, GCSConfig, RetryConfig, S3Config, S3Credential

CONNECT_TIMEOUT = "10s"
IDLE_TIMEOUT = "30s"
KEPT_TIMEOUT = "5s"  # of a connection without a request
# Of one range: a store that is slower than this is as good as not there.
RANGE_TIMEOUT = "60s"
DEFAULT_REGION = "us-east-1"
_Fields = dict[str, str] | None  # of a secret; None: nothing is to be sent
_RETRY: RetryConfig = {"max_retries": 0}  # ours are the only retries, so that their caps hold


def open_store(uri: SourceUri, held: Held | None, timeout: str = RANGE_TIMEOUT) -> ObjectStore:
    """The store behind a URI. Nothing is sent yet.

    Args:
        uri: of something in it.
        held: the credential.
        timeout: of one request, with its unit.

    Raises:
        ArtifactError: ``credential_unavailable``, also where its secret is not of the form that the store takes.
    """
    options = held.store if held is not None else StoreOptions()
    secret = held.secret() if held is not None else None
    if held is None or secret is None:
        return _open(uri, options, "", None, _client(options, timeout))
    try:
        return _open(uri, options, secret.text, secret.fields(), _client(options, timeout))
    except SecretError as error:
        raise held.unavailable(str(error)) from None
    except BaseError:  # whose text may repeat the secret
        raise held.unavailable(f"it is not of a form that {uri.scheme}:// takes") from None


def _open(uri: SourceUri, options: StoreOptions, text: str, fields: _Fields, client: ClientConfig) -> ObjectStore:
    match uri.scheme:
        case "s3":
            return _s3(uri.authority, options, fields, client)
        case "gs":
            return _gcs(uri.authority, options, text, fields, client)
        case _:
            return _azure(uri.authority, options, fields, client)


def _client(options: StoreOptions, timeout: str) -> ClientConfig:
    return {
        "connect_timeout": CONNECT_TIMEOUT,
        "read_timeout": IDLE_TIMEOUT,
        "timeout": timeout,
        "pool_idle_timeout": KEPT_TIMEOUT,
        "allow_http": (options.endpoint or "").startswith("http://"),
        "user_agent": "loraplane",
    }


def _s3(bucket: str, options: StoreOptions, fields: _Fields, client: ClientConfig) -> S3Store:
    config: S3Config = {"region": options.region or DEFAULT_REGION, "skip_signature": fields is None}
    if options.endpoint is not None:
        config["endpoint"] = options.endpoint
    if fields is None:
        return S3Store(bucket, config=config, client_options=client, retry_config=_RETRY)
    credential: S3Credential = {
        "access_key_id": _in_header(fields, "accesskeyid", "access_key_id"),
        "secret_access_key": _needed(fields, "secretaccesskey", "secret_access_key"),
        "token": _in_header(fields, "sessiontoken", "session_token") if fields.get("sessiontoken") else None,
        "expires_at": None,
    }
    return S3Store(
        bucket,
        config=config,
        client_options=client,
        retry_config=_RETRY,
        credential_provider=lambda: credential,
    )


def _gcs(bucket: str, options: StoreOptions, text: str, fields: _Fields, client: ClientConfig) -> GCSStore:
    config: GCSConfig = {"skip_signature": fields is None}
    if options.endpoint is not None:
        config["base_url"] = options.endpoint
    if fields is not None and fields.get("type") == "service_account":
        _check_base_url(fields.get("gcsbaseurl", ""))
        config["service_account_key"] = text
    elif fields is not None:
        config["bearer_token"] = _in_header(fields, "token", "token", "token, nor a service account's key")
    return GCSStore(bucket, config=config, client_options=client, retry_config=_RETRY)


def _check_base_url(url: str) -> None:
    """A service account's key may say where its store is; what is no URL would break off the whole process."""
    try:
        if url:
            parse_url(url)
    except ValueError as error:
        raise SecretError(f"its gcs_base_url cannot be used: {error}") from None


def _azure(container: str, options: StoreOptions, fields: _Fields, client: ClientConfig) -> AzureStore:
    if options.account is None:
        message = "az:// needs a credential (of kind none, if it is public) whose store names the account"
        raise ArtifactError("credential_unavailable", message, permanent=True)
    config: AzureConfig = {"account_name": options.account, "skip_signature": fields is None}
    if options.endpoint is not None:
        config["endpoint"] = options.endpoint
    if fields is not None and "accountkey" in fields:
        config["account_key"] = fields["accountkey"]
    elif fields is not None and "sastoken" in fields:
        config["sas_key"] = fields["sastoken"]
    elif fields is not None:
        config["token"] = _in_header(fields, "token", "token", "account_key, sas_token or token")
    return AzureStore(container, config=config, client_options=client, retry_config=_RETRY)


def _needed(fields: dict[str, str], name: str, shown: str) -> str:
    if name not in fields:
        raise SecretError(f"it has no {shown}")
    return fields[name]


def _in_header(fields: dict[str, str], name: str, shown: str, missing: str | None = None) -> str:
    return as_header(_needed(fields, name, missing or shown), shown)
