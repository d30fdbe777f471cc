"""OpenSSL's state of one accepted connection, between buffers in memory.

In: bytes that a client sent, and plain bytes for it. Out: plain bytes of the client, encrypted bytes for it, and the
subject of its certificate. It never sees a socket, and verifies nothing that OpenSSL does not.

OpenSSL is that of the package `cryptography` (decision 0050). Connections are pyOpenSSL's; its methods copy each
record once more and make several Python calls for it. So data goes through the functions that these methods call.
Each of them releases the interpreter. One thread at a time may use a session.
"""

from typing import Any, Final

from cryptography.hazmat.bindings.openssl.binding import Binding
from OpenSSL import SSL
from OpenSSL.crypto import FILETYPE_ASN1, dump_certificate

from stratalog.adapters.distinguished_name import distinguished_name, subject_of
from stratalog.ports import Buffer

__all__ = ["TlsEnded", "TlsFailed", "TlsSession"]

_lib: Final[Any] = Binding.lib
_ffi: Final[Any] = Binding.ffi
_from_buffer: Final = _ffi.from_buffer
_room: Final = _ffi.new_allocator(should_clear_after_alloc=False)


class TlsFailed(ConnectionError):
    """The client broke the protocol, or was refused; the message says why, in words."""


class TlsEnded(TlsFailed):
    """The client has ended its stream by a close_notify."""


class TlsSession:
    """The server's side of TLS. Methods raise TlsFailed."""

    def __init__(self, context: SSL.Context) -> None:
        self._connection = connection = SSL.Connection(context, None)
        connection.set_accept_state()
        # pyOpenSSL has no public names for these. Their names have not changed since 2013.
        self._ssl = connection._ssl  # noqa: SLF001
        self._incoming = connection._into_ssl  # noqa: SLF001
        self._outgoing = connection._from_ssl  # noqa: SLF001
        self._start = _ffi.new("char **")

    def receive(self, data: Buffer) -> None:
        """Take encrypted bytes of the client."""
        if _lib.BIO_write(self._incoming, _from_buffer(data), len(data)) != len(data):
            raise MemoryError("OpenSSL takes no bytes")

    def go_on(self) -> bool:
        """Go on with the handshake; return whether it is complete."""
        _lib.ERR_clear_error()
        result = _lib.SSL_do_handshake(self._ssl)
        if result == 1:
            return True
        self._look_at(result)
        return False

    def subject(self) -> str:
        """Return the name of the client's certificate as Java writes it, "" without one."""
        certificate = self._connection.get_peer_certificate()
        if certificate is None:
            return ""
        try:
            return distinguished_name(subject_of(dump_certificate(FILETYPE_ASN1, certificate)))
        except ValueError as error:
            raise TlsFailed(f"the client's certificate cannot be read: {error}") from None

    def decrypt(self, buffer: memoryview, records: int) -> tuple[int, int, bool]:
        """Fill the buffer from `records` records at most.

        Returns its bytes, the records left, and whether nothing more has been received. Raises TlsEnded once all bytes
        before the client's end are passed on.
        """
        read, session, start = _lib.SSL_read, self._ssl, _from_buffer(buffer)
        filled, size = 0, len(buffer)
        _lib.ERR_clear_error()
        while records and filled < size:
            count = read(session, start + filled, size - filled)
            if count <= 0:
                try:
                    self._look_at(count)
                except TlsEnded:
                    if not filled:
                        raise
                    return filled, records, False  # the next call raises
                return filled, records, True
            filled += count
            records -= 1
        return filled, records, False

    def encrypt(self, data: Buffer) -> None:
        """Encrypt bytes for the client, in records of 16 KiB at most."""
        _lib.ERR_clear_error()
        result = _lib.SSL_write(self._ssl, _from_buffer(data), len(data))
        if result != len(data):
            self._look_at(result)
            raise TlsFailed("OpenSSL takes no bytes")

    def end(self) -> None:
        """Encrypt a close_notify. It does not wait for the client's."""
        if _lib.SSL_shutdown(self._ssl) < 0:
            _lib.ERR_clear_error()

    def taken(self, least: int = 1) -> memoryview | None:
        """Return all encrypted bytes for the client; None while fewer than `least` wait."""
        size: int = _lib.BIO_get_mem_data(self._outgoing, self._start)
        if size < least:
            return None
        room = _room("char[]", size)
        _lib.BIO_read(self._outgoing, room, size)
        return memoryview(_ffi.buffer(room, size))

    def _look_at(self, result: int) -> None:
        """Return where OpenSSL needs more bytes of the client. Raises TlsEnded, TlsFailed."""
        kind = _lib.SSL_get_error(self._ssl, result)
        if kind == _lib.SSL_ERROR_WANT_READ:
            return
        if kind == _lib.SSL_ERROR_ZERO_RETURN:
            raise TlsEnded("TLS failed: the client has ended it")
        raise TlsFailed(self._why())

    def _why(self) -> str:
        """Return the reason of the last call's failure in words. OpenSSL notes the cause first."""
        reasons = []
        while code := _lib.ERR_get_error():
            reasons.append(_text(_lib.ERR_reason_error_string(code)))
        if "certificate verify failed" in reasons:
            verified = _lib.SSL_get_verify_result(self._ssl)
            text = _text(_lib.X509_verify_cert_error_string(verified))
            return f"the client's certificate is refused: {text}"
        reason = reasons[0] if reasons else "the stream broke off"
        if reason in {"http request", "wrong version number"}:
            reason += "; does the client use TLS?"
        return f"TLS failed: {reason}"


def _text(found: Any) -> str:
    """Return a C string; "a reason without a name" for a null pointer."""
    return _ffi.string(found).decode() if found else "a reason without a name"
