/** Mouse, touch and keys of the picture, which call methods of the viewer. */

const TURN = 0.087; // radians per key press: 5 degrees
const ZOOM = 1.15; // factor per key press
const CLICK_PIXELS = 4; // a click moves less

class PointerControls {
  #pointers = new Map(); // the position of each finger, by its id
  #travel = 0; // pixels since the first finger was put down

  constructor(canvas, viewer) {
    this.canvas = canvas;
    this.viewer = viewer;
    canvas.addEventListener("pointerdown", (event) => this.#press(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this.#release(event));
    canvas.addEventListener("pointerleave", () => viewer.pointAway());
    canvas.addEventListener("contextmenu", (event) => event.preventDefault());
    canvas.addEventListener("dblclick", (event) => viewer.centreAt(event.offsetX, event.offsetY));
    canvas.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
  }

  #press(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.#pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    if (this.#pointers.size === 1) this.#travel = 0;
  }

  #move(event) {
    const before = this.#pointers.get(event.pointerId);
    if (!before) {
      this.viewer.pointAt(event.offsetX, event.offsetY);
      return;
    }
    const { camera } = this.viewer;
    const height = this.canvas.clientHeight;
    const dx = (event.offsetX - before.x) / height, dy = (event.offsetY - before.y) / height;
    this.#travel += height * Math.hypot(dx, dy) + (this.#pointers.size - 1) * CLICK_PIXELS;
    if (this.#pointers.size === 2) {
      const other = [...this.#pointers].find(([id]) => id !== event.pointerId)[1];
      const distance = (x, y) => Math.max(1, Math.hypot(x - other.x, y - other.y));
      camera.zoom(distance(before.x, before.y) / distance(event.offsetX, event.offsetY));
      camera.pan(-dx / 2, dy / 2);
    } else if (event.shiftKey || event.ctrlKey || event.buttons & 6) camera.pan(-dx, dy);
    else camera.orbit(-4 * dx, 4 * dy);
    before.x = event.offsetX;
    before.y = event.offsetY;
    this.viewer.pointAway();
    this.viewer.cameraMoved();
  }

  #release(event) {
    const isLast = this.#pointers.size === 1;
    this.#pointers.delete(event.pointerId);
    if (event.type === "pointercancel" || !isLast) return;
    if (this.#travel < CLICK_PIXELS && event.button === 0) {
      this.viewer.select(event.offsetX, event.offsetY, event.shiftKey);
    }
    if (event.pointerType === "mouse") this.viewer.pointAt(event.offsetX, event.offsetY);
  }

  #wheel(event) {
    event.preventDefault();
    // Some browsers count in lines.
    const pixels = event.deltaY * (event.deltaMode ? 33 : 1);
    const factor = Math.exp(Math.max(-300, Math.min(300, pixels)) * 0.0015);
    this.viewer.approach(event.offsetX, event.offsetY, factor);
  }
}

/** Handle the keys, unless a control with the focus needs them itself. */
function listenToKeys(viewer) {
  const { camera } = viewer;
  const press = (id) => () => document.getElementById(id).click();
  const slide = (id, steps) => () => viewer.slide(id, steps);
  const flight = new Flight(viewer);
  const turn = (right, up) => () => {
    camera.orbit(TURN * right, TURN * up);
    viewer.cameraMoved();
  };
  const { canvas } = viewer;
  const zoom = (factor) => () => viewer.approach(canvas.clientWidth / 2, canvas.clientHeight / 2, factor);
  const search = () => {
    viewer.unfold(true);
    document.getElementById("search").focus();
  };
  const turns = { ArrowLeft: turn(-1, 0), ArrowRight: turn(1, 0), ArrowUp: turn(0, 1), ArrowDown: turn(0, -1) };
  const actions = {
    "+": zoom(1 / ZOOM), "=": zoom(1 / ZOOM), "-": zoom(ZOOM),
    "[": slide("point-size", -1), "]": slide("point-size", 1), ",": slide("ceiling", -1), ".": slide("ceiling", 1),
    t: press("top"), r: press("reset"), m: press("mesh"), x: press("backs"), g: press("grid"), k: press("theme"), l: press("fold"),
    b: press("boxes"), v: press("clip"), o: () => viewer.toggle("ortho"), h: () => viewer.toggle("edges"),
    j: press("cameras"), f: press("save"),
    n: press("next"), p: press("previous"), "?": press("keys"), "/": search,
    Enter: () => viewer.select(canvas.clientWidth / 2, canvas.clientHeight / 2, false),
    i: () => viewer.announceMiddle(), c: () => viewer.centreOnMiddle(), Escape: () => viewer.unselect(),
  };
  document.addEventListener("keydown", (event) => {
    const { target } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (target.tagName === "SELECT" || !viewer.coloring) return;
    if (target.id === "search") {
      if (event.key === "Escape") viewer.canvas.focus();
      return;
    }
    // With Caps Lock, letters are capitals.
    const key = event.key.length === 1 && !event.shiftKey ? event.key.toLowerCase() : event.key;
    const isInPicture = target === viewer.canvas || target === document.body;
    const needsPicture = key.startsWith("Arrow") || key === "Enter";
    if (needsPicture && !isInPicture) return;
    const isFlight = Object.hasOwn(FLIGHT_KEYS, key) && !event.shiftKey;
    const action = event.shiftKey && turns[key] ? turns[key] : actions[key];
    const coloring = viewer.scene?.colorings[Number(key) - 1];
    if (isFlight) flight.press(key);
    else if (action) action();
    else if (coloring) viewer.color(coloring.name);
    else return;
    event.preventDefault();
  });
  document.addEventListener("keyup", (event) => flight.release(event.key));
}
