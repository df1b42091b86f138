// page.js: shows the images of data.js as tiles. Only visible rows are in the document, so 50,000 tiles are as fast as 50.
"use strict";
const data = window.pageData, items = data.items, byId = (id) => document.getElementById(id);
const grid = byId("grid"), seen = byId("seen"), group = byId("group"), sort = byId("sort"), find = byId("find"), dialog = byId("large");
const starts = data.groups.reduce((list, each) => [...list, list[list.length - 1] + each[1]], [0]);
const decisions = data.decisions ? [...data.decisions.initial] : null; // of each item: "", "exclude" or the name of a class
let shown = [], columns = 1, rowHeight = 172, drawn = "", opened = -1;

function element(tag, attributes, ...children) {
    const made = Object.assign(document.createElement(tag), attributes);
    made.append(...children);
    return made;
}

const thumbnail = (number) => `thumbs/${Math.floor(number / 1000)}/${number}.jpg`;
const original = (file) => data.originals + (data.originals === "/" ? file.slice(1) : file).split("/").map(encodeURIComponent).join("/");

function picture(source, instead) {
    const image = element("img", {alt: "", decoding: "async"});
    image.onload = () => image.classList.toggle("small", image.naturalWidth <= 64 && image.naturalHeight <= 64);
    image.onerror = () => { image.onerror = null; if (instead) image.src = instead; else image.style.visibility = "hidden"; };
    image.src = source;
    return image;
}

// ---- which tiles are shown, and in which order ----

function choose() {
    const all = group.value === "", first = all ? 0 : starts[+group.value], end = all ? items.file.length : starts[+group.value + 1];
    const wanted = find.value.trim().toLowerCase();
    shown = [];
    for (let i = first; i < end; i++)
        if (!wanted || `${items.file[i]} ${items.first[i]} ${items.second[i]}`.toLowerCase().includes(wanted)) shown.push(i);
    const orders = {
        down: (a, b) => items.score[b] - items.score[a],
        up: (a, b) => items.score[a] - items.score[b],
        name: (a, b) => items.file[a] < items.file[b] ? -1 : items.file[a] > items.file[b] ? 1 : 0,
    };
    if (orders[sort.value]) shown.sort(orders[sort.value]);
    byId("note").textContent = all ? "" : data.groups[+group.value][2];
    byId("count").textContent = `${shown.length.toLocaleString("en")} image${shown.length === 1 ? "" : "s"}`;
    layout();
}

function layout() {
    const style = getComputedStyle(document.documentElement);
    rowHeight = parseInt(style.getPropertyValue("--tile-height"), 10);
    columns = Math.max(1, Math.floor(grid.clientWidth / parseInt(style.getPropertyValue("--tile-width"), 10)));
    grid.style.height = `${Math.ceil(shown.length / columns) * rowHeight}px`;
    seen.style.setProperty("--columns", columns);
    drawn = "";
    draw();
}

function draw() {
    const top = -grid.getBoundingClientRect().top, first = Math.max(0, Math.floor(top / rowHeight) - 1);
    const last = Math.max(first, Math.ceil((top + innerHeight) / rowHeight) + 1);
    if (drawn === `${first} ${last}`) return;
    drawn = `${first} ${last}`;
    seen.style.transform = `translateY(${first * rowHeight}px)`;
    seen.replaceChildren(...shown.slice(first * columns, last * columns).map((item, place) => tile(item, first * columns + place)));
}

function tile(item, place) {
    const made = element("button", {className: "tile", type: "button", title: items.file[item]}, picture(thumbnail(items.thumb[item])),
        element("span", {textContent: items.first[item]}), element("span", {className: "second", textContent: items.second[item]}));
    if (data.cluster && data.cluster[item] % 2) made.classList.add("other"); // neighbouring groups of duplicates differ
    if (decisions && decisions[item])
        made.append(element("span", {className: `decision ${kind(item)}`, textContent: kind(item)}));
    made.onclick = () => enlarge(place);
    return made;
}

// ---- one image ----

function enlarge(place) {
    opened = Math.max(0, Math.min(place, shown.length - 1));
    const item = shown[opened], more = data.more[item] || {}, small = thumbnail(items.thumb[item]);
    const pictures = [[data.originals ? original(items.file[item]) : small, items.file[item], "large", small]];
    if (more.explain) pictures.push([more.explain, "where the network found the class (Grad-CAM)", "large", ""]);
    for (const [number, caption] of more.near || []) pictures.push([thumbnail(data.neighbours[number]), caption, "", ""]);
    byId("pictures").replaceChildren(...pictures.map(([source, caption, size, instead]) =>
        element("figure", {className: size}, picture(source, instead), element("figcaption", {textContent: caption}))));
    const lines = [items.first[item], items.second[item], items.third[item], `${data.sortedBy} ${items.score[item]}`];
    byId("text").replaceChildren(...lines.filter(Boolean).map((line) => element("p", {textContent: line})));
    if (decisions) byId("text").append(choice(item));
    if (!dialog.open) dialog.showModal();
}

byId("before").onclick = () => enlarge(opened - 1);
byId("after").onclick = () => enlarge(opened + 1);
dialog.onkeydown = (event) => {
    if (event.target.tagName === "SELECT") return;
    if (event.key === "ArrowLeft") enlarge(opened - 1);
    if (event.key === "ArrowRight") enlarge(opened + 1);
};

// ---- what is written to exclude.csv and labels.csv ----

const kind = (item) => decisions[item] === "exclude" ? "exclude" : decisions[item] ? "relabel" : "";

function choice(item) {
    const select = element("select", {}, new Option("keep as it is", ""), new Option("exclude", "exclude"),
        ...data.decisions.classes.map((name, place) => new Option(`label it ${name}`, `=${place}`)));
    select.value = kind(item) === "relabel" ? `=${data.decisions.classes.indexOf(decisions[item].slice(1))}` : decisions[item];
    select.onchange = () => {
        decisions[item] = select.value.startsWith("=") ? `=${data.decisions.classes[+select.value.slice(1)]}` : select.value;
        drawn = "";
        draw();
        count();
    };
    return element("p", {}, element("label", {}, "Decision ", select));
}

const quoted = (text) => `"${text.replaceAll('"', '""')}"`;

function save(name, wanted) {
    const rows = new Map();
    decisions.forEach((decision, item) => { if (kind(item) === wanted) rows.set(items.file[item], decision.slice(1)); });
    const lines = [...rows].map(([file, label]) => wanted === "exclude" ? quoted(file) : `${quoted(file)},${quoted(label)}`);
    const text = [wanted === "exclude" ? "file" : "file,label", ...lines, ""].join("\n");
    const link = element("a", {href: URL.createObjectURL(new Blob([text], {type: "text/csv"})), download: name});
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function count() {
    const files = (wanted) => new Set(items.file.filter((_, item) => kind(item) === wanted)).size;
    byId("save").replaceChildren(...[["exclude.csv", "exclude"], ["labels.csv", "relabel"]].map(([name, wanted]) =>
        element("button", {type: "button", textContent: `save ${name} (${files(wanted)})`, onclick: () => save(name, wanted)})), " ");
}

// ---- tables and start ----

for (const {title, note, head, rows} of data.tables || []) {
    const cells = (row, tag) => row.map((value) => element(tag, {textContent: value, className: typeof value === "number" ? "number" : ""}));
    byId("tables").append(element("h2", {textContent: title}), element("p", {textContent: note}), element("div", {className: "wide"},
        element("table", {}, element("tr", {}, ...cells(head, "th")), ...rows.map((row) => element("tr", {}, ...cells(row, "td"))))));
}
if (data.curves) {
    drawCurves(data.curves, byId("curves"));
    byId("charts").hidden = false;
    byId("charts").open = innerWidth > 900;
}
if (data.groups.length > 1) group.append(new Option(`all (${items.file.length})`, ""));
data.groups.forEach(([name, size], place) => group.append(new Option(`${name} (${size})`, place)));
if (data.startGroup !== undefined) group.value = data.startGroup;
for (const [value, text] of [["down", "high to low"], ["up", "low to high"]])
    sort.querySelector(`[value=${value}]`).textContent = `${data.sortedBy}, ${text}`;
if (decisions) count();
group.onchange = sort.onchange = choose;
find.oninput = choose;
let queued = false;
addEventListener("scroll", () => {
    if (!queued) requestAnimationFrame(() => { queued = false; draw(); });
    queued = true;
}, {passive: true});
addEventListener("resize", layout);
choose();
