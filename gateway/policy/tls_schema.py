"""The schema of TLS: on the client ports, and to the replicas of a pool."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.policy.strict import Strict

REFRESH_S = Meta(ge=0.2, le=3600, description="Seconds between looks at the files; a change is taken up by itself.")


class ServerTls(Strict, frozen=True, kw_only=True):
    certificate_file: Annotated[
        str,
        Meta(min_length=1, description="The certificate with its chain, PEM, the gateway's own first. Relative paths "
             "start at fleet.yaml."),
    ]  # fmt: skip
    key_file: Annotated[str, Meta(min_length=1, description="Its private key, PEM, not encrypted.")]
    client_ca_file: Annotated[
        str, Meta(description="Authorities whose client certificates are believed, PEM; these alone.")
    ] = ""
    client_certificate: Annotated[
        Literal["none", "optional", "required"],
        Meta(
            description="`required`: a client without a good certificate gets no connection. `optional`: one that is "
            "shown must be good. (With `gateway.grpc.server: grpcio` the gRPC port asks for none then: that library "
            "cannot ask without insisting.)"
        ),
    ] = "none"
    handshake_timeout_ms: Annotated[
        int, Meta(ge=100, le=600_000, description="From the connection to the end of the handshake.")
    ] = 10_000
    refresh_s: Annotated[float, REFRESH_S] = 5.0


class UpstreamTls(Strict, frozen=True, kw_only=True):
    ca_file: Annotated[
        str,
        Meta(description="Authorities whose server certificates are believed, PEM. Default: those of the operating "
             "system (with `transport: grpcio` the public ones that come with that library)."),
    ] = ""  # fmt: skip
    certificate_file: Annotated[
        str, Meta(description="The gateway's certificate for replicas that ask for one (`--grpc-use-ssl-mutual`), PEM.")
    ] = ""
    key_file: Annotated[str, Meta(description="Its private key, PEM, not encrypted.")] = ""
    server_name: Annotated[
        str,
        Meta(max_length=253, description="The name that replicas' certificates must carry. Default: the host of the "
             "replica's address."),
    ] = ""  # fmt: skip
    refresh_s: Annotated[float, REFRESH_S] = 5.0
