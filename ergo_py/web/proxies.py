"""`Proxies`: the proxies in front of a server, and which of their words about a client count."""

from collections.abc import Mapping, Sequence
from ipaddress import ip_address, ip_network

from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.options import check_flag
from .parsing.forwarded import FAMILIES, read_hops

__all__ = ["Proxies"]


class Proxies:
    """The proxies in front of a server. Only fields of a single family count: a proxy writes those,
    and passes all others on as its client has sent them.
    """

    def __init__(self, networks: Sequence[str], family: str, takes_host: bool) -> None:
        """Check the options.

        Raises:
            BadInputError: a value is no network, or there is no such family.
        """
        if isinstance(networks, str):
            raise BadInputError("WebServer(trusted)", networks, "a list, such as ['10.0.0.0/8']")
        try:
            self._networks = [ip_network(network) for network in networks]
        except ValueError as error:
            raise BadInputError(
                "WebServer(trusted)", networks, f"networks such as '10.0.0.0/8': {error}"
            ) from error
        if family not in FAMILIES:
            raise BadInputError(
                "WebServer(forwarded)",
                family,
                "'x-forwarded-for' for X-Forwarded-For and X-Forwarded-Proto, or 'forwarded' for "
                "Forwarded: the fields that the proxy writes",
            )
        check_flag("WebServer(forwarded_host)", takes_host)
        self._family = family
        self._takes_host = takes_host

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, host: str) -> bool:
        try:
            address = ip_address(host.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        if mapped is not None:
            address = mapped
        return any(
            address.version == network.version and address in network for network in self._networks
        )

    def client_of(
        self, peer: str, scheme: str, host: str, headers: Mapping[str, str]
    ) -> tuple[str, str, str]:
        """The address of the client, the scheme and the host of a request, from the words of the
        nearest proxy to those of the first proxy that is not trusted.
        """
        client = peer
        if client not in self:
            return client, scheme, host
        for hop in read_hops(headers, self._family):
            scheme = hop.scheme or scheme
            if self._takes_host:
                host = hop.host or host
            if not hop.client:
                break
            client = hop.client
            if client not in self:
                break
        return client, scheme, host
