// A submission's page follows what becomes of it; without this script a reader loads it again.
const told = document.querySelector("#progress");
const wait = 2000;
let version = told.dataset.version;

async function look() {
  try {
    const answer = await fetch(told.dataset.address, { headers: { accept: "application/json" } });
    if (answer.ok) {
      const now = await answer.json();
      told.textContent = now.progress;
      if (now.version !== version && now.finished) {
        location.reload();
        return;
      }
    }
  } catch {
    // The server is away: it is asked again.
  }
  setTimeout(look, wait);
}
setTimeout(look, wait);
