// Before the page is drawn, apply the theme that the user chose in this browser. Without a choice, the system decides.
try {
  const chosen = localStorage.getItem("pointsman-theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch {
  // storage is forbidden, so use the theme of the system
}
