"""An OpenAI-compatible address, asked once at a time or many times at once.

In: a path below the address and what is asked. Out: the answer as it came, or `Passing` where there is none. The key
goes into a header and nowhere else.
"""

import asyncio

import httpx2

from dflash_exp.regenerate.answer import Passing


class Endpoint:
    """Where a server is, and how long its answer is waited for."""

    def __init__(self, address: str, api_key: str | None, timeout_s: float) -> None:
        self.address, self._key, self._timeout_s = address.rstrip("/"), api_key, timeout_s

    def client(self, n_connections: int) -> httpx2.AsyncClient:
        """With the key, if there is one; to be closed by whoever asked for it."""
        headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        limits = httpx2.Limits(max_connections=n_connections)
        return httpx2.AsyncClient(headers=headers, limits=limits, timeout=None)  # each request has its own

    async def answer(self, client: httpx2.AsyncClient, method: str, path: str, asked: object = None) -> httpx2.Response:
        """Of whatever status; raises Passing where none came."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await client.request(method, f"{self.address}/{path}", json=asked)
        except TimeoutError:
            raise Passing(f"no answer within {self._timeout_s:g} s") from None
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise Passing(f"{type(error).__name__}: {error}") from error

    def without_key(self, said: str) -> str:
        """Some servers repeat the key that they refuse."""
        return said.replace(self._key, "***") if self._key else said
