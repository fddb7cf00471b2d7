"""Build the TLS context from the settings, and recognise TLS faults.

With `tls://`, `wss://` or a TLS setting, every server must use TLS. The client refuses a server without TLS before the
client sends `CONNECT`, which contains the login.
"""

from __future__ import annotations

import ssl

from pointsman.errors import ConfigurationError
from pointsman.settings import Settings
from pointsman.util.exceptions import causes
from pointsman.util.files import expand, read_file

__all__ = ["demands_tls", "tls_context", "tls_fault"]

_CA, _CERT, _KEY = "POINTSMAN_TLS_CA", "POINTSMAN_TLS_CERT", "POINTSMAN_TLS_KEY"
_SECURE_SCHEMES = ("tls", "wss")
_HINTS = {
    "CERTIFICATE_REQUIRED": f"the broker requires a client certificate: set {_CERT} and {_KEY}",
    "UNKNOWN_CA": f"the broker does not trust the CA of the client certificate: check {_CERT}",
    "BAD_CERTIFICATE": f"the broker refuses the client certificate: check {_CERT}",
    "CERTIFICATE_EXPIRED": f"the client certificate has expired: renew {_CERT}",
    "HANDSHAKE_FAILURE": f"the broker refuses the handshake; if it requires a client certificate, set {_CERT} and "
    f"{_KEY}",
    "WRONG_VERSION_NUMBER": "the port does not use TLS, or starts TLS only after the server's first line: check the "
    "port, or unset POINTSMAN_TLS_HANDSHAKE_FIRST",
}
"""Remedies for a refused handshake, by a part of OpenSSL's reason."""
_VERIFY_HINTS = {
    10: "the broker's certificate has expired: renew the certificate, or check the clock of this machine",
    18: f"the broker's certificate is self-signed: set {_CA} to the file of the certificate, or of its CA",
    19: f"the broker's certificate is from a private CA: set {_CA} to the file of this CA",
    20: f"the broker's certificate is from a CA that is not trusted: set {_CA} to the file of this CA",
    62: "the broker's certificate is for another host name: use a name of the certificate in POINTSMAN_URL",
    64: "the broker's certificate is for another address: use a name of the certificate in POINTSMAN_URL",
}
"""Remedies for a refused certificate, by OpenSSL's verification error code."""
_ENDED = (
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
    ssl.SSLSyscallError,
)  # the connection ended; a later try might succeed


def demands_tls(settings: Settings) -> bool:
    """Return True if a URL or a setting requires TLS. The bus then refuses every server without TLS.

    One URL with TLS is sufficient, because every server receives the same login, which must not be sent without TLS.
    """
    schemes = {url.partition("://")[0].lower() for url in settings.url.split(",") if "://" in url}
    return not schemes.isdisjoint(_SECURE_SCHEMES) or any(
        (settings.tls_ca, settings.tls_cert, settings.tls_key, settings.tls_handshake_first)
    )


def tls_context(settings: Settings) -> ssl.SSLContext:
    """Return the context for connections to the broker, with the CA of the settings or otherwise the system's CAs.

    Args:
        settings: `tls_ca`, `tls_cert` and `tls_key` are paths of PEM files.

    Returns:
        A context that verifies certificates and host names.

    Raises:
        ConfigurationError: A file cannot be read, or has the wrong content for its setting.
    """
    if settings.url.startswith("ws://"):
        raise ConfigurationError("ws:// is never encrypted, but a POINTSMAN_TLS setting requires TLS; use wss://")
    context = ssl.create_default_context()
    if settings.tls_ca is not None:
        authorities = read_file(_CA, settings.tls_ca)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # a private CA replaces the public CAs
        try:
            context.load_verify_locations(cadata=authorities)
        except (ssl.SSLError, ValueError):
            raise ConfigurationError(f"{_CA}: {settings.tls_ca} is not a certificate in PEM form") from None
    if settings.tls_cert is None:
        if settings.tls_key is not None:
            raise ConfigurationError(f"{_KEY} is set, but {_CERT} is unset; set {_CERT}, too, or unset {_KEY}")
        return context
    read_file(_CERT, settings.tls_cert)
    if settings.tls_key is not None:
        read_file(_KEY, settings.tls_key)
    _load_certificate(context, settings.tls_cert, settings.tls_key)
    return context


def _load_certificate(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    setting, path = (_KEY, key) if key is not None else (_CERT, certificate)

    def no_password() -> str:
        raise _misfit(setting, path, "is encrypted; write the key without a password") from None

    try:
        context.load_cert_chain(expand(certificate), key and expand(key), password=no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise _misfit(setting, path, f"is not the key of the certificate {certificate}") from None
        if key is None:
            raise _misfit(
                _CERT, certificate, f"is not a certificate with its key in PEM form; name a separate key file in {_KEY}"
            ) from None
        raise ConfigurationError(
            f"{_CERT}, {_KEY}: {certificate} and {key} are not a certificate and its key in PEM form"
        ) from None


def tls_fault(error: BaseException) -> str | None:
    """Return the TLS fault in `error` and its remedy; None if there is no TLS fault, or a later try might succeed."""
    for seen in causes(error):
        # Skip aiohttp's errors: their classes are derived from ssl's classes, but lack the attributes that are read
        # below.
        if type(seen).__module__ != "ssl":
            continue
        if isinstance(seen, ssl.SSLCertVerificationError):
            hint = _VERIFY_HINTS.get(seen.verify_code, "check the broker's certificate")
            return f"{seen.verify_message or seen}; {hint}"
        if isinstance(seen, ssl.SSLError) and not isinstance(seen, _ENDED):
            reason = (seen.reason or str(seen)).upper()
            hint = next((told for part, told in _HINTS.items() if part in reason), "read the broker's log")
            return f"{reason.lower().replace('_', ' ')}; {hint}"
    return None


def _misfit(setting: str, path: str | None, seen: str) -> ConfigurationError:
    return ConfigurationError(f"{setting}: {path} {seen}")
