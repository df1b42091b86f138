// curves.js: the reliability diagram, and precision over recall with the thresholds.
"use strict";
const SIDE = 220, LEFT = 40, TOP = 10, SPACE = "http://www.w3.org/2000/svg";

function shape(tag, attributes, text) {
    const made = document.createElementNS(SPACE, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return made;
}

const across = (value) => LEFT + SIDE * value, up = (value) => TOP + SIDE * (1 - value);

function frame(nameAcross, nameUp) {
    const svg = shape("svg", {viewBox: `0 0 ${LEFT + SIDE + 14} ${TOP + SIDE + 40}`, role: "img"});
    svg.append(shape("rect", {class: "axis", x: LEFT, y: TOP, width: SIDE, height: SIDE}));
    for (const value of [0, 0.5, 1])
        svg.append(shape("text", {x: across(value), y: TOP + SIDE + 14, "text-anchor": "middle"}, value),
            shape("text", {x: LEFT - 6, y: up(value) + 4, "text-anchor": "end"}, value));
    svg.append(shape("text", {x: across(0.5), y: TOP + SIDE + 32, "text-anchor": "middle"}, nameAcross),
        shape("text", {x: 12, y: up(0.5), "text-anchor": "middle", transform: `rotate(-90 12 ${up(0.5)})`}, nameUp));
    return svg;
}

function part(title, ...children) {
    const made = document.createElement("div"), head = document.createElement("h2");
    head.textContent = title;
    made.append(head, ...children);
    return made;
}

function sentence(text) {
    const made = document.createElement("p");
    made.textContent = text;
    return made;
}

function reliability({bins, error}) {
    const svg = frame("confidence", "fraction correct");
    svg.append(shape("path", {class: "ideal", d: `M${across(0)} ${up(0)}L${across(1)} ${up(1)}`}));
    for (const [from, to, count, confidence, correct] of bins) {
        if (!count) continue;
        const bar = shape("rect", {class: "bars", x: across(from) + 1, y: up(correct), width: SIDE * (to - from) - 2, height: SIDE * correct});
        bar.append(shape("title", {}, `${count} images of confidence ${from.toFixed(2)} to ${to.toFixed(2)}: mean ${confidence.toFixed(3)}, ` +
            `${(100 * correct).toFixed(1)} % correct`));
        svg.append(bar);
    }
    return part("Reliability", svg, sentence(`Bars on the dashed line: probabilities can be trusted. Expected calibration error: ${(100 * error).toFixed(1)} %.`));
}

function precisionRecall(classes) {
    const svg = frame("recall", "precision"), select = document.createElement("select"), slide = document.createElement("input"), text = sentence("");
    classes.forEach(({name}, place) => select.append(new Option(name, place)));
    Object.assign(slide, {type: "range", min: 0, max: 1, step: 0.005, value: 0.5, ariaLabel: "threshold"});
    const curve = shape("path", {class: "curve"}), point = shape("circle", {class: "point", r: 5});
    svg.append(curve, point);
    function draw() {
        const {threshold, precision, recall, average} = classes[+select.value];
        curve.setAttribute("d", recall.map((value, k) => `${k ? "L" : "M"}${across(value).toFixed(1)} ${up(precision[k]).toFixed(1)}`).join(""));
        // thresholds rise: the first one that is not below the wanted one
        let k = threshold.findIndex((value) => value >= +slide.value);
        if (k < 0) k = threshold.length - 1;
        point.setAttribute("cx", across(recall[k]));
        point.setAttribute("cy", up(precision[k]));
        text.textContent = `Threshold ${threshold[k].toFixed(3)}: ${(100 * precision[k]).toFixed(1)} % of the images above it are ${select.selectedOptions[0].text}, ` +
            `and ${(100 * recall[k]).toFixed(1)} % of that class are above it. Average precision: ${(100 * average).toFixed(1)} %.`;
    }
    select.onchange = slide.oninput = draw;
    draw();
    const label = document.createElement("label");
    label.append("Threshold ", slide);
    return part("Precision and recall", select, svg, label, text);
}

function drawCurves({reliability: calibration, classes}, place) {
    place.append(reliability(calibration));
    if (classes.length) place.append(precisionRecall(classes));
}
