// Structures as balls and sticks on a canvas: drag to turn, wheel or pinch to zoom. No library, no request.
(() => {
  "use strict";
  const find = (id) => document.getElementById(id);
  const data = JSON.parse(find("molecule-data").textContent);
  const canvas = find("molecule-canvas"), pen = canvas.getContext("2d");
  const slider = find("molecule-slider"), play = find("molecule-play"), all = find("molecule-all");
  const n = data.elements.length, bytes = Uint8Array.from(atob(data.positions), (c) => c.charCodeAt(0));
  const whole = new Int16Array(bytes.buffer); // in pm: frames x atoms x 3
  const COLORS = { H: "#f2f2f2", C: "#8d949c", N: "#4a7fe0", O: "#e0483e", S: "#e2b93b", P: "#e08a2e" };
  const color = (i) => COLORS[data.elements[i]] || "#c77fd1";
  const radius = (i) => (data.elements[i] === "H" ? 24 : 38); // in pm
  let turn = [1, 0, 0, 0, 1, 0, 0, 0, 1], zoom = 1, frame = 0, timer = 0, waiting = false;
  const reaches = []; // distance of the farthest atom from the centre, in each structure
  for (let f = 0; f < data.frames; f++) {
    const far = [...Array(n).keys()].map((i) => Math.hypot(...whole.slice(3 * (n * f + i), 3 * (n * f + i) + 3)));
    reaches.push(Math.max(...far));
  }
  const reach = reaches.sort((a, b) => a - b)[data.frames >> 1] + 30;

  const project = (f, scale, cx, cy) => {
    const points = [], far = 5 * reach;
    for (let i = 0; i < n; i++) {
      const [x, y, z] = [0, 1, 2].map((a) => whole[3 * (n * f + i) + a]);
      const [u, v, w] = [0, 3, 6].map((r) => turn[r] * x + turn[r + 1] * y + turn[r + 2] * z);
      const near = (scale * far) / Math.max(far - w, far / 9); // closer atoms are larger
      points.push({ x: cx + u * near, y: cy - v * near, z: w, size: near });
    }
    return points;
  };

  const stick = (a, b, width, style) => {
    pen.strokeStyle = style;
    pen.lineWidth = width;
    pen.beginPath();
    pen.moveTo(a.x, a.y);
    pen.lineTo(b.x, b.y);
    pen.stroke();
  };

  // A bond begins at the surface of the ball, so that it does not hide its letter.
  const bondHalves = (points, [i, j]) => {
    const [a, b] = [points[i], points[j]], scale = (a.size + b.size) / 2;
    const length = Math.hypot(a.x - b.x, a.y - b.y, (a.z - b.z) * scale) / scale || 1;
    const at = (t) => ({ x: a.x + t * (b.x - a.x), y: a.y + t * (b.y - a.y) });
    const first = at(Math.min(0.5, (0.85 * radius(i)) / length));
    const last = at(Math.max(0.5, 1 - (0.85 * radius(j)) / length));
    return { z: (a.z + b.z) / 2, draw: () => {
      stick(first, last, 16 * scale + 2, "#333a42");
      stick(first, at(0.5), 16 * scale, color(i));
      stick(at(0.5), last, 16 * scale, color(j));
    } };
  };

  const ball = (p, i) => ({ z: p.z, draw: () => {
    const r = radius(i) * p.size;
    const light = pen.createRadialGradient(p.x - r / 3, p.y - r / 3, r / 8, p.x, p.y, r);
    light.addColorStop(0, "#ffffff");
    light.addColorStop(0.45, color(i));
    light.addColorStop(1, color(i));
    pen.fillStyle = light;
    pen.strokeStyle = "#333a42";
    pen.lineWidth = 1.2;
    pen.beginPath();
    pen.arc(p.x, p.y, r, 0, 2 * Math.PI);
    pen.fill();
    pen.stroke();
    if (data.elements[i] !== "H" && r > 7) { // letters tell elements apart, not only colours
      pen.fillStyle = "#10151a";
      pen.font = `600 ${Math.round(r)}px system-ui, sans-serif`;
      pen.fillText(data.elements[i], p.x, p.y + r / 16);
    }
  } });

  const draw = () => {
    waiting = false;
    const ratio = window.devicePixelRatio || 1, { width, height } = canvas.getBoundingClientRect();
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.lineCap = "round";
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    const scale = (zoom * 0.46 * Math.min(width, height)) / reach;
    if (all.getAttribute("aria-pressed") === "true") {
      pen.globalAlpha = 0.35;
      for (let f = 0; f < data.frames; f++) {
        const points = project(f, scale, width / 2, height / 2);
        for (const [i, j] of data.bonds) {
          const middle = { x: (points[i].x + points[j].x) / 2, y: (points[i].y + points[j].y) / 2 };
          stick(points[i], middle, 1.6, data.elements[i] === "H" ? "#9aa3ad" : color(i));
          stick(middle, points[j], 1.6, data.elements[j] === "H" ? "#9aa3ad" : color(j));
        }
      }
      pen.globalAlpha = 1;
    }
    const points = project(frame, scale, width / 2, height / 2);
    const parts = [...data.bonds.map((bond) => bondHalves(points, bond)), ...points.map(ball)];
    parts.sort((a, b) => a.z - b.z).forEach((part) => part.draw());
  };

  const redraw = () => {
    if (!waiting) {
      waiting = true;
      requestAnimationFrame(draw);
    }
  };
  const show = (k) => {
    frame = (k + data.frames) % data.frames;
    slider.value = String(frame);
    find("molecule-label").textContent = data.labels[frame];
    redraw();
  };
  const rotate = (dx, dy) => {
    const [c, s, d, t] = [Math.cos(dx), Math.sin(dx), Math.cos(dy), Math.sin(dy)];
    const step = [c, 0, s, t * s, d, -t * c, -d * s, t, d * c];
    turn = turn.map((_, k) => [0, 1, 2].reduce(
      (sum, m) => sum + step[3 * Math.floor(k / 3) + m] * turn[3 * m + (k % 3)], 0));
    redraw();
  };
  const magnify = (factor) => {
    zoom = Math.min(6, Math.max(0.3, zoom * factor));
    redraw();
  };
  const playing = (wanted) => {
    clearInterval(timer);
    timer = wanted ? setInterval(() => show(frame + 1), 350) : 0;
    play.textContent = wanted ? "Pause" : "Play";
  };

  const fingers = new Map();
  const spread = () => {
    const [a, b] = [...fingers.values()];
    return Math.hypot(a.x - b.x, a.y - b.y);
  };
  canvas.addEventListener("pointerdown", (e) => {
    canvas.setPointerCapture(e.pointerId);
    fingers.set(e.pointerId, { x: e.clientX, y: e.clientY });
  });
  canvas.addEventListener("pointermove", (e) => {
    const last = fingers.get(e.pointerId);
    if (!last) return;
    const before = fingers.size > 1 ? spread() : 0;
    fingers.set(e.pointerId, { x: e.clientX, y: e.clientY });
    if (before) magnify(spread() / before);
    else rotate((e.clientX - last.x) / 120, (e.clientY - last.y) / 120);
  });
  for (const end of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(end, (e) => fingers.delete(e.pointerId));
  }
  canvas.addEventListener("wheel", (e) => {
    if (document.activeElement !== canvas) return; // until a click, the wheel scrolls the page
    e.preventDefault();
    magnify(Math.exp(-e.deltaY / 500));
  }, { passive: false });
  const KEYS = {
    ArrowLeft: () => rotate(-0.1, 0), ArrowRight: () => rotate(0.1, 0),
    ArrowUp: () => rotate(0, -0.1), ArrowDown: () => rotate(0, 0.1),
    "+": () => magnify(1.15), "=": () => magnify(1.15), "-": () => magnify(1 / 1.15),
    n: () => show(frame + 1), p: () => show(frame - 1), " ": () => playing(!timer),
  };
  canvas.addEventListener("keydown", (e) => {
    if (KEYS[e.key] && !e.ctrlKey && !e.metaKey && !e.altKey) {
      e.preventDefault();
      KEYS[e.key]();
    }
  });
  find("molecule-previous").addEventListener("click", () => show(frame - 1));
  find("molecule-next").addEventListener("click", () => show(frame + 1));
  play.addEventListener("click", () => playing(!timer));
  all.addEventListener("click", () => {
    all.setAttribute("aria-pressed", String(all.getAttribute("aria-pressed") !== "true"));
    redraw();
  });
  slider.addEventListener("input", () => show(Number(slider.value)));
  new ResizeObserver(redraw).observe(canvas);
  rotate(0.5, 0.35);
  show(0);
})();
