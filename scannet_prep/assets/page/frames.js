/** The cameras of extracted frames: their path, a small frustum each, and the image of the one that is clicked. */

const NEAR_W = 0.05; // metres: what is nearer to the eye is not drawn

class FrameMarks {
  #marks = []; // of the scene: the frame, its outline and its button
  #path = null;

  constructor() {
    this.svg = document.getElementById("frames");
    this.dialog = document.getElementById("frame");
    this.image = document.getElementById("frame-image");
    this.caption = document.getElementById("frame-caption");
    document.getElementById("frame-previous").addEventListener("click", () => this.#step(-1));
    document.getElementById("frame-next").addEventListener("click", () => this.#step(1));
    this.dialog.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (steps) this.#step(steps);
    });
    this.dialog.addEventListener("click", (event) => {
      // A click beside the dialog.
      if (event.target === this.dialog) this.dialog.close();
    });
  }

  /** Show the cameras of a scene, which may have none. */
  show(scene) {
    this.frames = scene.frames ?? [];
    this.#path = makeShape("polyline", "path");
    this.#marks = this.frames.map((frame, index) => {
      const outline = makeShape("path", "frustum");
      const area = makeShape("polygon", "area");
      const group = makeShape("g", "camera");
      group.append(outline, area);
      group.setAttribute("role", "button");
      group.setAttribute("tabindex", "0");
      group.setAttribute("aria-label", `frame ${frame.number}`);
      group.addEventListener("click", () => this.open(index));
      group.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") this.open(index);
      });
      return { frame, outline, area, group };
    });
    this.svg.replaceChildren(this.#path, ...this.#marks.map(({ group }) => group));
    this.svg.toggleAttribute("hidden", !this.frames.length);
  }

  /** Move the marks to their places in the picture, whose width and height are in CSS pixels. */
  place(camera, width, height) {
    if (!this.frames.length) return;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const steps = [];
    for (const { frame, outline, area, group } of this.#marks) {
      const [eye, ...corners] = frame.corners.map((corner) => project(camera.clipFromScene, corner, width, height));
      const isVisible = [eye, ...corners].every(Boolean);
      group.toggleAttribute("hidden", !isVisible);
      if (eye) steps.push(eye.join(","));
      if (!isVisible) continue;
      const ring = [...corners, corners[0]].map((corner) => corner.join(" ")).join("L");
      outline.setAttribute("d", `M${ring}${corners.map((corner) => `M${eye.join(" ")}L${corner.join(" ")}`).join("")}`);
      area.setAttribute("points", [eye, ...corners].map((corner) => corner.join(",")).join(" "));
    }
    this.#path.setAttribute("points", steps.join(" "));
  }

  /** Show the image of a frame. */
  open(index) {
    this.index = index;
    const { number, image, size } = this.frames[index];
    this.image.hidden = !image;
    if (image) this.image.src = `data:image/jpeg;base64,${document.getElementById(image).textContent}`;
    this.image.alt = `image of frame ${number}`;
    this.caption.textContent = `frame ${number}, ${size} (${index + 1} of ${this.frames.length} in this page)`;
    this.#marks.forEach(({ group }, other) => group.classList.toggle("shown", other === index));
    if (!this.dialog.open) this.dialog.showModal();
  }

  #step(steps) {
    this.open((this.index + steps + this.frames.length) % this.frames.length);
  }
}

/** Project a point of the scene into the picture, in CSS pixels from the top left; null if it is behind the eye. */
function project(clipFromScene, point, width, height) {
  const [x, y, w] = projectPoint(clipFromScene, point);
  if (w < NEAR_W) return null;
  return [(((1 + x / w) / 2) * width).toFixed(1), (((1 - y / w) / 2) * height).toFixed(1)];
}
