/** The page of a scene that cannot be shown: it leads to the list, and to the scenes before and after this one. */

const $ = (id) => document.getElementById(id);

async function start() {
  const neighbours = new Neighbours($("title").textContent);
  $("home").href = neighbours.home;
  await neighbours.load();
  $("position").textContent = neighbours.position;
  const keys = new Map();
  for (const [id, key, steps] of [["previous", "p", -1], ["next", "n", 1]]) {
    const address = neighbours.address(steps);
    $(id).disabled = !address;
    // The page takes the place of this one, with the same view: one step back leads to the list.
    $(id).addEventListener("click", () => location.replace(address + location.hash));
    keys.set(key, $(id));
  }
  addEventListener("keydown", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.altKey) keys.get(event.key)?.click();
  });
}

start();
