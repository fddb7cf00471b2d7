// The user of this page: the name for the header, the role, and the caller name of the user's conversations.

export const me = fetch("/api/me")
  .then((response) => (response.ok ? response.json() : null))
  .catch(() => null);
