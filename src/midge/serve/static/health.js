/** What the server says of itself: the model's name, and what it can. */

const RETRY_MILLISECONDS = 3000;

/** Shows name and description of the model; while the server does not answer, asks again. */
export async function describeModel(document, messages) {
  try {
    const answer = await fetch(`/health${location.search}`);
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    show(document, await answer.json());
    messages.clear("health");
  } catch {
    messages.show("health", "The server does not answer. The page goes on asking.", "warning");
    setTimeout(() => describeModel(document, messages), RETRY_MILLISECONDS);
  }
}

function show(document, health) {
  document.getElementById("model").textContent = health.model ?? "";
  document.getElementById("description").textContent = health.description ?? "";
}
