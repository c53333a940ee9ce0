#!/usr/bin/env bash
# `cldraft report` on real runs, resumed and overlaid; and its page in a real browser at the widths of a
# phone and of a desktop, if Chromium is installed.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"

recipe=(configs/tiny.ini --set train.batch_rows=4 --set train.micro_rows=1 --set train.anchors=4
    --set train.loss_chunk=4 --set data.max_length=64 --set eval.rows=2 --set eval.decode_rows=1
    --set eval.new_tokens=8 --set eval.decode_every=2 --set train.evaluate_every=2
    --set train.checkpoint_every=2 --set log.tensorboard=yes --set devices.targets=0
    --set "devices.drafters=0,0")
one=$scratch/one two=$scratch/two

n_event_files() {
    find "$1" -maxdepth 1 -name 'events.out.tfevents.*' -size +100c | wc -l
}

expect 'no run' 3 'is no directory' report "$scratch/nothing"
expect 'a run' 0 '' train "${recipe[@]}" --set train.steps=4 --set "run.dir=$one"
check 'has an event file' test "$(n_event_files "$one")" = 1
expect 'goes on' 0 '' train "${recipe[@]}" --set train.steps=6 --set "run.dir=$one" --resume "$one"
check 'with another event file' test "$(n_event_files "$one")" = 2
expect 'another run' 0 '' train "${recipe[@]}" --set train.steps=4 --set "run.dir=$two" \
    --set train.learning_rate=1e-3 --set log.tensorboard=no
check 'which was asked for none' test "$(n_event_files "$two")" = 0

expect 'a report' 0 "^$one/report.html\$" report "$one"
has() {
    check "$1" grep -qE -- "$2" "$3"
}
page=$one/report.html
for title in Loss 'Accepted length' 'Acceptance by position' 'Acceptance along the block' \
    'Learning rate' 'Gradient norm' Throughput 'Time of a step' 'Busy share'; do
    has "draws $title" "<b>$title</b>" "$page"
done
has 'shows the resume' '<td class="kind">resumed' "$page"
has 'shows checkpoints' '<td class="kind">checkpoint' "$page"
has 'shows the end' '<td class="what">finished' "$page"
has 'has workers' '<b>drafter 1</b>' "$page"
has 'has the configuration' 'train.learning_rate<td>0.002' "$page"
check 'misses nothing' test -z "$(grep 'class="notes"' "$page")"

pair=$scratch/pair.html
expect 'two of them' 0 "^$pair\$" report "$one" "$two" --out "$pair"
has 'differ in the rate' 'train.learning_rate<td>0.002<td>0.001' "$pair"
expect 'not over what it is made from' 2 'is a file of the run' report "$one" --out "$one/metrics.jsonl"
mkfifo "$scratch/pipe"
expect 'not over what is no file' 7 'no regular file' report "$one" --out "$scratch/pipe"
expect 'nowhere to write' 7 '' report "$one" --out "$scratch/nowhere/page.html"

# --- in a browser ---

browser=$(command -v chromium || command -v chromium-browser || true)
if [[ -z $browser ]]; then
    echo 'skip  the page in a browser: there is no Chromium'
    verdict
    exit
fi

# A script measures the rendered page: the widths, and chart texts that overlap or exceed their chart.
cat >"$scratch/probe.html" <<'END'
<script>
addEventListener("load", () => {
  let wrong = [];
  for (const chart of document.querySelectorAll("figure .cld-chart")) {
    const box = chart.getBoundingClientRect();
    const texts = [...chart.querySelectorAll("text")].map(t => [t.textContent, t.getBoundingClientRect()]);
    texts.forEach(([name, a], i) => {
      if (a.left < box.left - 1 || a.right > box.right + 1 || a.top < box.top - 1 || a.bottom > box.bottom + 1)
        wrong.push(name + " is outside");
      for (const [other, b] of texts.slice(i + 1))
        if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
            Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3)
          wrong.push(name + " and " + other);
    });
  }
  const least = Math.min(...[...document.querySelectorAll("figure text")].map(
    t => parseFloat(getComputedStyle(t).fontSize) * t.getScreenCTM().a));
  const dark = getComputedStyle(document.body).backgroundColor;
  document.getElementById("dark").checked = true;
  parent.postMessage(["width", innerWidth, "of", document.documentElement.scrollWidth,
    "charts", document.querySelectorAll("figure").length,
    "letters", least >= 9 ? "readable" : least,
    "dark", getComputedStyle(document.body).backgroundColor != dark ? "differs" : "alike",
    "wrong", wrong.length ? wrong.join("; ") : "nothing"].join(" "), "*");
});
</script>
END

# look NAME PAGE WIDTH: fits without errors. The page is in a frame of that width: a
# window cannot be as narrow as a phone.
look() {
    local name=$1 width=$3 found
    cat "$2" "$scratch/probe.html" >"$scratch/probed.html"
    cat >"$scratch/frame.html" <<END
<!DOCTYPE html><html><body><script>
onmessage = e => document.body.setAttribute("data-found", e.data);
</script><iframe width="$width" height="900" style="border:0" src="probed.html"></iframe></body></html>
END
    timeout 120 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
        --user-data-dir="$scratch/browser" --enable-logging=stderr --hide-scrollbars \
        --window-size=1400,1000 --virtual-time-budget=5000 --dump-dom \
        "file://$scratch/frame.html" </dev/null >"$scratch/dom" 2>"$scratch/browser.log" || true
    found=$(grep -oE 'data-found="[^"]*"' "$scratch/dom" || true)
    echo "      $name at $width: $found"
    check "$name at $width fits" grep -qE "width $width of $width charts [1-9]" <<<"$found"
    check "$name at $width can be read" grep -q 'letters readable' <<<"$found"
    check "$name at $width has its texts beside each other" grep -q 'wrong nothing' <<<"$found"
    check "$name at $width has two themes" grep -q 'dark differs' <<<"$found"
    check "$name at $width has no complaints" test -z "$(grep CONSOLE "$scratch/browser.log")"
}

for width in 390 1280; do
    look 'one run' "$page" "$width"
    look 'two runs' "$pair" "$width"
done
verdict
