"""Store the grants of a tenant in a folder, with users, keys, and the files for the broker and for each user.

`grants.json` contains no secret. Private keys are in `keys`, and the login files of users are in `users`. Only the
owner of the folder can read `keys` and `users`.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pointsman.errors import ConfigurationError, NotFoundError
from pointsman.grants.accounts import exchange
from pointsman.grants.jwt import account_jwt, credentials_text, operator_jwt, scope, user_jwt
from pointsman.grants.permissions import (
    EDGE_DOMAIN,
    TRUSTED_ROLES,
    Grant,
    GrantRole,
    Permissions,
    inbox_prefix,
    role_permissions,
)
from pointsman.grants.server_config import ConfigUser, accounts_block, edge_account, jwt_exchange
from pointsman.util.nkeys import KeyKind, NKey
from pointsman_schemas.ids import Token
from pointsman_schemas.strict_json import describe

__all__ = ["GrantFolder", "GrantFolderContent", "UserRecord"]

_FILE = "grants.json"
_BCRYPT_ROUNDS = 10  # takes some 50 ms for each login; passwords with 256 random bits do not need more rounds
_INCLUDE_NOTE = "# Made by `pointsman grants`. Include this file in the configuration of nats-server.\n"
_SYSTEM_ACCOUNT = "SYS"
_SYSTEM_USER = "sys"
_OPERATOR_KEY = "operator"
_CALLOUT, _CALLOUT_PASSWORD = "callout", "callout-password"


class UserRecord(BaseModel):
    """A user of the folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Token = Field(description="The user.")
    role: GrantRole = Field(description="The role.")
    namespace: Token = Field(description="The namespace.")
    teams: tuple[str, ...] = Field(default=(), description="The teams.")
    agents: tuple[str, ...] = Field(default=(), description="The agents.")
    actions: tuple[str, ...] = Field(default=(), description="The actions.")
    password: str | None = Field(
        default=None, description="The bcrypt hash of the password, if the folder has the mode `config`."
    )
    public_key: str | None = Field(default=None, description="The public key, if the folder has the mode `jwt`.")

    @property
    def grant(self) -> Grant:
        """The grant of the user."""
        return Grant(self.role, self.name, self.teams, self.agents, self.actions)


class _Scope(BaseModel):
    """A signing key. All users that the key signs have the same template of permissions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    public_key: str = Field(description="The public key of the signing key.")
    namespace: Token = Field(description="The namespace.")
    role: GrantRole = Field(description="The role.")
    actions: tuple[str, ...] = Field(default=(), description="The actions.")
    every_team: bool = Field(default=False, description="The users may act for all teams.")

    @property
    def name(self) -> str:
        parts = [self.namespace, self.role, *self.actions, *(["all"] if self.every_team else [])]
        return "-".join(parts)

    @property
    def rights(self) -> Permissions:
        team = "*" if self.every_team else "{{tag(team)}}"
        return role_permissions(
            self.role,
            self.namespace,
            user="{{name()}}",
            team=team,
            agent="{{tag(agent)}}",
            actions=self.actions,
        )


class GrantFolderContent(BaseModel):
    """The content of `grants.json`."""

    model_config = ConfigDict(extra="forbid")

    mode: Literal["config", "jwt"] = Field(
        description="`config` if the users are in a server configuration; `jwt` if the users have JWTs."
    )
    account: Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]{0,31}$")] = Field(
        description="The account with the streams. The name of the edge account is this name and `_EDGE`."
    )
    namespaces: list[Token] = Field(description="The namespaces of the tenant.")
    resolver: str = Field(default="jwt", description="The folder of the server's resolver, as a path on the server.")
    callout: bool = Field(default=False, description="An auth callout decides about connections without a known user.")
    users: list[UserRecord] = Field(default=[], description="The users.")
    keys: dict[str, str] = Field(
        default={},
        description="The public keys of the operator and of the accounts, by name, and the hash of the callout's "
        "password.",
    )
    scopes: list[_Scope] = Field(default=[], description="The signing keys.")
    revoked: dict[str, int] = Field(
        default={}, description="The Unix time of the revocation, by the user's public key."
    )


class GrantFolder:
    """The grants of a tenant, in a folder.

    Args:
        path: The folder.

    Raises:
        NotFoundError: The folder has no grants.
        ConfigurationError: `grants.json` cannot be read or is not valid, or a package is missing.
    """

    def __init__(self, path: Path) -> None:
        _require_packages()
        self.path = path
        try:
            self.content = GrantFolderContent.model_validate_json((path / _FILE).read_bytes())
        except FileNotFoundError:
            raise NotFoundError(f"{path} has no {_FILE}; make the folder with `pointsman grants init {path}`") from None
        except OSError as error:
            raise ConfigurationError(f"{path / _FILE} cannot be read: {error.strerror or error}") from None
        except ValidationError as error:
            raise ConfigurationError(f"{path / _FILE} is not valid: {describe(error)}") from None

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        account: str,
        namespaces: Sequence[str],
        jwt: bool,
        callout: bool = False,
        resolver: str = "jwt",
    ) -> GrantFolder:
        """Make a folder with the keys of a tenant and without users.

        Args:
            path: The folder, which is made if it is missing. It must not have grants yet.
            account: The name of the account with the streams.
            namespaces: The namespaces of the tenant.
            jwt: True to write JWTs for the server, False to write the users into a server configuration.
            callout: True to use an auth callout for connections without a known user; default False.
            resolver: The folder in which a server stores accounts; default `jwt`, in the server's working directory.

        Returns:
            The folder.

        Raises:
            ConfigurationError: The folder already has grants, a name is not valid, or both `jwt` and `callout` are set.
        """
        _require_packages()
        if jwt and callout:
            raise ConfigurationError("a callout needs users of a server configuration; omit --jwt or --callout")
        if (path / _FILE).exists():
            raise ConfigurationError(f"{path} already has grants; choose another folder, or add users to this folder")
        try:
            content = GrantFolderContent(
                mode="jwt" if jwt else "config",
                account=account,
                namespaces=list(dict.fromkeys(namespaces)),
                callout=callout,
                resolver=resolver,
            )
        except ValidationError as error:
            raise ConfigurationError(f"the tenant is not valid: {describe(error)}") from None
        path.mkdir(parents=True, exist_ok=True)
        if jwt:
            kinds: dict[str, KeyKind] = {_OPERATOR_KEY: "operator", _SYSTEM_ACCOUNT: "account"}
            kinds |= dict.fromkeys((account, edge_account(account)), "account")
            for name, kind in kinds.items():
                content.keys[name] = _new_key(path, name, kind).public
        login = ""
        if callout:
            content.keys[_CALLOUT] = _new_key(path, _CALLOUT, "account").public
            login = secrets.token_urlsafe(32)
            content.keys[_CALLOUT_PASSWORD] = _hash(login)
        _write(path / _FILE, content.model_dump_json(indent=1, exclude_defaults=True), private=False)
        folder = cls(path)
        if jwt:
            folder._write_system_user()
        if callout:
            variables = f"POINTSMAN_USER={_CALLOUT}\nPOINTSMAN_PASSWORD={login}\n"
            _write(folder._users / f"{_CALLOUT}.env", variables)
        folder.save()
        return folder

    # Users

    def add(self, grant: Grant, namespace: str | None = None) -> list[Path]:
        """Add a user, and write the files with which the user connects.

        Args:
            grant: The grant.
            namespace: The namespace; default: the first namespace of the tenant.

        Returns:
            The files of the user.

        Raises:
            ConfigurationError: The name is in use, or the namespace does not belong to the tenant.
        """
        chosen = namespace or self.content.namespaces[0]
        if chosen not in self.content.namespaces:
            raise ConfigurationError(
                f"the tenant has no namespace {chosen!r}; choose from: {', '.join(self.content.namespaces)}"
            )
        if grant.name in (_SYSTEM_USER, _CALLOUT) or any(user.name == grant.name for user in self.content.users):
            raise ConfigurationError(f"the user {grant.name!r} exists; choose another name, or use `grants rotate`")
        record = UserRecord(
            name=grant.name,
            role=grant.role,
            namespace=chosen,
            teams=grant.teams,
            agents=grant.agents,
            actions=grant.actions,
        )
        return self._issue(record)

    def rotate(self, name: str) -> list[Path]:
        """Make a new secret for a user.

        The server refuses the old secret as soon as the server has the new configuration or account.

        Args:
            name: The user.

        Returns:
            The files of the user.

        Raises:
            NotFoundError: There is no such user.
        """
        return self._issue(self._remove(name))

    def rotate_all(self) -> list[Path]:
        """Make new signing keys, and a new secret for each user.

        Returns:
            The files of the users.
        """
        self.content.scopes.clear()  # without scopes, `rotate` makes new signing keys
        return [path for user in list(self.content.users) for path in self.rotate(user.name)]

    def revoke(self, name: str) -> None:
        """Remove a user. The server refuses the user as soon as the server has the new configuration or account.

        Args:
            name: The user.

        Raises:
            NotFoundError: There is no such user.
        """
        self._remove(name)
        for path in self._user_files(name):
            path.unlink(missing_ok=True)
        self.save()

    def save(self) -> None:
        """Write `grants.json` and the file for the server."""
        _write(self.path / _FILE, self.content.model_dump_json(indent=1, exclude_defaults=True) + "\n", private=False)
        _write(self.server_file, self._server_text(), private=False)

    @property
    def server_file(self) -> Path:
        """The file that must be included in the configuration of nats-server."""
        return self.path / ("accounts.conf" if self.content.mode == "config" else "operator.conf")

    @property
    def system_credentials(self) -> Path:
        """The credentials file of the system user, who may send account JWTs to the servers."""
        return self._users / f"{_SYSTEM_USER}.creds"

    def account_jwts(self) -> dict[str, str]:
        """Return the JWTs of the tenant's accounts by public key, without the system account.

        Returns:
            The JWTs.
        """
        content = self.content
        operator = self._key(_OPERATOR_KEY)
        names = (content.account, edge_account(content.account))
        trusted, edge = (content.keys[name] for name in names)
        exports, imports = jwt_exchange(exchange(content.namespaces), trusted, edge)
        found: dict[str, str] = {}
        for name, holds_streams in zip(names, (True, False), strict=True):
            scopes = [
                scope(each.public_key, each.name, each.rights)
                for each in content.scopes
                if (each.role in TRUSTED_ROLES) is holds_streams
            ]
            found[content.keys[name]] = account_jwt(
                operator,
                name,
                content.keys[name],
                signing_keys=scopes,
                exports=exports[holds_streams],
                imports=imports[holds_streams],
                revocations=content.revoked,
                jetstream=holds_streams,
            )
        return found

    # Files

    @property
    def _users(self) -> Path:
        return self.path / "users"

    def _user_files(self, name: str) -> list[Path]:
        return [self._users / f"{name}.env", *([self._users / f"{name}.creds"] if self.content.mode == "jwt" else [])]

    def _issue(self, record: UserRecord) -> list[Path]:
        """Write the files of a user with a new secret, and add the user."""
        login = dict[str, str]()
        files = self._user_files(record.name)
        if self.content.mode == "config":
            password = secrets.token_urlsafe(32)
            record = record.model_copy(update={"password": _hash(password)})
            login["POINTSMAN_PASSWORD"] = password
        else:
            key = NKey.generate("user")
            record = record.model_copy(update={"public_key": key.public})
            _write(files[1], credentials_text(self._user_jwt(record, key), key))
            login["POINTSMAN_CREDENTIALS"] = str(files[1].resolve())
        variables = {
            "POINTSMAN_USER": record.name,
            **login,
            "POINTSMAN_NAMESPACE": record.namespace,
            "POINTSMAN_INBOX_PREFIX": inbox_prefix(record.grant),
            **({} if record.grant.trusted else {"POINTSMAN_JETSTREAM_DOMAIN": EDGE_DOMAIN}),
            **({} if record.grant.trusted else {"POINTSMAN_PROVISION": "false"}),
        }
        _write(files[0], "".join(f"{name}={value}\n" for name, value in variables.items()))
        self.content.users.append(record)
        self.save()
        return files

    def _remove(self, name: str) -> UserRecord:
        found = next((user for user in self.content.users if user.name == name), None)
        if found is None:
            known = ", ".join(user.name for user in self.content.users) or "none"
            raise NotFoundError(f"{self.path} has no user {name!r}; the users are: {known}")
        self.content.users.remove(found)
        if found.public_key is not None:
            self.content.revoked[found.public_key] = int(time.time())
        return found

    def _user_jwt(self, record: UserRecord, key: NKey) -> str:
        account = self.content.account if record.grant.trusted else edge_account(self.content.account)
        tags = [f"team:{each}" for each in record.teams] + [f"agent:{each}" for each in record.agents]
        signer = self._signing_key(record)
        return user_jwt(signer, record.name, key.public, account=self.content.keys[account], tags=tags)

    def _signing_key(self, record: UserRecord) -> NKey:
        """Return the signing key for users of the same role, namespace and actions as a user. Make a missing key."""
        wanted = {
            "namespace": record.namespace,
            "role": record.role,
            "actions": tuple(sorted(record.actions)),
            "every_team": "*" in record.teams,
        }
        for each in self.content.scopes:
            if all(getattr(each, name) == value for name, value in wanted.items()):
                return self._key(each.name)
        made = _Scope.model_validate({**wanted, "public_key": ""})
        key = _new_key(self.path, made.name, "account")
        self.content.scopes.append(made.model_copy(update={"public_key": key.public}))
        return key

    def callout_key(self) -> NKey:
        """Return the key that signs the answers of the callout.

        Returns:
            The key.
        """
        return self._key(_CALLOUT)

    def _key(self, name: str) -> NKey:
        path = self.path / "keys" / f"{name}.seed"
        try:
            return NKey.from_seed(path.read_text().strip())
        except OSError as error:
            raise ConfigurationError(
                f"{path} cannot be read: {error.strerror or error}; restore the key file to change grants"
            ) from None
        except ValueError as error:
            raise ConfigurationError(f"the seed in {path} {error}") from None

    def _write_system_user(self) -> None:
        key = NKey.generate("user")
        rights = Permissions(("$SYS.REQ.CLAIMS.UPDATE",), (f"_INBOX.{_SYSTEM_USER}.>",))
        jwt = user_jwt(self._key(_SYSTEM_ACCOUNT), _SYSTEM_USER, key.public, rights=rights)
        _write(self.system_credentials, credentials_text(jwt, key))

    def _server_text(self) -> str:
        content = self.content
        if content.mode == "config":
            users = [ConfigUser(user.grant, user.namespace, user.password or "") for user in content.users]
            block = accounts_block(content.account, users, namespaces=content.namespaces)
            block += self._callout_account() if content.callout else ""
            return f"{_INCLUDE_NOTE}accounts {{\n{block}}}\n{self._callout_block() if content.callout else ''}"
        system = content.keys[_SYSTEM_ACCOUNT]
        operator = self._key(_OPERATOR_KEY)
        preload = {system: account_jwt(operator, _SYSTEM_ACCOUNT, system), **self.account_jwts()}
        lines = "".join(f"  {public}: {jwt}\n" for public, jwt in preload.items())
        return (
            f"{_INCLUDE_NOTE}operator: {operator_jwt(operator, content.account, system_account=system)}\n"
            f"system_account: {system}\n"
            f"resolver: {{ type: full, dir: {json.dumps(content.resolver)}, allow_delete: false }}\n"
            f"resolver_preload: {{\n{lines}}}\n"
        )

    def _callout_account(self) -> str:
        """Return the account of the callout service, for the server. The service is the only user of the account."""
        user, password = json.dumps(_CALLOUT), json.dumps(self.content.keys[_CALLOUT_PASSWORD])
        return f"{self.content.account}_AUTH: {{ users: [ {{ user: {user}, password: {password} }} ] }}\n"

    def _callout_block(self) -> str:
        issuer, account = self.content.keys[_CALLOUT], f"{self.content.account}_AUTH"
        callout = f"issuer: {issuer}, account: {account}, auth_users: [ {json.dumps(_CALLOUT)} ]"
        return f"authorization {{ auth_callout {{ {callout} }} }}\n"


def _require_packages() -> None:
    missing = [name for name in ("cryptography", "bcrypt") if find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"grants need {' and '.join(missing)}: pip install 'pointsman[grants]'")


def _hash(password: str) -> str:
    import bcrypt

    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(_BCRYPT_ROUNDS)).decode()


def _new_key(folder: Path, name: str, kind: KeyKind) -> NKey:
    key = NKey.generate(kind)
    _write(folder / "keys" / f"{name}.seed", key.seed + "\n")
    return key


def _write(path: Path, text: str, *, private: bool = True) -> None:
    """Write a file under a temporary name, and then rename it. So a server that reloads never reads a partial file."""
    path.parent.mkdir(mode=0o700 if private else 0o755, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    try:
        with open(os.open(part, flags, 0o600 if private else 0o644), "w", encoding="utf-8") as output:
            output.write(text)
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ConfigurationError(f"{path} cannot be written: {error.strerror or error}") from None
