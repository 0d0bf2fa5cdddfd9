"""Small HTTP GETs to a replica: the configuration as JSON, and the metrics page. Not for inference."""

from __future__ import annotations

import asyncio

import aiohttp
from yarl import URL

from gateway.core.codes import Code
from gateway.core.faults import UpstreamFault

_GZIP = b"\x1f\x8b"
_SKIP = ("User-Agent", "Accept", "Content-Type")


class HttpGetter:
    """GETs over connections that are closed after each answer: Triton's shutdown waits for every idle HTTP
    connection, and these calls are rare.
    """

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def get(self, address: str, raw_path: str, timeout_s: float, bytes_max: int) -> bytes:
        """The body of `http://address` + `raw_path`, which is sent as it stands. Raises `UpstreamFault`: what the peer
        says with any status but 200, and RESOURCE_EXHAUSTED, not from the peer, for a body over `bytes_max`.
        """
        if self._closed:  # A job that had not heard yet; a session made now would never be closed.
            raise UpstreamFault(Code.UNAVAILABLE, "the connection is closed", from_peer=False, sent=False)
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True, limit=8),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=_SKIP,
                headers={"Accept-Encoding": "identity"},
                trust_env=False,
            )
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session.get(
                    URL(f"http://{address}{raw_path}", encoded=True),
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=None),
                ) as response,
            ):
                body = bytearray()
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > bytes_max:
                        raise UpstreamFault(
                            Code.RESOURCE_EXHAUSTED, f"{raw_path} is larger than {bytes_max} bytes", from_peer=False
                        )
                if response.status != 200:
                    text = bytes(body[:512]).decode(errors="replace")
                    raise UpstreamFault(
                        _CODES.get(response.status, Code.UNKNOWN),
                        f"GET {raw_path} was answered with HTTP {response.status}: {text}",
                        from_peer=True,
                    )
                coding = response.headers.get("Content-Encoding", "identity")
                if coding != "identity" or body.startswith(_GZIP):
                    # Asked for plain bytes; some Triton releases have packed bodies without saying so (field case
                    # FH-02). What cannot be what it claims to be is not passed on.
                    raise UpstreamFault(
                        Code.INTERNAL, f"GET {raw_path} was answered with a compressed body", from_peer=True
                    )
                return bytes(body)
        except TimeoutError:
            raise UpstreamFault(
                Code.DEADLINE_EXCEEDED, f"GET {raw_path} took longer than {timeout_s:g} s", from_peer=False
            ) from None
        except aiohttp.ClientConnectorError as error:
            raise UpstreamFault(Code.UNAVAILABLE, f"GET {raw_path}: {error}", from_peer=False, sent=False) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise UpstreamFault(
                Code.UNAVAILABLE, f"GET {raw_path}: {type(error).__name__}: {error}", from_peer=False
            ) from None

    async def aclose(self) -> None:
        self._closed = True
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()


_CODES = {
    400: Code.INVALID_ARGUMENT,
    404: Code.NOT_FOUND,
    500: Code.INTERNAL,
    501: Code.UNIMPLEMENTED,
    503: Code.UNAVAILABLE,
}
