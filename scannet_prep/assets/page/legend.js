/** The number of lines that are made at a time: a scene may have thousands of segments, and layout takes time. */
const LEGEND_LINES = 200;

/**
 * The categories of a listing: name, colour, shares; each can be switched on and off. The lines are one tab stop: the
 * arrow keys lead to the others.
 */
class Legend {
  #categories = [];
  #explained = new Map(); // the tables that explain a category, by its name
  #listed = []; // numbers of the categories whose names match the search
  #shown = 0; // the number of these that have a line
  #totals = [1];
  #hidden = new Set();
  #mouse = ""; // where the mouse was last
  #pointed = null; // the number of the category under the mouse or with the focus

  /**
   * @param {() => void} changed called after categories have been switched on or off.
   * @param {(number: number | null) => void} pointed called with the number of the category under the mouse or with the
   *   focus, and with null when there is none any more.
   */
  constructor(changed, pointed) {
    this.root = document.getElementById("legend");
    this.list = document.getElementById("categories");
    this.more = document.getElementById("more");
    this.summary = document.getElementById("summary");
    this.search = document.getElementById("search");
    this.tables = document.getElementById("tables");
    this.changed = changed;
    this.pointed = pointed;
    this.search.addEventListener("input", () => this.#filter());
    this.more.addEventListener("click", () => this.#extend());
    document.getElementById("all").addEventListener("click", () => this.#switch(this.#listed, true));
    document.getElementById("none").addEventListener("click", () => this.#switch(this.#listed, false));
    this.list.addEventListener("change", ({ target }) => this.#switch([numberOf(target)], target.checked));
    this.list.addEventListener("click", ({ target }) => {
      if (target.classList.contains("only")) this.#showOnly(numberOf(target));
      const button = target.closest(".explain");
      if (button) this.#explain(button);
    });
    this.list.addEventListener("keydown", (event) => this.#press(event));
    this.list.addEventListener("mousemove", (event) => {
      // Browsers also send this event when the list changes under a resting mouse.
      const place = `${event.clientX} ${event.clientY}`;
      if (place !== this.#mouse) this.#point(event.target.closest("li"));
      this.#mouse = place;
    });
    this.list.addEventListener("focusin", ({ target }) => {
      if (target.matches(":focus-visible")) this.#point(target.closest("li"));
    });
    for (const name of ["mouseleave", "focusout"]) this.list.addEventListener(name, () => this.#point(null));
  }

  /** Show a listing; `hidden` is the set of the numbers of its hidden categories, which the legend updates. */
  show(listing, hidden) {
    this.#hidden = hidden;
    this.#categories = listing.categories;
    this.#totals = listing.totals;
    this.#explained = new Map();
    for (const table of listing.tables) {
      this.#explained.set(table.category, [...(this.#explained.get(table.category) ?? []), table]);
    }
    this.tables.replaceChildren(...(this.#explained.get("") ?? []).map(makeExplanation));
    this.root.hidden = listing.categories.length === 0;
    this.search.value = "";
    this.#filter();
  }

  #switch(numbers, isOn) {
    for (const number of numbers) {
      if (isOn) this.#hidden.delete(number);
      else this.#hidden.add(number);
    }
    for (const box of this.list.querySelectorAll("input")) box.checked = !this.#hidden.has(numberOf(box));
    this.#summarize();
    // Show the effect, instead of faint colours, until the mouse moves to another line.
    this.pointed(null);
    this.changed();
  }

  #showOnly(number) {
    for (const other of this.#categories.keys()) this.#hidden.add(other);
    this.#switch([number], true);
  }

  /** Open or close the tables that explain a category. */
  #explain(button) {
    const line = button.closest("li");
    const isOpen = button.ariaExpanded !== "true";
    button.ariaExpanded = String(isOpen);
    for (const table of line.querySelectorAll("table")) table.remove();
    if (isOpen) line.append(...this.#explained.get(this.#categories[numberOf(line)].name).map(makeExplanation));
  }

  /** Move between lines with the arrow keys up and down, and within a line with left and right. */
  #press(event) {
    const line = event.target.closest("li");
    const lines = [...this.list.children];
    const parts = [...line.querySelectorAll("input, button")];
    const steps = { ArrowDown: 1, ArrowUp: -1, Home: -lines.length, End: lines.length };
    const sideSteps = { ArrowRight: 1, ArrowLeft: -1 };
    const limit = (index, all) => all[Math.min(all.length - 1, Math.max(0, index))];
    if (event.key in steps) this.#focus(limit(lines.indexOf(line) + steps[event.key], lines).querySelector("input"));
    else if (event.key in sideSteps) this.#focus(limit(parts.indexOf(event.target) + sideSteps[event.key], parts));
    else if (event.key === "Enter" && event.target.type === "checkbox") line.querySelector(".explain")?.click();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Give the focus to a part of a line, and make it the tab stop of the list. */
  #focus(part) {
    for (const other of this.list.querySelectorAll("[tabindex='0']")) other.tabIndex = -1;
    part.tabIndex = 0;
    part.focus();
  }

  #point(line) {
    const number = line ? numberOf(line) : null;
    if (number === this.#pointed) return;
    this.#pointed = number;
    this.pointed(this.#hidden.has(number) ? null : number);
  }

  #filter() {
    const words = this.search.value.trim().toLowerCase();
    this.#listed = [...this.#categories.keys()].filter((number) => this.#categories[number].name.toLowerCase().includes(words));
    this.#shown = 0;
    this.list.replaceChildren();
    this.#pointed = null;
    this.#extend();
    this.#summarize();
  }

  /** Make the lines of the next listed categories. */
  #extend() {
    const next = this.#listed.slice(this.#shown, this.#shown + LEGEND_LINES);
    const rows = next.map((number) => {
      const category = this.#categories[number];
      return makeRow(category, number, this.#totals, !this.#hidden.has(number), this.#explained.has(category.name));
    });
    this.list.append(...rows);
    if (!this.list.querySelector("[tabindex='0']") && rows.length) rows[0].querySelector("input").tabIndex = 0;
    this.#shown += rows.length;
    this.more.hidden = this.#shown === this.#listed.length;
    this.more.textContent = `${countOf(this.#listed.length - this.#shown, "more", "more")}: show the next, or search by name`;
  }

  #summarize() {
    const listed = this.#listed.length, all = this.#categories.length;
    const parts = [listed === all ? `${listed} listed` : `${listed} of ${all} listed`];
    if (this.#hidden.size) parts.push(`${this.#hidden.size} hidden`);
    this.summary.textContent = parts.join(", ");
  }
}

/** Return the number of the category whose line contains an element. */
function numberOf(element) {
  return Number(element.closest("li").dataset.number);
}

/** Make a line of the legend. Names come from files, so they are set as text and never as markup. */
function makeRow(category, number, totals, isOn, isExplained) {
  const make = (name, className, text) => {
    const element = document.createElement(name);
    element.className = className;
    element.textContent = text;
    return element;
  };
  const line = make("li", "", "");
  const label = make("label", "", "");
  const box = make("input", "", "");
  const swatch = make("span", "swatch", "");
  const only = make("button", "only", "only");
  line.dataset.number = number;
  box.type = "checkbox";
  box.checked = isOn;
  box.tabIndex = -1; // see Legend.#focus
  only.type = "button";
  only.tabIndex = -1;
  only.setAttribute("aria-label", `Show only ${category.name}`);
  swatch.style.background = category.color;
  label.title = `${category.name}: ${category.counts.map((count) => countOf(count, "vertex", "vertices")).join(", ")}`;
  const shares = category.counts.map((count, pane) => (count ? formatShare(count / totals[pane]) : "-"));
  const texts = make("span", "texts", "");
  texts.append(
    make("span", "name", category.name),
    make("span", "note", category.notes.join(" · ")),
    make("span", "share", shares.join(" · ")),
  );
  // Notes and several shares need a line of their own.
  texts.classList.toggle("long", category.notes.length > 0 || shares.length > 1);
  label.append(box, swatch);
  line.append(label);
  if (isExplained) {
    const explain = Object.assign(make("button", "explain", ""), { type: "button", tabIndex: -1, ariaExpanded: "false" });
    explain.append(texts);
    explain.title = `Explain ${category.name}`;
    label.className = "short";
    box.ariaLabel = category.name;
    line.append(explain);
  } else label.append(texts);
  line.append(only);
  return line;
}

function countOf(number, one, many) {
  // The first call of toLocaleString takes a tenth of a second.
  const digits = String(number).replace(/\B(?=(\d{3})+$)/g, ",");
  return `${digits} ${number === 1 ? one : many}`;
}

function formatShare(share) {
  if (share > 0 && share < 0.001) return "< 0.1 %";
  return `${(100 * share).toFixed(1)} %`;
}
