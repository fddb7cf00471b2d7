// The login form. The server stores the session in a cookie that no script can read.
const form = document.getElementById("login");
const problem = document.getElementById("problem");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const token = document.getElementById("token").value;
  const response = await fetch("/login", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ token }),
  });
  if (response.ok) {
    location.replace("/");
    return;
  }
  problem.textContent = (await response.json().catch(() => ({}))).error || `The server answered ${response.status}.`;
  problem.hidden = false;
});
