"""Opens the rooms for people: users, tokens and all ways to log in, quotas, and the effects of changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from itertools import chain
from pathlib import Path

from cellgate.console.sign_ins import SignIns
from cellgate.http.access import AccessPolicy
from cellgate.http.attempts import LoginAttempts
from cellgate.http.listener.server import Listener
from cellgate.http.metrics import Metrics
from cellgate.http.services import People, Services
from cellgate.identity.administrator import Administrator, read_own_token
from cellgate.identity.authentication import Authentication, Authenticator
from cellgate.identity.derived import DerivedTokens
from cellgate.identity.directory import PrincipalDirectory
from cellgate.identity.hub import HubAuthenticator
from cellgate.identity.hub_sign_in import HubSignIn
from cellgate.identity.librechat import open_librechat
from cellgate.identity.oidc import OidcAuthenticator
from cellgate.identity.oidc_sign_in import ProviderSignIn
from cellgate.identity.principal import Login
from cellgate.identity.provider import open_keys
from cellgate.identity.signed_tickets import SharedSignIns
from cellgate.identity.store.opening import ClusterUsers, UsersPlace, reader_of_users, users_of_cluster
from cellgate.identity.user_keeper import UserKeeper
from cellgate.quotas.quotas import Policy
from cellgate.quotas.quotas_file import QUOTAS_FILE, QuotaSettings
from cellgate.quotas.usage import Usage
from cellgate.record.store.interface import RecordStore
from cellgate.server.settings import FrontSettings, GatewaySettings, PeopleSettings
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.threads import Lane, ThreadLanes
from cellgate_kernels.base.watched_file import FileForm, T, WatchedFile


async def open_people(
    settings: GatewaySettings, cluster: ClusterUsers | None, metrics: Metrics, stack: AsyncExitStack
) -> People:
    """Open the users of data folder or cluster, and all ways to log in. Raises InvalidInput, StorageError."""
    people, provider, hub = settings.people, None, None
    reader = reader_of_users(settings.data_dir) if cluster is None else cluster.reader
    administrator = Administrator(people.token, None if cluster is None else cluster.key)
    directory = PrincipalDirectory(reader, administrator)
    shared = None
    if cluster is not None:
        key, ended = cluster.key.derived("sign-ins"), directory.is_sign_in_ended
        shared = SharedSignIns(key, cluster.ledger, ended, administrator=administrator)
        stack.push_async_callback(shared.close)
    others: list[Authenticator] = []
    if people.librechat_key is not None:
        # Before the provider, which takes every other token of this form for its own.
        others.append(await open_librechat(people.librechat_key))
    if people.oidc is not None:
        keys = await open_keys(people.oidc)
        others.append(OidcAuthenticator(people.oidc, keys))
        if people.oidc.client_id:
            provider = ProviderSignIn(people.oidc, keys)
            stack.push_async_callback(provider.close)
    if people.hub is not None:
        # The last: it asks the Hub about every token that no other way knows.
        logins = HubAuthenticator(people.hub)
        others.append(logins)
        if people.hub.token:
            hub = HubSignIn(people.hub, logins)
            stack.push_async_callback(hub.close)
    authentication = Authentication(directory, tuple(others))
    stack.push_async_callback(authentication.close)
    await directory.refresh()
    tokenless = "--no-auth" if directory.is_open else "--e2b-debug" if settings.front.e2b_debug else None
    if tokenless is not None and (cluster is not None or authentication.is_shared):
        whose = "This data folder has users" if directory.has_users else "Others vouch for users"
        instead = ", or with another --data-dir"
        if cluster is not None:
            whose, instead = "The other gateways of the cluster let in whoever is signed in here", ""
        raise InvalidInput(
            f"{whose}, and {tokenless} would make everybody the administrator: start without it{instead}"
        )
    address = "" if settings.cluster is None else settings.cluster.address
    place = UsersPlace(settings.data_dir, address, people.cluster_key)
    users = UserKeeper(place, directory, tokenless=tokenless or "")
    stack.callback(users.close)
    return People(
        access=_access(settings.front, authentication),
        attempts=LoginAttempts(settings.front.login_attempts),
        usage=Usage(people.quotas.policy, authentication.role_of, refused=metrics.quota_refused),
        sign_ins=SignIns(authentication.is_valid, shared=shared),
        derived_tokens=DerivedTokens(
            authentication.is_valid,
            key=None if cluster is None else cluster.key.derived("tokens"),
            administrator=administrator,
        ),
        users=users,
        provider=provider,
        hub=hub,
    )


async def cluster_users(settings: GatewaySettings, lanes: ThreadLanes) -> ClusterUsers | None:
    """Return the users of the cluster that the gateway is of, if it is of one. Raises StorageError."""
    cluster = settings.cluster
    if cluster is None:
        return None
    place = UsersPlace(settings.data_dir, cluster.address, settings.people.cluster_key)
    return await lanes.bulk.run(users_of_cluster, place)


def _access(front: FrontSettings, authentication: Authentication) -> AccessPolicy:
    everywhere = front.ip in {"", "0.0.0.0", "::"}  # noqa: S104
    own = frozenset() if everywhere else frozenset({front.ip})
    return AccessPolicy(
        authentication, front.allowed_hosts | own, front.allowed_origins, any_address=everywhere
    )


class Changes:
    """The effects of changes of users and tokens: connections and sessions end, quotas change."""

    def __init__(
        self, services: Services, servers: tuple[Listener, ...], authentication: Authentication
    ) -> None:
        self._people = services.people
        self._manager = services.sessions.manager
        self._servers = servers
        self._authentication = authentication

    def logins_changed(self) -> None:
        """Close the connections of ended logins, and look roles up again."""
        self.end_logins()
        self._people.usage.refresh()

    def end_logins(self) -> None:
        """Close the connections of ended logins."""
        for server in self._servers:
            server.end_logins(self._authentication.is_valid)

    def open_logins(self) -> Iterator[Login]:
        """Return the logins of open connections, and of browsers and derived tokens used lately."""
        of_connections = chain.from_iterable(server.open_logins() for server in self._servers)
        people = self._people
        return chain(of_connections, people.sign_ins.logins_in_use(), people.derived_tokens.logins_in_use())

    def role_changed(self, name: str) -> None:
        """Apply the quotas of the principal's role."""
        self._people.usage.refresh_account(name)

    def user_gone(self, name: str, cause: str) -> None:
        """End a user's sessions; their records and files stay."""
        self._manager.end_all(name, cause)


async def measure_records(usage: Usage, journal: RecordStore, settings: QuotaSettings) -> None:
    """Load each principal's record size; later writes add to it. Without a quotas file, does nothing."""
    if settings.file is not None:
        usage.load_records(await journal.reads.record_sizes())


def watch_quotas(settings: QuotaSettings, usage: Usage, stack: AsyncExitStack) -> None:
    """Apply the file of quotas, if there is one, whenever it changes."""

    async def take(policy: Policy) -> None:
        usage.change(policy)

    if settings.file is not None:
        _watch(settings.file, QUOTAS_FILE, settings.policy, take, stack)


def watch_own_token(
    settings: PeopleSettings,
    administrator: Administrator,
    changed: Callable[[str], Awaitable[object]],
    stack: AsyncExitStack,
) -> None:
    """Take the token of the operator's file, if there is one, whenever it changes; then call `changed`."""

    async def take(token: str) -> None:
        administrator.change(token)
        await changed(token)

    if settings.token_file is not None and settings.token is not None:
        _watch(settings.token_file, FileForm("token", read_own_token), settings.token, take, stack)


def _watch(
    path: Path, form: FileForm[T], value: T, changed: Callable[[T], Awaitable[object]], stack: AsyncExitStack
) -> None:
    lane = Lane(form.content, 1)
    stack.callback(lane.close)
    watched = WatchedFile(path, form, value, changed, lane)
    stack.push_async_callback(watched.close)
    watched.start()
