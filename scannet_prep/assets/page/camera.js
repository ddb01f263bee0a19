/** A camera that turns about a target, by angles and a distance. z is up; units are metres and radians. */
class Camera {
  target = [0, 0, 0];
  azimuth = 0; // counter-clockwise from above; at 0 the camera is on the side of greater x
  elevation = 0; // 0 is level; at a quarter turn the camera looks straight down
  distance = 1;
  eye = new Float64Array(3);
  right = new Float64Array(3);
  up = new Float64Array(3);
  back = new Float64Array(3);
  clipFromScene = new Float64Array(16);
  clipFromGrid = new Float32Array(16); // grid: steps from the origin, the unit of the stored positions
  gridEye = new Float32Array(3);

  /** @param defaults the numbers of `camera.py`: azimuth, elevation, slope (of the shorter side), filled, near. */
  constructor(defaults) {
    this.defaults = defaults;
  }

  /** Half the visible width at a distance of 1. */
  #halfWidth(aspect) {
    return this.defaults.slope * Math.max(1, aspect);
  }

  /** Half the visible height at a distance of 1. */
  #halfHeight(aspect) {
    return this.defaults.slope * Math.max(1, 1 / aspect);
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
   * in the picture if |sideways - shift| <= slope * (distance - towards), on both sides.
   */
  fit({ origin, size, step }, positions, aspect) {
    this.#turn();
    const { right, up, back, defaults } = this;
    const slopes = [this.#halfWidth(aspect) * defaults.filled, this.#halfHeight(aspect) * defaults.filled];
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
      extremes[0] = Math.max(extremes[0], sideways + slopes[0] * toward);
      extremes[1] = Math.max(extremes[1], -sideways + slopes[0] * toward);
      extremes[2] = Math.max(extremes[2], upward + slopes[1] * toward);
      extremes[3] = Math.max(extremes[3], -upward + slopes[1] * toward);
      nearest = Math.max(nearest, toward);
    }
    const shifts = [(extremes[0] - extremes[1]) / 2, (extremes[2] - extremes[3]) / 2];
    this.distance = Math.max(
      (extremes[0] + extremes[1]) / 2 / slopes[0],
      (extremes[2] + extremes[3]) / 2 / slopes[1],
      nearest + 2 * defaults.near,
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

  /** Compute directions and matrices from angles, distance and target. */
  update(scene, aspect) {
    this.#turn();
    const { eye, right, up, back, target, clipFromScene: m } = this;
    const halfWidth = this.#halfWidth(aspect);
    const halfHeight = this.#halfHeight(aspect);
    let squaredDistance = 0; // of the target from the middle of the scene
    for (let axis = 0; axis < 3; axis++) squaredDistance += (target[axis] - scene.center[axis]) ** 2;
    const { near } = this.defaults;
    const far = this.distance + Math.sqrt(squaredDistance) + 2 * scene.radius + 2 * near;
    for (let axis = 0; axis < 3; axis++) {
      eye[axis] = target[axis] + this.distance * back[axis];
      this.gridEye[axis] = (eye[axis] - scene.origin[axis]) / scene.step;
      m[4 * axis] = right[axis] / halfWidth;
      m[4 * axis + 1] = up[axis] / halfHeight;
      m[4 * axis + 2] = ((far + near) / (far - near)) * -back[axis];
      m[4 * axis + 3] = -back[axis];
    }
    for (let row = 0; row < 4; row++) m[12 + row] = -(m[row] * eye[0] + m[4 + row] * eye[1] + m[8 + row] * eye[2]);
    m[14] -= (2 * far * near) / (far - near);
    for (let row = 0; row < 4; row++) {
      let shift = m[12 + row];
      for (let axis = 0; axis < 3; axis++) {
        this.clipFromGrid[4 * axis + row] = m[4 * axis + row] * scene.step;
        shift += m[4 * axis + row] * scene.origin[axis];
      }
      this.clipFromGrid[12 + row] = shift;
    }
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
