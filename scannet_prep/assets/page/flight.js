/** Flying: the camera moves as long as keys are held. */

const FLIGHT_SPEED = 2; // metres per second
const FIRST_STEP = 0.1; // metres, so that a short press moves, too
// A slow frame moves no farther than this time would, in seconds.
const LONGEST_FRAME = 0.15;
// Ahead, to the right, up.
const FLIGHT_KEYS = {
  w: [1, 0, 0], s: [-1, 0, 0], a: [0, -1, 0], d: [0, 1, 0], e: [0, 0, 1], q: [0, 0, -1],
  ArrowUp: [1, 0, 0], ArrowDown: [-1, 0, 0], ArrowLeft: [0, -1, 0], ArrowRight: [0, 1, 0],
};

class Flight {
  #held = new Set();
  #time = 0;

  constructor(viewer) {
    this.viewer = viewer;
    // Nobody sees a key released in another window.
    addEventListener("blur", () => this.#held.clear());
  }

  /** @param {string} key one of FLIGHT_KEYS */
  press(key) {
    if (this.#held.has(key)) return;
    this.#held.add(key);
    this.#move(FIRST_STEP);
    if (this.#held.size > 1) return;
    this.#time = performance.now();
    requestAnimationFrame((time) => this.#continue(time));
  }

  /** @param {string} key any key; a letter may have become a capital since it was pressed. */
  release(key) {
    this.#held.delete(key);
    this.#held.delete(key.toLowerCase());
  }

  #continue(time) {
    if (!this.#held.size) return;
    const seconds = Math.max(0, Math.min(LONGEST_FRAME, (time - this.#time) / 1000));
    this.#time = time;
    this.#move(FLIGHT_SPEED * seconds);
    requestAnimationFrame((next) => this.#continue(next));
  }

  #move(length) {
    const sum = [0, 0, 0];
    for (const key of this.#held) FLIGHT_KEYS[key].forEach((part, i) => (sum[i] += length * part));
    this.viewer.camera.fly(...sum);
    this.viewer.cameraMoved();
  }
}
