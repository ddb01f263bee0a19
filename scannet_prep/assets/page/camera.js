/**
 * A camera that turns about a target, by angles and a distance. z is up; units are metres and radians.
 * An orthographic camera shows all things in the size that a perspective one shows at the target.
 */

// The eye comes no nearer to the target: it moves the target on instead, through doors and walls.
const NEAREST_TARGET = 0.5;
// The eye moves at least this far towards a point.
const SHORTEST_STEP = 0.06;

class Camera {
  isOrthographic = false;
  near = 0;
  far = 1;
  target = [0, 0, 0];
  azimuth = 0; // counter-clockwise from above; at 0 the camera is on the side of greater x
  elevation = 0; // 0 is level; at a quarter turn the camera looks straight down
  distance = 1;
  eye = new Float64Array(3);
  right = new Float32Array(3);
  up = new Float32Array(3);
  back = new Float32Array(3);
  clipFromScene = new Float64Array(16);
  clipFromGrid = new Float32Array(16); // grid: steps from the origin, the unit of the stored positions
  gridEye = new Float32Array(4); // homogeneous: the last number is 0 if the camera is orthographic

  /** @param defaults the numbers of `camera.py`: azimuth, elevation, slope (of the shorter side), filled, near. */
  constructor(defaults) {
    this.defaults = defaults;
  }

  /** Half the visible width at a distance of 1; that of the target, if the camera is orthographic. */
  #halfWidth(aspect) {
    return this.#slope * Math.max(1, aspect);
  }

  /** Half the visible height, likewise. */
  #halfHeight(aspect) {
    return this.#slope * Math.max(1, 1 / aspect);
  }

  get #slope() {
    return this.defaults.slope * (this.isOrthographic ? this.distance : 1);
  }

  /** Return to the first view of a scene. */
  reset(scene, positions, aspect) {
    this.azimuth = this.defaults.azimuth;
    this.elevation = this.defaults.elevation;
    this.fit(scene, positions, aspect);
  }

  lookFromAbove(scene, positions, aspect) {
    this.azimuth = -Math.PI / 2;
    this.elevation = Math.PI / 2;
    this.fit(scene, positions, aspect);
  }

  /**
   * Move as near as possible while the whole scene is in the picture, like `Camera.project` of `camera.py`: a point is
   * in the picture if |sideways - shift| <= slope * (distance - towards), on both sides. For an orthographic camera, it is
   * if |sideways - shift| <= slope * distance.
   */
  fit({ origin, size, step }, positions, aspect) {
    this.#turn();
    const { right, up, back, defaults } = this;
    const slope = defaults.slope * defaults.filled;
    const slopes = [slope * Math.max(1, aspect), slope * Math.max(1, 1 / aspect)];
    const perspective = this.isOrthographic ? 0 : 1;
    const middle = origin.map((start, axis) => start + size[axis] / 2);
    const extremes = [-Infinity, -Infinity, -Infinity, -Infinity];
    let nearest = -Infinity;
    for (let i = 0; i < positions.length; i += 3) {
      const x = origin[0] + positions[i] * step - middle[0];
      const y = origin[1] + positions[i + 1] * step - middle[1];
      const z = origin[2] + positions[i + 2] * step - middle[2];
      const sideways = x * right[0] + y * right[1] + z * right[2];
      const upward = x * up[0] + y * up[1] + z * up[2];
      const toward = x * back[0] + y * back[1] + z * back[2];
      const wider = slopes[0] * toward * perspective;
      const higher = slopes[1] * toward * perspective;
      extremes[0] = Math.max(extremes[0], sideways + wider);
      extremes[1] = Math.max(extremes[1], -sideways + wider);
      extremes[2] = Math.max(extremes[2], upward + higher);
      extremes[3] = Math.max(extremes[3], -upward + higher);
      nearest = Math.max(nearest, toward);
    }
    const shifts = [(extremes[0] - extremes[1]) / 2, (extremes[2] - extremes[3]) / 2];
    this.distance = Math.max(
      (extremes[0] + extremes[1]) / 2 / slopes[0],
      (extremes[2] + extremes[3]) / 2 / slopes[1],
      perspective * nearest + 2 * defaults.near,
    );
    this.target = middle.map((start, axis) => start + shifts[0] * right[axis] + shifts[1] * up[axis]);
  }

  orbit(azimuth, elevation) {
    this.azimuth = (this.azimuth + azimuth) % (2 * Math.PI);
    this.elevation = Math.min(Math.PI / 2, Math.max(-Math.PI / 2, this.elevation + elevation));
  }

  /** Move the target by fractions of the picture's shorter side. */
  pan(right, up) {
    const side = 2 * this.distance * this.defaults.slope;
    for (let axis = 0; axis < 3; axis++) {
      this.target[axis] += side * (right * this.right[axis] + up * this.up[axis]);
    }
  }

  zoom(factor) {
    this.distance = Math.min(1000, Math.max(2 * this.defaults.near, this.distance * factor));
  }

  /**
   * Move the eye towards a point, by the factor of the distance that is left. The point keeps its position in the picture.
   */
  approach(point, factor) {
    const { eye, back, target, isOrthographic } = this;
    const start = isOrthographic ? target : eye;
    const shift = point.map((at, axis) => (1 - factor) * (at - start[axis]));
    const length = Math.hypot(...shift);
    const stretch = isOrthographic || length === 0 ? 1 : Math.max(1, SHORTEST_STEP / length);
    const before = this.distance;
    this.zoom(factor);
    if (!isOrthographic) this.distance = Math.max(this.distance, Math.min(before, NEAREST_TARGET));
    const pulled = isOrthographic ? 0 : before - this.distance;
    for (let axis = 0; axis < 3; axis++) target[axis] += stretch * shift[axis] + pulled * back[axis];
  }

  /** Move eye and target by metres: ahead and to the right are level. */
  fly(ahead, right, up) {
    const cosine = Math.cos(this.azimuth), sine = Math.sin(this.azimuth);
    this.target[0] -= ahead * cosine + right * sine;
    this.target[1] -= ahead * sine - right * cosine;
    this.target[2] += up;
  }

  /** The change of the depth (0 to 1) per metre, at a distance of 1. */
  get depthSlope() {
    return (this.isOrthographic ? 1 : this.far * this.near) / (this.far - this.near);
  }

  /** Return the point in the plane of the target at a position of the picture, -1 to 1 to the right and up. */
  pointInPicture(x, y, aspect) {
    const scale = this.isOrthographic ? 1 : this.distance;
    const sideways = x * scale * this.#halfWidth(aspect);
    const upward = y * scale * this.#halfHeight(aspect);
    return this.target.map((at, axis) => at + sideways * this.right[axis] + upward * this.up[axis]);
  }

  /** Compute directions and matrices from angles, distance and target. */
  update(scene, aspect) {
    this.#turn();
    const { eye, right, up, back, target, isOrthographic, clipFromScene: m } = this;
    const halfWidth = this.#halfWidth(aspect);
    const halfHeight = this.#halfHeight(aspect);
    this.#setRange(scene);
    const { near, far } = this;
    for (let axis = 0; axis < 3; axis++) {
      eye[axis] = target[axis] + this.distance * back[axis];
      this.gridEye[axis] = isOrthographic ? back[axis] : (eye[axis] - scene.origin[axis]) / scene.step;
      m[4 * axis] = right[axis] / halfWidth;
      m[4 * axis + 1] = up[axis] / halfHeight;
      m[4 * axis + 2] = (isOrthographic ? 2 : far + near) / (far - near) * -back[axis];
      m[4 * axis + 3] = isOrthographic ? 0 : -back[axis];
    }
    this.gridEye[3] = isOrthographic ? 0 : 1;
    for (let row = 0; row < 4; row++) m[12 + row] = -(m[row] * eye[0] + m[4 + row] * eye[1] + m[8 + row] * eye[2]);
    m[14] -= (isOrthographic ? far + near : 2 * far * near) / (far - near);
    if (isOrthographic) m[15] = 1;
    for (let row = 0; row < 4; row++) {
      let shift = m[12 + row];
      for (let axis = 0; axis < 3; axis++) {
        this.clipFromGrid[4 * axis + row] = m[4 * axis + row] * scene.step;
        shift += m[4 * axis + row] * scene.origin[axis];
      }
      this.clipFromGrid[12 + row] = shift;
    }
  }

  /** Set the range of visible distances. An orthographic camera also sees what is behind its eye. */
  #setRange(scene) {
    let squaredDistance = 0; // of the target from the middle of the scene
    for (let axis = 0; axis < 3; axis++) squaredDistance += (this.target[axis] - scene.center[axis]) ** 2;
    const { near } = this.defaults;
    const reach = Math.sqrt(squaredDistance) + 2 * scene.radius + 2 * near;
    this.near = this.isOrthographic ? this.distance - reach : near;
    this.far = this.distance + reach;
  }

  #turn() {
    const { right, up, back } = this;
    const ca = Math.cos(this.azimuth), sa = Math.sin(this.azimuth);
    const ce = Math.cos(this.elevation), se = Math.sin(this.elevation);
    right[0] = -sa; right[1] = ca; right[2] = 0;
    up[0] = -se * ca; up[1] = -se * sa; up[2] = ce;
    back[0] = ce * ca; back[1] = ce * sa; back[2] = se;
  }
}
