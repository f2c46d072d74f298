#!/usr/bin/env bash
# Trains fastText and the lemmatiser on the same words, one after the other, each as long as each number of epochs and
# of minutes says, and prints a line for each: seconds by the clock and of the processors, and the share of the
# held-out words that is right, at first and among five. Debian: apt-get install fasttext
#   examples/peers/fasttext.sh [FOLDER] ["EPOCHS ..."] ["MINUTES ..."] [OPTIONS OF tp train ...]
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(realpath -m "${1:-out/fasttext}")
epochs=${2-1 2 5 10}
minutes=${3-0.25 0.5 1 1.5}
shift $(($# < 3 ? $# : 3))

mkdir -p "$folder"
[ -f "$folder/test.txt" ] || "$here/tp" train --export-split "$folder" >/dev/null 2>&1
TIMEFORMAT='%R %U %S'

line() { # NAME SECONDS-FILE TOP1 TOP5
    awk -v name="$1" -v top1="$3" -v top5="$4" \
        '{printf "%-30s %7.1f s %7.1f processor s   top-1 %.3f   top-5 %.3f\n", name, $1, $2 + $3, top1, top5}' <(tail -1 "$2")
}

# of a line of test.txt the labels are right, of a line of best.txt the first, or one of five, has to be among them
right() { # TEST BEST
    awk 'NR == FNR { test[FNR] = $0; next }
        { n = split(test[FNR], words, " "); delete labels
          for (i = 1; i <= n; i++) if (words[i] ~ /^__label__/) labels[words[i]] = 1
          first += ($1 in labels); found = 0
          for (i = 1; i <= NF; i++) if ($i in labels) found = 1
          five += found }
        END { printf "%.4f %.4f\n", first / FNR, five / FNR }' "$1" "$2"
}

for n in $epochs; do
    { time fasttext supervised -input "$folder/train.txt" -output "$folder/model" -loss hs -minn 2 -maxn 6 -dim 64 \
        -lr 1 -bucket 500000 -thread 2 -epoch "$n" >/dev/null 2>&1; } 2>"$folder/time"
    fasttext predict "$folder/model.bin" "$folder/test.txt" 5 >"$folder/best.txt"
    # shellcheck disable=SC2046 # two numbers
    line "fastText, $n epochs" "$folder/time" $(right "$folder/test.txt" "$folder/best.txt")
done
for m in $minutes; do
    { time "$here/tp" train --minutes "$m" --out "$folder/lemma" --json "$folder/run.json" "$@" \
        >/dev/null 2>&1; } 2>"$folder/time"
    # shellcheck disable=SC2046 # two numbers
    line "tp train --minutes $m $*" "$folder/time" \
        $(sed -n 's/.*"top[15]": *\([0-9.]*\).*/\1/p' "$folder/run.json")
done
