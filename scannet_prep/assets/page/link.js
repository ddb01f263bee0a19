/** Conversion of the view to the part of the page's address after `#`, and back. */

// A view from farther away shows nothing.
const MAX_NUMBER = 1e9;

/** Write the view as text: scene, colouring, camera, hidden categories, and options that differ from the defaults. */
function writeLink({ scene, coloring, camera, visibility, options, clip }) {
  const round = (number) => Number(number.toFixed(4)).toString();
  const words = new URLSearchParams({ scene: scene.name, color: coloring.name });
  words.set("view", [camera.azimuth, camera.elevation, camera.distance, ...camera.target].map(round).join(","));
  for (const hiding of visibility.hiding(scene)) {
    // The names of the current colouring have no suffix.
    const suffix = hiding === coloring ? "" : `.${hiding.name}`;
    writeHidden(words, suffix, hiding.categories, visibility.hidden(scene, hiding));
  }
  for (const [name, { value, start }] of Object.entries(options)) {
    if (value !== start) words.set(name, typeof value === "number" ? round(value) : String(value));
  }
  if (clip.isUsed) words.set("clip", clip.numbers.map(round).join(","));
  return `#${words}`;
}

/** Write the names of the hidden categories, or of the shown ones if these are fewer. */
function writeHidden(words, suffix, categories, hidden) {
  if (2 * hidden.size <= categories.length) {
    for (const number of hidden) words.append(`hide${suffix}`, categories[number].name);
    return;
  }
  const shown = categories.filter((_, number) => !hidden.has(number));
  for (const { name } of shown) words.append(`only${suffix}`, name);
  if (!shown.length) words.append(`only${suffix}`, "");
}

/** Read the view from text, leaving out values that are missing or invalid. */
function readLink(text) {
  const words = new URLSearchParams(text.replace(/^#/, ""));
  const view = (words.get("view") ?? "").split(",").map(Number);
  const link = { scene: words.get("scene"), color: words.get("color"), hidden: new Map(), options: {} };
  if (view.length === 6 && view.every((number) => Math.abs(number) < MAX_NUMBER) && view[2] > 0) {
    link.view = { azimuth: view[0], elevation: view[1], distance: view[2], target: view.slice(3) };
  }
  for (const [key, name] of words) {
    const [, kind, coloring] = key.match(/^(hide|only)(?:\.(\w+))?$/) ?? [];
    if (!kind) continue;
    const names = link.hidden.get(coloring ?? "") ?? {};
    (names[kind] ??= new Set()).add(name);
    link.hidden.set(coloring ?? "", names);
  }
  const clip = (words.get("clip") ?? "").split(",").map(Number);
  if (clip.length === 6 && clip.every((number) => Math.abs(number) < MAX_NUMBER)) link.clip = clip;
  for (const [name, low, high] of [["points", 1 / 4, 4], ["ceiling", 0, MAX_NUMBER]]) {
    const number = Number.parseFloat(words.get(name));
    if (Number.isFinite(number)) link.options[name] = Math.min(high, Math.max(low, number));
  }
  for (const name of ["mesh", "grid", "backs", "edges", "boxes", "ortho", "light"]) {
    if (words.has(name)) link.options[name] = words.get(name) === "true";
  }
  return link;
}

/** Return the numbers of the categories that a link hides, by their names or by those of the shown ones. */
function hiddenByLink({ hide, only }, categories) {
  const hidden = new Set();
  categories.forEach(({ name }, index) => {
    if (hide?.has(name) || (only && !only.has(name))) hidden.add(index);
  });
  return hidden;
}
