// Before anything is drawn: the theme that was chosen here, if one was. Without a choice the system's counts.
try {
  const chosen = localStorage.getItem("pointsman-theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch {
  // storage is forbidden: the system's theme it is
}
