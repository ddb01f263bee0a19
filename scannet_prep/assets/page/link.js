/** Conversion of the view to the part of the page's address after `#`, and back. */

// A view from farther away shows nothing.
const MAX_NUMBER = 1e9;

/** Write the view as text: scene, colourings, camera, hidden categories, and options that differ from the defaults. */
function writeLink({ scene, coloring, beside, listing, camera, hidden, options }) {
  const round = (number) => Number(number.toFixed(4)).toString();
  const words = new URLSearchParams({ scene: scene.name, color: coloring.name });
  words.set("view", [camera.azimuth, camera.elevation, camera.distance, ...camera.target].map(round).join(","));
  for (const name of beside) words.append("beside", name);
  const shown = listing.categories.filter((_, index) => !hidden.has(index));
  if (hidden.size && 2 * hidden.size <= listing.categories.length) {
    for (const index of hidden) words.append("hide", listing.categories[index].name);
  } else if (hidden.size) {
    for (const category of shown) words.append("only", category.name);
    if (!shown.length) words.append("only", "");
  }
  for (const [name, { value, start }] of Object.entries(options)) {
    if (value !== start) words.set(name, typeof value === "number" ? round(value) : String(value));
  }
  return `#${words}`;
}

/** Return a link for another scene: without scene and camera, with everything else. */
function linkWithoutScene(link) {
  const words = new URLSearchParams(link.replace(/^#/, ""));
  words.delete("scene");
  words.delete("view");
  return `#${words}`;
}

/** Read the view from text, leaving out values that are missing or invalid. */
function readLink(text) {
  const words = new URLSearchParams(text.replace(/^#/, ""));
  const view = (words.get("view") ?? "").split(",").map(Number);
  const link = { scene: words.get("scene"), color: words.get("color"), beside: words.getAll("beside"), options: {} };
  if (view.length === 6 && view.every((number) => Math.abs(number) < MAX_NUMBER) && view[2] > 0) {
    link.view = { azimuth: view[0], elevation: view[1], distance: view[2], target: view.slice(3) };
  }
  for (const name of ["hide", "only"]) {
    if (words.has(name)) link[name] = new Set(words.getAll(name));
  }
  for (const [name, low, high] of [["points", 1 / 4, 4], ["ceiling", 0, MAX_NUMBER]]) {
    const number = Number.parseFloat(words.get(name));
    if (Number.isFinite(number)) link.options[name] = Math.min(high, Math.max(low, number));
  }
  for (const name of ["mesh", "grid", "backs", "cameras", "light"]) {
    if (words.has(name)) link.options[name] = words.get(name) === "true";
  }
  return link;
}

/** Return the numbers of the listed categories that a link hides. */
function hiddenByLink({ hide, only }, categories) {
  const hidden = new Set();
  categories.forEach(({ name }, index) => {
    if (hide?.has(name) || (only && !only.has(name))) hidden.add(index);
  });
  return hidden;
}
