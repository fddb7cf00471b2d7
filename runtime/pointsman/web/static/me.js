// The user of this page: the name for the header, the role, and the caller whose conversations are the user's own.

export const me = fetch("/api/me")
  .then((response) => (response.ok ? response.json() : null))
  .catch(() => null);
