"""Section ``network`` of a recipe: how the connections between a run's processes are secured."""

from asyncrl.core.recipe.section import Section, Text


class NoTlsConfig(Section, frozen=True, tag_field="kind", tag="none"):
    """Connections are not encrypted. Each is still refused to whoever does not show the run's secret."""


class RunTlsConfig(Section, frozen=True, tag_field="kind", tag="run"):
    """Connections are encrypted with keys that the driver makes for the run and hands out through Ray."""


class FileTlsConfig(Section, frozen=True, tag_field="kind", tag="files"):
    """Connections are encrypted with keys of yours, which the driver reads from PEM files and hands out through Ray.

    Attributes:
        certificate: file of the certificate that every process of the run shows.
        key: file of its private key, without a passphrase.
        authority: file of the authority's certificate; no other authority is accepted.
    """

    certificate: Text
    key: Text
    authority: Text


class NetworkConfig(Section, frozen=True):
    """The connections between the run's own processes; docs/operations/network.md says which there are.

    Attributes:
        tls: whether they are encrypted, and with which keys. Secrets and keys pass through Ray, so Ray's own connections to other
            nodes must be encrypted too (``RAY_USE_TLS=1``).
    """

    tls: NoTlsConfig | RunTlsConfig | FileTlsConfig = NoTlsConfig()
