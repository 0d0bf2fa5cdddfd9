"""The schema of identities: how callers show who they are."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from msgspec import Meta

from gateway.core.criticality import DEFAULT_NAME, ClassName
from gateway.policy.strict import Strict

Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]  # fmt: skip
"""Public-key signatures alone: with `none` or a shared secret (`HS256`) whoever can check a token could make one."""

ALGORITHMS: tuple[str, ...] = get_args(Algorithm)
ClaimName = Annotated[str, Meta(min_length=1, max_length=200)]


class JwtPolicy(Strict, frozen=True, kw_only=True):
    """Signed tokens in `authorization: Bearer`."""

    keys_file: Annotated[
        str,
        Meta(min_length=1, description="The issuer's public keys: a JWKS document, or one or more PEM public keys."),
    ]
    issuer: Annotated[str, Meta(min_length=1, max_length=1000, description="What the claim `iss` must be.")]
    audience: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=1000,
            description="What the claim `aud` must be or contain: a token made for another service opens nothing here.",
        ),
    ]
    algorithms: Annotated[
        tuple[Algorithm, ...], Meta(min_length=1, description="Signatures that are taken; no others are, ever.")
    ] = ("RS256", "ES256")
    tenant_claim: Annotated[
        ClaimName, Meta(description="The claim that names the tenant: text, of a tenant's form.")
    ] = "sub"
    models_claim: Annotated[
        str,
        Meta(
            max_length=200,
            description="The claim that lists the models its holder may call: a list, or names with blanks between "
            'them; `"*"` among them means all. A token without the claim may call none. Empty: every token may call '
            "all.",
        ),
    ] = ""
    explain_claim: Annotated[
        str,
        Meta(max_length=200, description="A claim that must be `true` for replica names in `x-sluice-explain`."),
    ] = ""
    class_claim: Annotated[
        str,
        Meta(
            max_length=200,
            description="The claim that names the highest class of its holder's calls, in one of the four words; a "
            "token with another value is refused. Without the claim: `identity.highest_class`.",
        ),
    ] = ""
    leeway_s: Annotated[
        float, Meta(ge=0, le=300, description="How far the issuer's clock may differ from this machine's.")
    ] = 10.0
    tokens_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Verified tokens that are remembered until they expire; of more, the least recently used is "
            "forgotten and verified again when it comes.",
        ),
    ] = 10_000


class MtlsPolicy(Strict, frozen=True, kw_only=True):
    """Client certificates, verified against `gateway.listen.tls.client_ca_file`."""

    subjects_file: Annotated[
        str, Meta(min_length=1, description="File that gives subjects of client certificates their tenants.")
    ]


class HeaderPolicy(Strict, frozen=True, kw_only=True):
    """A tenant that a trusted proxy has established."""

    name: Annotated[
        str,
        Meta(min_length=1, max_length=64, description="The header that names the tenant, in lower case: `x-tenant`."),
    ]
    networks: Annotated[
        tuple[str, ...],
        Meta(
            min_length=1,
            description="Networks whose peers are believed, as in `10.1.0.0/16` or `::1/128`. From any other address "
            "the header is as good as absent.",
        ),
    ]


class IdentityPolicy(Strict, frozen=True, kw_only=True):
    mode: Annotated[
        Literal["none", "api_key", "jwt", "mtls", "header", "any"],
        Meta(
            description="`none`: every caller is the tenant `anonymous`. `api_key`, `jwt`, `mtls`, `header`: callers "
            "must show that, declared by the key below. `any`: one of those declared, at least two."
        ),
    ] = "none"
    highest_class: Annotated[
        ClassName,
        Meta(
            description="Highest class of the calls of tenants of which nothing else says it: of everybody with "
            "`mode: none`, of those that the trusted header names, and of keys, subjects and tokens that name none."
        ),
    ] = DEFAULT_NAME
    keys_file: Annotated[
        str, Meta(description="File of key hashes, relative to fleet.yaml, looked at again every `refresh_s`.")
    ] = ""
    refresh_s: Annotated[
        float, Meta(ge=0.2, le=3600, description="Seconds between looks at the files that are named here.")
    ] = 5.0
    jwt: Annotated[JwtPolicy | None, Meta(description="Signed tokens in `authorization: Bearer`.")] = None
    mtls: Annotated[MtlsPolicy | None, Meta(description="Client certificates; wants `gateway.listen.tls`.")] = None
    header: Annotated[
        HeaderPolicy | None,
        Meta(description="A header that is believed from listed networks; its tenants may call all models."),
    ] = None
