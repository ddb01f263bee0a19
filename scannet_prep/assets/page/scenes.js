/** The list of the scenes of a server: search, filters, order, and a picture of each scene. */

const $ = (id) => document.getElementById(id);
const FACTS_HEIGHT = 76; // below the picture of a scene, in pixels
const PICTURE_DELAY_MS = 120; // no picture is made of scenes that are scrolled past
const SCORES_DELAY_MS = 1000;

class SceneList {
  #scores = { total: 0, scores: {}, failures: {} };

  /** @param {object} data the scenes, as `/scenes` describes them */
  constructor(data) {
    this.data = data;
    this.grid = new Grid($("scenes"), (width) => 0.75 * width + FACTS_HEIGHT, (scene) => this.#makeCard(scene));
    this.#addChoices();
    this.filter = readFilter(location.search);
    for (const name of ["search", "split", "class", "sort"]) {
      $(name).value = this.filter[name];
      $(name).addEventListener("input", () => this.#choose(name, $(name).value));
    }
    $("all").addEventListener("click", () => this.#showAll());
    // Back from a scene, the list shows it again.
    $("scenes").addEventListener("click", ({ target }) => {
      const card = target.closest("li");
      if (card) history.replaceState(null, "", `${location.pathname}${location.search}#${card.dataset.key}`);
    });
  }

  show() {
    this.#update();
    const opened = this.data.scenes.find((scene) => scene.id === location.hash.slice(1));
    if (opened) this.grid.reveal(opened);
  }

  /** Request the scores that have been computed so far. */
  async loadScores() {
    if (this.data.score) this.#scores = await request("/scores");
  }

  /** Ask for more scores until all have been computed, and show them. */
  async followScores() {
    while (this.#countScores() < this.#scores.total) {
      await new Promise((resolve) => setTimeout(resolve, SCORES_DELAY_MS));
      const before = this.#countScores();
      await this.loadScores();
      if (this.#countScores() > before) this.#update();
    }
  }

  #countScores() {
    return Object.keys(this.#scores.scores).length + Object.keys(this.#scores.failures).length;
  }

  #choose(name, value) {
    this.filter[name] = value;
    history.replaceState(null, "", location.pathname + writeFilter(this.filter));
    scrollTo(0, 0);
    this.#update();
  }

  #showAll() {
    for (const name of ["search", "split", "class"]) {
      $(name).value = "";
      this.filter[name] = "";
    }
    this.#choose("search", "");
  }

  #update() {
    const shown = filterScenes(this.data, this.filter, this.#scores.scores);
    this.grid.show(shown);
    this.grid.forEachVisible((scene, card) => this.#fillCard(scene, card));
    const all = this.data.scenes.length;
    const parts = [shown.length === all ? countOf(all, "scene") : `${formatCount(shown.length)} of ${countOf(all, "scene")}`];
    const { total } = this.#scores, scored = this.#countScores();
    if (scored < total) parts.push(`${this.data.score} of ${formatCount(scored)} of ${formatCount(total)} computed`);
    $("summary").textContent = parts.join(" · ");
    $("nothing").hidden = shown.length > 0;
    const { search, split } = this.filter;
    $("all").hidden = !(search || split || this.filter.class);
  }

  /** Add the splits, the classes and the orders to their controls. */
  #addChoices() {
    const { scenes, classNames, score } = this.data;
    const splitCounts = new Map(), classCounts = classNames.map(() => 0);
    for (const { split, classes } of scenes) {
      splitCounts.set(split, (splitCounts.get(split) ?? 0) + 1);
      for (const number of classes) classCounts[number]++;
    }
    for (const [split, count] of splitCounts) $("split").append(new Option(`${split} (${formatCount(count)})`, split));
    const byCount = [...classNames.keys()].sort((first, second) => classCounts[second] - classCounts[first]);
    for (const number of byCount) {
      const name = classNames[number];
      $("class").append(new Option(`${name} (${formatCount(classCounts[number])})`, name));
    }
    for (const [name, { title }] of ORDERS) $("sort").append(new Option(title, name === "id" ? "" : name));
    if (!score) return;
    for (const [name, { title }] of SCORE_ORDERS) $("sort").append(new Option(`${title} ${score}`, name));
  }

  /** Make the card of a scene, whose picture is requested if the card stays. */
  #makeCard(scene) {
    const make = (name, className, text = "") => Object.assign(document.createElement(name), { className, textContent: text });
    const card = make("li", "");
    const link = make("a", "");
    const picture = make("img", "");
    const name = make("span", "name", scene.id);
    card.dataset.key = scene.id;
    picture.alt = "";
    picture.addEventListener("error", () => (picture.alt = "This scene cannot be shown. Open it to see why."));
    setTimeout(() => {
      if (card.isConnected) picture.src = `/thumbnail/${scene.id}`;
    }, PICTURE_DELAY_MS);
    const labeled = scene.labeled === null ? "no labels" : `${(100 * scene.labeled).toFixed(1)} % labeled`;
    link.append(
      picture,
      name,
      make("span", "facts", `${scene.split} · ${countOf(scene.vertices, "vertex", "vertices")}`),
      make("span", "facts", `${labeled} · ${countOf(scene.classCount, "class", "classes")}`),
    );
    if (this.data.score) name.append(make("span", "score"));
    card.append(link);
    this.#fillCard(scene, card);
    return card;
  }

  /** Set what may change in the card of a scene: its link, which contains the filter, and its score. */
  #fillCard(scene, card) {
    card.querySelector("a").href = `/scene/${scene.id}${writeFilter(this.filter)}`;
    if (!this.data.score) return;
    const element = card.querySelector(".score");
    const score = this.#scores.scores[scene.id], failure = this.#scores.failures[scene.id];
    element.classList.toggle("failed", Boolean(failure));
    element.title = failure ?? "";
    if (failure) element.textContent = "not scored";
    // There is none yet, or there are no classes to take the mean of.
    else if (score === undefined || score === null) element.textContent = "";
    else element.textContent = `${this.data.score} ${(100 * score).toFixed(1)} %`;
  }
}

function formatCount(number) {
  return String(number).replace(/\B(?=(\d{3})+$)/g, ",");
}

function countOf(number, one, many = `${one}s`) {
  return `${formatCount(number)} ${number === 1 ? one : many}`;
}

/** Show the list, or the reason why that is impossible. */
async function start() {
  $("title").textContent = JSON.parse($("data-title").textContent);
  const list = new SceneList(await request("/scenes"));
  // Their order decides where the scene is that the list shows again.
  await list.loadScores();
  list.show();
  document.body.ariaBusy = "false";
  await list.followScores();
}

start().catch((error) => {
  $("summary").textContent = `The server does not answer: ${error.message}. Is it still running?`;
});
