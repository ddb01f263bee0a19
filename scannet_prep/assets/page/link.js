/** Conversion of the view to the part of the page's address after `#`, and back. `link.py` documents and reads it, too. */

// A view from farther away shows nothing.
const MAX_NUMBER = 1e9;
// Some programs cut off addresses of 2,000 characters; the name of the page needs some of them.
const MAX_LINK = 1800;
// The words for hidden categories: of the listed ones, or of another colouring.
const HIDDEN_WORD = /^(hide|only|hidden)(?:\.([\w-]+))?$/;

/** Write the view as text: scene, colourings, camera, options that differ from the defaults, and hidden categories. */
function writeLink({ scene, coloring, beside, panes, listing, camera, hidden, visibility, options, clip, aspect }) {
  const round = (number) => Number(number.toFixed(4)).toString();
  const words = new URLSearchParams({ scene: scene.name, color: coloring.name });
  words.set("view", [camera.azimuth, camera.elevation, camera.distance, ...camera.target].map(round).join(","));
  words.set("aspect", round(aspect));
  for (const name of beside) words.append("beside", name);
  for (const [name, { value, start }] of Object.entries(options)) {
    if (value !== start) words.set(name, typeof value === "number" ? round(value) : String(value));
  }
  if (clip.isUsed) words.set("clip", clip.numbers.map(round).join(","));
  // The names of the listed categories have no suffix.
  let link = addHidden(words, "", hidden, listing.categories);
  for (const hiding of visibility.hiding(scene).filter((each) => !panes.shows(each))) {
    link = addHidden(link, `.${hiding.name}`, visibility.hidden(scene, hiding), hiding.categories);
  }
  return `#${link}`;
}

/** Add the hidden categories by name, or as bits if the names are too long. */
function addHidden(words, suffix, hidden, categories) {
  if (!hidden.size) return words;
  const named = new URLSearchParams(words);
  if (2 * hidden.size <= categories.length) {
    for (const number of hidden) named.append(`hide${suffix}`, categories[number].name);
  } else {
    const shown = categories.filter((_, number) => !hidden.has(number));
    for (const { name } of shown) named.append(`only${suffix}`, name);
    if (!shown.length) named.append(`only${suffix}`, "");
  }
  if (String(named).length < MAX_LINK) return named;
  const bits = new URLSearchParams(words);
  bits.set(`hidden${suffix}`, encodeBits(hidden));
  // Of more than 10,000 categories, the link contains none.
  return String(bits).length < MAX_LINK ? bits : words;
}

/** Write numbers as bits, in base64 of addresses; the lowest bit of each byte comes first. */
function encodeBits(numbers) {
  const bytes = new Uint8Array((Math.max(...numbers) >> 3) + 1);
  for (const number of numbers) bytes[number >> 3] |= 1 << (number & 7);
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** Read numbers from bits; none from an invalid text. */
function decodeBits(text) {
  const numbers = new Set();
  let letters = "";
  try {
    letters = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  } catch {
    return numbers;
  }
  for (let number = 0; number < 8 * letters.length; number++) {
    if (letters.charCodeAt(number >> 3) & (1 << (number & 7))) numbers.add(number);
  }
  return numbers;
}

/**
 * Write the view for another scene: without scene, camera and clip box, and with the names of all that is hidden in all
 * scenes, however many. Numbers of categories mean something else there.
 */
function writeLinkOfNextScene(viewer) {
  const words = new URLSearchParams(writeLink(viewer).replace(/^#/, ""));
  for (const word of [...words.keys()]) {
    if (["scene", "view", "clip"].includes(word) || HIDDEN_WORD.test(word)) words.delete(word);
  }
  for (const [coloring, name] of viewer.visibility.inAllScenes) words.append(`hide.${coloring}`, name);
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
  link.hidden = new Map(); // of the listed categories by "", and of other colourings by their names
  for (const [key, text] of words) {
    const [, kind, coloring = ""] = key.match(HIDDEN_WORD) ?? [];
    if (!kind) continue;
    if (!link.hidden.has(coloring)) link.hidden.set(coloring, {});
    const found = link.hidden.get(coloring);
    if (kind === "hidden") found.numbers = decodeBits(text);
    else (found[kind] ??= new Set()).add(text);
  }
  const clip = (words.get("clip") ?? "").split(",").map(Number);
  if (clip.length === 6 && clip.every((number) => Math.abs(number) < MAX_NUMBER)) link.clip = clip;
  for (const [name, low, high] of [["points", 1 / 4, 4], ["ceiling", 0, MAX_NUMBER]]) {
    const number = Number.parseFloat(words.get(name));
    if (Number.isFinite(number)) link.options[name] = Math.min(high, Math.max(low, number));
  }
  for (const name of ["mesh", "grid", "backs", "cameras", "edges", "boxes", "ortho", "light"]) {
    if (words.has(name)) link.options[name] = words.get(name) === "true";
  }
  return link;
}

/** Return the numbers of the categories that a link hides: by their names, those of the shown ones, or their numbers. */
function hiddenByLink({ hide, only, numbers }, categories) {
  const hidden = new Set();
  categories.forEach(({ name }, index) => {
    if (hide?.has(name) || (only && !only.has(name)) || numbers?.has(index)) hidden.add(index);
  });
  return hidden;
}
